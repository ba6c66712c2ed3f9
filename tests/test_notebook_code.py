"""Functions of a notebook are recorded as a file that is made from its cells."""

import functools
import linecache
import sys
from types import ModuleType

import jax.numpy as jnp
import pytest

from tlite import user_code
from tlite.errors import UserError
from tlite.user_code import allow_code, describe_code, find_code, name_of, write_code

CELL = """
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

PEAK = 4
TABLE = jnp.ones(3)
print("not recorded")


class State(NamedTuple):
    count: int


def count(state):
    return State(state.count + 1)


def sign_descent(learning_rate, scale=1.0):
    def update(gradient, state, parameters=None):
        signs = jax.tree.map(lambda g: -scale * learning_rate * jnp.sign(g), gradient)
        return signs, count(state)

    return optax.GradientTransformation(lambda parameters: State(0), update)


@jax.jit
def triangle(step):
    return 1 - jnp.abs(step / PEAK - 1)


def tempered(params, query, key, value, mask=None):
    return params.temperature * query, None


tempered.init_params = lambda rng, config: {"temperature": jnp.ones(())}


def with_table(logits, targets):
    return logits @ TABLE


def factory():
    def inner(step):
        return 1.0

    return inner


unnamed = lambda step: 1.0
nested = factory()
mapped = jax.vmap(count)
half = functools.partial(sign_descent, scale=0.5)
"""


@pytest.fixture
def run_cell(monkeypatch, tmp_path):
    """Return a function that executes a cell as IPython does, and returns the namespace."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(user_code, "_programs", {})
    main = ModuleType("__main__")
    main.In = [""]
    monkeypatch.setitem(sys.modules, "__main__", main)

    def run(source):
        name = f"<cell-{len(main.In)}>"
        monkeypatch.setitem(
            linecache.cache, name, (len(source), None, source.splitlines(True), name)
        )
        main.In.append(source)
        exec(compile(source, name, "exec"), vars(main))  # as a kernel does
        return vars(main)

    return run


def find_in_another_process(reference, folder, monkeypatch):
    write_code(folder, reference)
    monkeypatch.setattr(user_code, "_programs", {})
    with allow_code(folder, trust=True):
        return find_code(reference)


@pytest.mark.parametrize("name", ["sign_descent", "triangle", "tempered", "State", "half"])
def test_a_notebook_function_is_loaded_in_another_process(run_cell, name, tmp_path, monkeypatch):
    function = run_cell(CELL)[name]
    reference = describe_code(function)
    loaded = find_in_another_process(reference, tmp_path / "code", monkeypatch)
    assert describe_code(loaded) == reference
    assert "notebook.py" in name_of(function)
    if name == "triangle":
        assert [float(loaded(step)) for step in (0, 4, 6)] == [0.0, 1.0, 0.5]
    if name == "tempered":
        assert loaded.init_params(None, None)["temperature"] == 1
    if isinstance(function, functools.partial):
        updates, state = loaded(0.1).update({"a": jnp.full(2, -3.0)}, loaded(0.1).init({}))
        assert updates["a"].tolist() == pytest.approx([0.05, 0.05])
        assert state.count == 1


def test_the_record_has_only_what_the_function_uses(run_cell, tmp_path):
    reference = describe_code(run_cell(CELL)["triangle"])
    write_code(tmp_path / "code", reference)
    (digest,) = reference["sha256"].values()
    text = (tmp_path / "code" / f"{digest}.py").read_text()
    assert text == (
        "import jax\nimport jax.numpy as jnp\n\n\nPEAK = 4\n\n\n"
        "@jax.jit\ndef triangle(step):\n    return 1 - jnp.abs(step / PEAK - 1)\n"
    )


def test_a_redefined_function_keeps_its_cell_s_source(run_cell):
    first = run_cell("def f(step):\n    return 1.0\n")["f"]
    before = describe_code(first)
    second = run_cell("def f(step):\n    return 0.5\n")["f"]
    assert describe_code(first) == before != describe_code(second)
    assert find_code(before)(0) == 1.0


def test_a_changed_dependency_changes_the_record(run_cell):
    function = run_cell("K = 2\ndef f(step):\n    return K\n")["f"]
    before = describe_code(function)
    run_cell("K = 3\n")
    assert describe_code(function) != before
    assert (find_code(before)(0), find_code(describe_code(function))(0)) == (2, 3)


BOUND = """
import functools
from dataclasses import dataclass

K = 2


def times(k):
    def wrap(function):
        @functools.wraps(function)
        def inner(step):
            return k * function(step)

        return inner

    return wrap


def default(step, k=K):
    return k


def keyword(step, *, k=K):
    return k


@times(K)
def decorated(step):
    return 1


@dataclass(frozen=True)
class Constant:
    k = K

    def __call__(self, x):
        return super().__hash__()


def user(step):
    return decorated(step) * default(step)
"""


@pytest.mark.parametrize("name", ["default", "keyword", "decorated", "Constant", "user"])
def test_a_value_bound_by_an_older_definition_is_an_error(run_cell, name):
    """The record would have the later value, with which nothing was trained."""
    value = run_cell(BOUND)[name]
    before = describe_code(value)
    run_cell("K = 3\n")
    with pytest.raises(UserError, match=r"captured \w+=2, but .*=3: run the cell that defines"):
        describe_code(value)
    again = run_cell(BOUND.replace("K = 2", "K = 3"))[name]
    assert describe_code(again) != before


def test_a_tuple_that_grew_since_a_definition_is_an_error(run_cell):
    f = run_cell("W = (1, 2)\n\n\ndef f(x, w=W):\n    return w\n")["f"]
    run_cell("W = (1, 2, 3)\n")
    message = r"^f captured w=\(1, 2\), but its cell would now capture w=\(1, 2, 3\): run the cell"
    with pytest.raises(UserError, match=message):
        describe_code(f)


COUNTING = """
import functools
import random
import time

START = 0


def counting(start):
    def wrap(function):
        calls, first, seen = start, time.perf_counter(), [start]

        @functools.wraps(function)
        def inner(step):
            nonlocal calls
            calls += 1
            seen[0] += 1
            return function(step)

        return inner

    return wrap


@counting(START)
def counted(step, seed=random.random()):
    return seed


class Layer:
    first = START
    calls = 0

    def __call__(self, step):
        type(self).calls += 1
        return counted(step)
"""


@pytest.mark.parametrize("name", ["counted", "Layer"])
def test_random_defaults_and_counters_of_calls_are_no_change(run_cell, name):
    values = run_cell(COUNTING)
    values["Layer"]()(1)
    before = describe_code(values[name])
    values["Layer"]()(2)
    assert describe_code(values[name]) == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unnamed", "by def on the top level of a cell"),
        ("nested", "by def on the top level of a cell"),
        ("mapped", "decorate it where it is defined"),
        ("with_table", "with_table uses TABLE of the notebook"),
    ],
)
def test_a_function_without_a_record_is_an_error(run_cell, name, message):
    with pytest.raises(UserError, match=message):
        describe_code(run_cell(CELL)[name])


def test_an_attribute_set_in_another_cell_is_an_error(run_cell):
    run_cell("def f(params, x):\n    return x\n")
    function = run_cell("f.init_params = lambda rng, config: {}\n")["f"]
    with pytest.raises(UserError, match=r"f\.init_params"):
        describe_code(function)
