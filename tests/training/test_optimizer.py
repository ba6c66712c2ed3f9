import dataclasses
import functools
import math
import re
from fnmatch import fnmatch

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tlite.models import CausalLM, GeneratorConfig
from tlite.models.parameters import named_arrays
from tlite.training import (
    Adafactor,
    AdamW,
    Lion,
    LowRank,
    ParameterGroup,
    Trainer,
    TrainingConfig,
    generator_task,
)
from tlite.training.checkpoints import from_named, to_named
from tlite.training.optimizers import (
    OPTIMIZERS,
    check_patterns,
    gradient_parameters,
    make_optimizer,
    parameter_rules,
)
from tlite.training.precision import with_precision
from tlite.training.schedules import schedule
from tlite.training.step import TrainState, apply_gradient

MODEL = GeneratorConfig(vocabulary_size=7, context=4, width=8, num_heads=2, num_blocks=1)
CONFIG = TrainingConfig(
    steps=100,
    schedule="cosine",
    warmup_steps=10,
    final_learning_rate_fraction=0.1,
    optimizer=AdamW(b2=0.99),
)


def rate(step, **changes):
    return float(schedule(dataclasses.replace(CONFIG, **changes), jnp.int32(step)))


HALF = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2))
SCHEDULES = [
    ({}, {0: 0.1, 4: 0.5, 9: 1, 10: 1, 55: HALF, 100: 0.1, 1000: 0.1}),
    ({"schedule": "constant"}, {4: 0.5, 9: 1, 10: 1, 99: 1}),
    # "Attention is all you need", eq. 3, over its peak
    ({"schedule": "inverse_sqrt"}, {4: 0.5, 9: 1, 10: 1, 40: 0.5, 90: 1 / 3}),
    ({"schedule": "inverse_sqrt", "warmup_steps": 0}, {0: 1, 3: 0.5, 99: 0.1}),
    ({"schedule": "linear"}, {4: 0.5, 9: 1, 10: 1, 55: 0.55, 100: 0.1, 1000: 0.1}),
    ({"schedule": "wsd"}, {4: 0.5, 9: 1, 10: 1, 80: 1, 90: 0.55, 100: 0.1, 1000: 0.1}),
    ({"schedule": "wsd", "steps": 30, "decay_fraction": 0.01}, {27: 1, 28: 1, 29: 0.55, 30: 0.1}),
    ({"schedule": optax.linear_schedule(1.0, 0.0, 50)}, {4: 0.5, 10: 1, 35: 0.5, 60: 0}),
]


@pytest.mark.parametrize(("changes", "rates"), SCHEDULES)
def test_a_schedule_warms_up_to_its_peak_and_decays(changes, rates):
    assert {step: rate(step, **changes) for step in rates} == pytest.approx(rates)


@pytest.mark.parametrize("step", [4, 10, 55])
def test_an_update_has_the_rate_of_its_step(step):
    config = TrainingConfig(steps=100, optimizer="sgd", clip_norm=None, warmup_steps=10)
    ones = {"w": jnp.ones(2)}
    optimizer = make_optimizer(config, 1.0).init(ones)
    state = TrainState(ones, optimizer, jax.random.key(0), jnp.float32(0.5))
    updated, _ = apply_gradient(config, state, ones, jnp.int32(step))
    expected = 1 - 0.5 * schedule(config, jnp.int32(step))
    np.testing.assert_allclose(updated.parameters["w"], [expected] * 2, rtol=1e-6)


QUERY, HIDDEN = "blocks.0.attention.query.kernel", "blocks.0.feed_forward.hidden.kernel"
NAMES = ["embedding.table", QUERY, HIDDEN, "blocks.0.attention.output.bias", "head.kernel"]
NAMES += ["blocks.0.attention_norm.scale", "head.bias"]


@functools.cache
def drawn():
    """Return an array of each kind of a small generator: few, as each adds to the compilation."""
    arrays = jax.jit(lambda: named_arrays(CausalLM(MODEL, rng=jax.random.key(0))))()
    return {name: arrays[name] for name in NAMES}


