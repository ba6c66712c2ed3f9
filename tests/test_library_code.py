"""Functions of optax and JAX in config.json."""

import json
from functools import partial

import jax
import optax
import pytest

from tlite.errors import UserError
from tlite.user_code import describe_code, find_code
from tlite.user_code.library import describe_library_code, find_library_code

FUNCTIONS = [
    optax.sgd,
    optax.contrib.muon,
    jax.nn.initializers.zeros,
    jax.nn.initializers.orthogonal(),
    jax.nn.initializers.variance_scaling(1.0, "fan_in", "normal"),
]
SCHEDULES = [
    optax.constant_schedule(1.0),
    optax.cosine_decay_schedule(1.0, 500, alpha=0.1),
    optax.warmup_cosine_decay_schedule(0.0, 1.0, 10, 100),
    optax.exponential_decay(1.0, 100, 0.9),
    optax.exponential_decay(1.0, 100, 0.9, end_value=0.1, staircase=True),
    optax.warmup_exponential_decay_schedule(0.0, 1.0, 10, 100, 0.9),
    optax.join_schedules([optax.constant_schedule(1.0), optax.linear_schedule(1.0, 0.0, 9)], [5]),
]


def name(function):
    return function.__qualname__.partition(".")[0]


def again(function):
    return find_library_code(json.loads(json.dumps(describe_library_code(function))))


@pytest.mark.parametrize("function", FUNCTIONS + SCHEDULES, ids=name)
def test_library_functions_are_loaded_again(function):
    """Schedules have the same values."""
    loaded = again(function)
    assert describe_library_code(loaded) == describe_library_code(function)
    for step in (0, 3, 7, 50, 1000) if function in SCHEDULES else ():
        assert float(loaded(step)) == float(function(step))


def test_arguments_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match=r"def schedule.* return optax.piecewise_constant"):
        describe_library_code(optax.piecewise_constant_schedule(1.0, {5: 0.1}))
    with pytest.raises(UserError, match="can't be saved"):
        describe_code(partial(optax.adamw, mask=lambda params: params))


def test_a_factory_without_its_name_is_an_error(monkeypatch):
    schedule = optax.constant_schedule(1.0)
    monkeypatch.setattr(schedule, "__qualname__", "renamed.<locals>.schedule")
    with pytest.raises(ValueError, match=r"def schedule.* return optax.renamed"):
        describe_library_code(schedule)


def test_other_factories_are_errors_that_name_the_way_out():
    reference = {"kind": "library", "name": "optax.add_noise", "args": [1], "kwargs": {}}
    with pytest.raises(ValueError, match="call it in a function on the top level of your file"):
        find_library_code(reference)


def test_partials_of_functions_are_loaded_again():
    again = find_code(json.loads(json.dumps(describe_code(partial(optax.adamw, 0.1, b2=0.95)))))
    assert (again.func, again.args, again.keywords) == (optax.adamw, (0.1,), {"b2": 0.95})
    function = partial(jax.nn.softmax, (1, (2, 3)), axis=(-1,))
    again = find_code(json.loads(json.dumps(describe_code(function))))
    assert (again.args, again.keywords) == (function.args, function.keywords)
    with pytest.raises(UserError, match="write a tuple"):
        describe_code(partial(jax.nn.softmax, axis=(0, [-1])))


@pytest.mark.parametrize(
    "name", ["os.system", "jax.profiler.start_server", "optax._src.base.os", "optax.nothing", 3]
)
def test_names_outside_of_the_libraries_are_refused(name):
    with pytest.raises(ValueError, match=r"not a function|there is no"):
        find_library_code({"kind": "library", "name": name, "args": [1], "kwargs": {}})
