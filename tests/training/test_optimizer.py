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
def test_a_schedule_warms_up_to_its_peak_and_decays(changes, rates):
    assert {step: rate(step, **changes) for step in rates} == pytest.approx(rates)


@pytest.mark.parametrize("warmup", [1, 10, 400])
def test_inverse_sqrt_is_the_schedule_of_2017_over_its_peak(warmup):
    def original(number):  # "Attention is all you need", eq. 3; updates are counted from 1
        return min(number**-0.5, number * warmup**-1.5)

    # The warm-up's last update and the next one both have the peak.
    for step in (0, warmup - 1, warmup, 2 * warmup, 3 * warmup, 16 * warmup):
        number = step + 1 if step < warmup else step
        expected = original(number) / original(warmup)
        fraction = rate(step, schedule="inverse_sqrt", warmup_steps=warmup)
        assert fraction == pytest.approx(expected, rel=1e-5)


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


def is_decayed(parameters):
    return {name: bool(re.search(r"(kernel|table)$", name)) for name in parameters}


DECAY = {"weight_decay": 0.1, "mask": is_decayed}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, optax.adamw(0.1, 0.9, 0.99, **DECAY)),
        (
            {"clip_norm": 0.5},
            optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.1, 0.9, 0.99, **DECAY)),
        ),
        ({"beta2": None}, optax.adamw(0.1, 0.9, 0.999, **DECAY)),
        ({"optimizer": "lion", "beta2": None}, optax.lion(0.1, 0.9, 0.99, **DECAY)),
        ({"optimizer": "lion", "beta2": 0.98}, optax.lion(0.1, 0.9, 0.98, **DECAY)),
    ],
)
def test_adamw_and_lion_are_those_of_optax(settings, expected):
    """Three updates at the learning rate 0.1."""
    parameters = drawn()
    ours = make_optimizer(dataclasses.replace(CONFIG, weight_decay=0.1, **settings))

    @jax.jit
    def update(gradient, states, parameters):
        return [
            optimizer.update(gradient, state, parameters)
            for optimizer, state in zip((ours, expected), states, strict=True)
        ]

    states = jax.jit(lambda p: (ours.init(p), expected.init(p)))(parameters)
    for step in range(3):
        results = jax.device_get(update(gradients(parameters, step), states, parameters))
        (updates, right), states = zip(*results, strict=True)
        for name, a in right.items():
            np.testing.assert_allclose(-0.1 * updates[name], a, rtol=1e-5, atol=1e-6)
        parameters = {name: np.asarray(a) + right[name] for name, a in parameters.items()}


def first_update(config, parameters=None):
    optimizer, parameters = make_optimizer(config), parameters or drawn()

    @jax.jit
    def update(gradient):
        return optimizer.update(gradient, optimizer.init(parameters), parameters)[0]

    return jax.device_get(update(gradients(parameters, 1)))


def test_muon_makes_matrices_of_blocks_orthogonal_also_in_stacks():
    config, name = dataclasses.replace(CONFIG, optimizer="muon"), "blocks.0.experts"
    updates = first_update(config) | first_update(config, {name: jnp.ones((3, 8, 4))})
    for name, a in updates.items():
        if name.startswith("blocks") and name.endswith(("kernel", "experts")):
            values = np.linalg.svd(a / (0.2 * max(a.shape[-2:]) ** 0.5), compute_uv=False)
            assert 0.5 < values.min() <= values.max() < 1.5


def test_matrices_of_a_users_layer_have_the_rules_of_a_kernel():
    names = {"hidden.kernel": (8, 32), "matrix": (8, 32), "experts": (3, 8, 32), "taps": (3, 8)}
    arrays = {f"blocks.0.feed_forward.{n}": jnp.ones(shape) for n, shape in names.items()}
    training = TrainingConfig(optimizer="muon", precision="mixed", weight_decay=0.1)
    *matrices, taps = parameter_rules(training, arrays).values()
    assert {*matrices} == {"bfloat16, muon, decay 0.1"}
    assert taps == "float32, adamw, decay 0.1"
    dtypes = [a.dtype for a in with_precision(arrays, "mixed").values()]
    assert dtypes == 3 * [jnp.bfloat16] + [jnp.float32]


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


def test_only_matrices_and_tables_decay_also_in_stacks():
    stacked = {
        "blocks.attention_norm.scale": 2,
        "blocks.attention.query.bias": 2,
        "blocks.attention.query.kernel": 3,
        "blocks.feed_forward.custom.power": 2,
        "embedding.table": 2,
        "custom.temperature": 1,
    }
    decayed = {name for name, ndim in stacked.items() if decays(name, np.zeros((2,) * ndim))}
    assert decayed == {"blocks.attention.query.kernel", "embedding.table"}