def gradients(parameters, step):
    random = np.random.default_rng(step)
    return {
        name: jnp.asarray(random.normal(size=a.shape), jnp.float32)
        for name, a in parameters.items()
    }


def is_decayed(parameters):
    return {name: bool(re.search(r"(kernel|table)$", name)) for name in parameters}


DECAY = {"weight_decay": 0.1, "mask": is_decayed}
NO_DECAY = {"weight_decay": 0.0}
ADAMW = functools.partial(optax.adamw, 0.1, 0.9, **DECAY)
EXPECTED = [
    ({}, ADAMW(0.99)),
    ({"clip_norm": 0.5}, optax.chain(optax.clip_by_global_norm(0.5), ADAMW(0.99))),
    ({"optimizer": "adamw"}, ADAMW(0.999)),
    ({"optimizer": "lion"}, optax.lion(0.1, 0.9, 0.99, **DECAY)),
    ({"optimizer": Lion(b2=0.98)}, optax.lion(0.1, 0.9, 0.98, **DECAY)),
    ({"optimizer": "sgd"} | NO_DECAY, optax.sgd(0.1, momentum=0.9)),
    (
        {"optimizer": "adafactor"} | NO_DECAY,
        optax.adafactor(0.1, multiply_by_parameter_scale=False),
    ),
    ({"optimizer": functools.partial(optax.adamw, b2=0.9, **NO_DECAY)}, ADAMW(0.9)),
]


@pytest.mark.parametrize(("settings", "expected"), EXPECTED)
def test_optimizers_are_those_of_optax(settings, expected):
    """Three updates at the learning rate 0.1."""
    parameters = drawn()
    ours = make_optimizer(dataclasses.replace(CONFIG, **{"weight_decay": 0.1, **settings}), 0.1)
    both = ours, expected

    @jax.jit
    def update(gradient, states, parameters):
        return [o.update(gradient, s, parameters) for o, s in zip(both, states, strict=True)]

    states = jax.jit(lambda p: [optimizer.init(p) for optimizer in both])(parameters)
    for step in range(3):
        results = jax.device_get(update(gradients(parameters, step), states, parameters))
        (updates, right), states = zip(*results, strict=True)
        for name, a in right.items():
            np.testing.assert_allclose(updates[name], a, rtol=1e-5, atol=1e-6)
        parameters = {name: np.asarray(a) + right[name] for name, a in parameters.items()}


def first_update(config, parameters=None):
    optimizer, parameters = make_optimizer(config, 1.0), parameters or drawn()

    @jax.jit
    def update(gradient):
        return optimizer.update(gradient, optimizer.init(parameters), parameters)[0]

    return jax.device_get(update(gradients(parameters, 1)))


def test_muon_makes_matrices_of_blocks_orthogonal_also_in_stacks():
    """All other parameters get the updates of AdamW."""
    muon = dataclasses.replace(CONFIG, optimizer="muon", weight_decay=0.1)
    updates = first_update(muon)
    adamw = first_update(dataclasses.replace(muon, optimizer="adamw"))
    kernels = {name for name in updates if not np.array_equal(updates[name], adamw[name])}
    assert kernels == {n for n in updates if n.endswith("kernel") and n.startswith("blocks")}
    no_decay = dataclasses.replace(muon, weight_decay=0.0)
    stack = first_update(no_decay, {"blocks.0.experts": jnp.ones((3, 8, 4))})
    for a in (stack | {name: first_update(no_decay)[name] for name in kernels}).values():
        values = np.linalg.svd(a / (0.2 * max(a.shape[-2:]) ** 0.5), compute_uv=False)
        assert 0.5 < values.min() <= values.max() < 1.5


