import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tlite.models import CausalLM, GeneratorConfig
from tlite.models.parameters import named_arrays
from tlite.training import TrainingConfig
from tlite.training.precision import with_precision
from tlite.training.step import decays, make_optimizer, parameter_rules, schedule

CONFIG = TrainingConfig(
    steps=100, schedule="cosine", warmup_steps=10, final_learning_rate=0.1, beta2=0.99
)


def rate(step, **changes):
    return float(schedule(dataclasses.replace(CONFIG, **changes), jnp.int32(step)))


HALF = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2))
SCHEDULES = [
    ({}, {0: 0.1, 4: 0.5, 9: 1, 10: 1, 55: HALF, 100: 0.1, 1000: 0.1}),
    ({"schedule": "constant"}, {4: 0.5, 9: 1, 10: 1, 99: 1}),
    ({"schedule": "inverse_sqrt", "warmup_steps": 0}, {0: 1, 3: 0.5, 99: 0.1}),
]


@pytest.mark.parametrize(("changes", "rates"), SCHEDULES, ids=str)
def test_a_schedule_warms_up_in_equal_steps_to_its_peak_and_falls(changes, rates):
    assert {step: rate(step, **changes) for step in rates} == pytest.approx(rates)


@pytest.mark.parametrize("warmup", [1, 10, 400])
def test_the_inverse_square_root_is_that_of_2017_as_a_fraction_of_its_peak(warmup):

    def original(number):  # "Attention is all you need", eq. 3; updates are counted from 1
        return min(number**-0.5, number * warmup**-1.5)

    # The peak is met twice: at the warm-up's last update and at the one after it.
    for step in (0, warmup - 1, warmup, 2 * warmup, 3 * warmup, 16 * warmup):
        number = step + 1 if step < warmup else step
        found = rate(step, schedule="inverse_sqrt", warmup_steps=warmup)
        assert found == pytest.approx(original(number) / original(warmup), rel=1e-5)


@functools.cache
def drawn():
    """A small generator's parameters by name."""
    config = GeneratorConfig(vocabulary_size=7, context=4, width=8, num_heads=2, num_blocks=1)
    return jax.jit(lambda: named_arrays(CausalLM(config, rng=jax.random.key(0))))()


def gradients(parameters, step):
    random = np.random.default_rng(step)
    return {
        name: jnp.asarray(random.normal(size=a.shape), jnp.float32)
        for name, a in parameters.items()
    }


def assert_same_updates(config, theirs, rtol=1e-5):
    """Three updates of ours are those of a complete optimizer of optax's with the rate 0.1."""
    parameters = drawn()
    ours = make_optimizer(config)

    @jax.jit
    def updates(gradient, our_state, their_state, parameters):
        return (
            ours.update(gradient, our_state, parameters),
            theirs.update(gradient, their_state, parameters),
        )

    our_state, their_state = jax.jit(lambda p: (ours.init(p), theirs.init(p)))(parameters)
    for step in range(3):
        gradient = gradients(parameters, step)
        found = jax.device_get(updates(gradient, our_state, their_state, parameters))
        (update, our_state), (expected, their_state) = found
        for name, a in expected.items():
            np.testing.assert_allclose(-0.1 * update[name], a, rtol=rtol, atol=1e-6)
        parameters = {name: np.asarray(a) + expected[name] for name, a in parameters.items()}


def is_decayed(parameters):
    return {name: bool(re.search(r"(kernel|table)$", name)) for name in parameters}


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_adamw_is_that_of_optax(clip_norm):
    config = dataclasses.replace(CONFIG, weight_decay=0.1, clip_norm=clip_norm)
    clip = optax.identity() if clip_norm is None else optax.clip_by_global_norm(clip_norm)
    adamw = optax.adamw(0.1, 0.9, 0.99, weight_decay=0.1, mask=is_decayed)
    assert_same_updates(config, optax.chain(clip, adamw))


@pytest.mark.parametrize("beta2", [None, 0.98])
def test_lion_is_that_of_optax(beta2):
    config = dataclasses.replace(CONFIG, optimizer="lion", weight_decay=0.1, beta2=beta2)
    assert_same_updates(
        config, optax.lion(0.1, 0.9, beta2 or 0.99, weight_decay=0.1, mask=is_decayed)
    )


def first_update(config):
    optimizer, parameters = make_optimizer(config), drawn()

    @jax.jit
    def update(gradient):
        return optimizer.update(gradient, optimizer.init(parameters), parameters)[0]

    return jax.device_get(update(gradients(parameters, 1)))


def test_muon_makes_the_updates_of_matrices_in_blocks_nearly_orthogonal():
    config = dataclasses.replace(CONFIG, optimizer="muon")
    for name, a in first_update(config).items():
        if not (name.endswith("kernel") and name.startswith("blocks")):
            continue
        values = np.linalg.svd(np.asarray(a) / (0.2 * max(a.shape) ** 0.5), compute_uv=False)
        assert values.min() > 0.5
        assert values.max() < 1.5


def test_matrices_of_a_users_layer_have_the_rules_of_a_kernel():
    names = {"hidden.kernel": (8, 32), "matrix": (8, 32), "experts": (3, 8, 32), "taps": (3, 8)}
    arrays = {f"blocks.0.feed_forward.{n}": jnp.ones(shape) for n, shape in names.items()}
    training = TrainingConfig(optimizer="muon", precision="mixed", weight_decay=0.1)
    *matrices, of_taps = parameter_rules(training, arrays).values()
    assert {*matrices} == {"bfloat16, muon, decay 0.1"}
    assert of_taps == "float32, adamw, decay 0.1"
    dtypes = [a.dtype for a in with_precision(arrays, "mixed").values()]
    assert dtypes == 3 * [jnp.bfloat16] + [jnp.float32]


def test_muon_makes_each_matrix_of_a_stack_orthogonal():
    optimizer, name = make_optimizer(TrainingConfig(optimizer="muon")), "blocks.0.experts"
    gradient = {name: gradients({name: jnp.ones((3, 8, 4))}, 0)[name]}

    def update(gradient):
        return optimizer.update(gradient, optimizer.init(gradient), gradient)[0]

    found = jax.jit(update)(gradient)[name]
    for stacked, alone in zip(found, gradient[name], strict=True):
        np.testing.assert_allclose(stacked, jax.jit(update)({name: alone})[name], atol=1e-5)


def test_muon_leaves_tables_the_head_biases_and_norms_to_adamw():
    parameters = drawn()
    muon, adamw = (
        first_update(dataclasses.replace(CONFIG, optimizer=name, weight_decay=0.1))
        for name in ("muon", "adamw")
    )
    same = {name for name in parameters if np.array_equal(muon[name], adamw[name])}
    kernels = {n for n in parameters if n.endswith("kernel") and n.startswith("blocks")}
    assert kernels
    assert same == parameters.keys() - kernels


def test_only_matrices_and_tables_decay_also_where_they_are_stacked():
    stacked = {
        "blocks.attention_norm.scale": 2,
        "blocks.attention.query.bias": 2,
        "blocks.attention.query.kernel": 3,
        "blocks.feed_forward.custom.power": 2,
        "embedding.table": 2,
        "custom.temperature": 1,
    }
    found = {name for name, ndim in stacked.items() if decays(name, np.zeros((2,) * ndim))}
    assert found == {"blocks.attention.query.kernel", "embedding.table"}