def test_matrices_of_a_users_layer_have_the_rules_of_a_kernel():
    """Tables, biases, norms and other arrays stay in float32; AdamW updates the head."""
    shapes = {"matrix": (8, 32), "experts": (3, 8, 32), "taps": (3, 8)}
    custom = {f"blocks.0.feed_forward.{n}": jnp.ones(shape) for n, shape in shapes.items()}
    training = TrainingConfig(optimizer="muon", precision="mixed", weight_decay=0.1)
    rules = parameter_rules(training, arrays := drawn() | custom)
    ends = "kernel", "matrix", "experts"
    matrices = {n for n in arrays if n.startswith("blocks.") and n.endswith(ends)}
    assert {n for n, rule in rules.items() if rule == "bfloat16, muon, decay 0.1"} == matrices
    assert rules["blocks.0.feed_forward.taps"] == "float32, adamw, decay 0.1"
    mixed = with_precision(arrays, "mixed")
    is_mixed = {n for n, a in mixed.items() if a.dtype == jnp.bfloat16}
    assert is_mixed == matrices | {"head.kernel"}
    assert {a.dtype for a in with_precision(mixed, "float32").values()} == {np.dtype("float32")}


def test_adafactor_treats_stacked_blocks_like_separate_ones():
    """There are more blocks than rows of a matrix, and their gradients differ in scale."""
    scale = np.geomspace(1e-3, 1e3, 6)[:, None, None]
    gradient = jnp.float32(scale * np.random.default_rng(0).normal(size=(6, 4, 5)))
    optimizer = Adafactor(min_dim_size_to_factor=2)(0.1)

    @functools.partial(jax.jit, static_argnames="name")
    def update(name, gradient):
        parameters = {name: jnp.ones_like(gradient)}
        state = optimizer.init(parameters)
        for factor in (1.0, 2.0):
            result, state = optimizer.update({name: factor * gradient}, state, parameters)
        return result[name]

    updates = update("blocks.query.kernel", gradient)
    for i in (0, 5):
        expected = update("blocks.0.query.kernel", gradient[i])
        np.testing.assert_allclose(updates[i], expected, rtol=1e-5)


def test_schedule_free_is_that_of_optax():
    """Thirty steps on a quadratic; optax keeps y, and computes x for the evaluation."""
    config = TrainingConfig(optimizer="schedule_free")
    target, start = gradients(drawn(), 0), drawn()
    gradient = jax.grad(lambda p: sum(((p[n] - a) ** 2).sum() for n, a in target.items()))
    ours, theirs = make_optimizer(config, 0.05), optax.contrib.schedule_free_adamw(0.05)

    @jax.jit
    def step(x, state, y, their_state):
        updates, state = ours.update(gradient(gradient_parameters(config, x, state)), state, x)
        their_updates, their_state = theirs.update(gradient(y), their_state, y)
        y = optax.apply_updates(y, their_updates)
        return optax.apply_updates(x, updates), state, y, their_state

    carry = start, ours.init(start), start, theirs.init(start)
    for _ in range(30):
        carry = step(*carry)
    x, _, y, their_state = carry
    expected = optax.contrib.schedule_free_eval_params(their_state, y)
    for name, a in expected.items():
        np.testing.assert_allclose(x[name], a, atol=1e-5)


def test_groups_have_their_own_rate_decay_and_optimizer():
    groups = (
        ParameterGroup("*.query.*", learning_rate_factor=3.0, weight_decay=0.0),
        ParameterGroup("*.bias", optimizer="sgd", weight_decay=0.5),
    )
    plain = first_update(TrainingConfig(weight_decay=0.1))
    grouped = first_update(TrainingConfig(weight_decay=0.1, groups=groups))
    parameters = drawn()
    slopes = gradients(parameters, 1)
    for name, update in grouped.items():
        expected = plain[name]
        if ".query." in name:
            expected = 3.0 * (expected + 0.1 * parameters[name] * name.endswith("kernel"))
        elif name.endswith(".bias"):
            expected = -(slopes[name] + 0.5 * parameters[name])
        np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-6)
    rules = parameter_rules(TrainingConfig(weight_decay=0.1, groups=groups), parameters)
    assert rules[QUERY].endswith("decay 0, learning rate x 3")
    assert rules["head.bias"].endswith("sgd, decay 0.5")


def test_patterns_of_what_low_rank_freezes_are_an_error():
    config = TrainingConfig(trainable=QUERY, low_rank=LowRank("*.attention.*"))
    with pytest.raises(ValueError, match="which are frozen"):
        check_patterns(config, drawn())


TOKENS = jnp.arange(64) % 7


def make_trainer(**settings):
    task = generator_task(dataclasses.replace(MODEL, bias=False))  # fewer arrays to compile
    return Trainer(task, TrainingConfig(**settings), TOKENS, jax.local_devices()[:1])


LORA = {"low_rank": LowRank("*.attention.*", rank=2), "trainable": "*.lora_*"}
SOME = {"trainable": "*.query.* head.*"}


@pytest.mark.parametrize(
    "settings", [SOME | {"optimizer": "muon"}, SOME | {"optimizer": optax.sgd}, LORA]
)
def test_frozen_parameters_stay_and_have_no_optimizer_state(settings):
    trainer = make_trainer(batch_size=4, learning_rate=1e-2, weight_decay=0.1, **settings)
    state = trainer.init()
    before = {name: np.asarray(a) for name, a in state.parameters.items()}
    state, _ = trainer.train(state, 0, 3)
    changed = {n for n, a in state.parameters.items() if not np.array_equal(a, before[n])}
    patterns = settings["trainable"].split()
    assert changed == {n for n in before if any(fnmatch(n, pattern) for pattern in patterns)}
    slots = jax.tree_util.tree_flatten_with_path(state.optimizer)[0]
    assert {path[-1].key for path, _ in slots if hasattr(path[-1], "key")} <= changed


@pytest.mark.parametrize("word", ["adafactor", "schedule_free"])
def test_optimizers_with_a_state_of_their_own_learn_a_sequence(word):
    trainer = make_trainer(batch_size=8, learning_rate=2e-2, optimizer=word)
    _, history = trainer.train(trainer.init(), 0, 60)
    assert history["loss"][-1, 0] < 0.8 * history["loss"][0, 0]


def test_states_of_all_optimizers_are_saved_and_restored():
    for word in OPTIMIZERS:
        state = make_trainer(optimizer=word).abstract_state
        named = to_named(state)
        assert len(named.get("optimizer", {})) == len(jax.tree.leaves(state.optimizer)), word
        assert from_named(state, named) == state


def test_weight_decay_of_a_function_is_not_that_of_the_config():
    """A function whose default differs from the decay of the config or a group is an error."""
    head = (ParameterGroup("head.*", weight_decay=0.1),)
    TrainingConfig(optimizer=optax.adamw)
    for settings in ({"weight_decay": 0.1}, {"groups": head}):
        TrainingConfig(optimizer=functools.partial(optax.adamw, weight_decay=0.0), **settings)
        with pytest.raises(ValueError, match="adamw of optax has weight_decay=0"):
            TrainingConfig(optimizer=optax.adamw, **settings)


def test_initial_values_are_drawn_by_word_and_group():
    zeros = jax.nn.initializers.zeros
    inits = {"head.*": zeros, "*_norm.scale": zeros, "blocks.0.attention.query.*": "default"}
    groups = tuple(ParameterGroup(pattern, init=init) for pattern, init in inits.items())
    arrays = make_trainer(init="gpt2", groups=groups, seeds=2).init().parameters
    for name in ("head.kernel", "blocks.0.attention_norm.scale"):
        assert not np.asarray(arrays[name]).any()
    np.testing.assert_array_equal(arrays[QUERY], make_trainer(seeds=2).init().parameters[QUERY])
    kernel = np.asarray(arrays[HIDDEN])
    assert np.std(kernel) == pytest.approx(0.02, rel=0.2)
    assert not np.array_equal(kernel[0], kernel[1])
