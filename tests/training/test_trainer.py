"""Devices, shards, micro-batches, calls and seeds in parallel do not change the numbers."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.helpers.arrays import host_copy
from tests.helpers.complaints import complaint
from tlite.errors import UserError
from tlite.models import FeedForward, GeneratorConfig, Loop
from tlite.models.parameters import unstack_blocks
from tlite.planning.plan import collectives
from tlite.training import (
    AdamW,
    Muon,
    ParameterGroup,
    Trainer,
    TrainingConfig,
    generator_task,
    validation_batches,
)
from tlite.training.optimizers import parameter_rules
from tlite.training.step import BATCH, fold_in

TOKENS = np.random.default_rng(9).integers(0, 16, 500)
SIZES = {"context": 8, "width": 16, "num_heads": 4, "num_blocks": 1}
# Without biases, so that few arrays have to be compiled.
MODEL = GeneratorConfig(vocabulary_size=16, **SIZES, bias=False)
SCANNED = dataclasses.replace(MODEL, num_blocks=2, loop=Loop(scan=True, remat=True))
# Adam, and clipping, would hide a gradient that is a sum instead of a mean.
TRAINING = TrainingConfig(batch_size=8, learning_rate=0.1, optimizer="sgd", weight_decay=1e-4)
SEVERAL = {"seeds": 2, "clip_norm": 0.5}
MUON = {"optimizer": Muon(), "learning_rate": 1e-4, "clip_norm": 1.0, "weight_decay": 0.1}
SHARDED = {"sharding": "fsdp"}


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    """Let FSDP shard arrays of 64 or more elements."""
    monkeypatch.setattr("tlite.training.sharding.MIN_SHARDED_SIZE", 64)


@functools.cache
def make_trainer(num_devices=1, model=MODEL, **changes):
    """Return a trainer, compiled once for all of its runs."""
    training = dataclasses.replace(TRAINING, **changes)
    devices = jax.local_devices()[:num_devices]
    return Trainer(generator_task(model), training, jnp.asarray(TOKENS), devices)


start_of = functools.cache(lambda trainer: host_copy(trainer.init()))


def begin(trainer, like=None):
    """Return the state before the first step, or that of another trainer with equal parameters."""
    return trainer.place(start_of(like or trainer))


@functools.cache
def run(trainer, parts=(10,), like=None):
    """Return all parameters of each seed as one row, and the losses of each step."""
    replicas, step, history = begin(trainer, like), 0, []
    for num_steps in parts:
        replicas, losses = trainer.train(replicas, step, num_steps)
        history.append(losses["loss"])
        step += num_steps
    arrays = [*replicas.parameters.values(), *(replicas.ema or {}).values()]
    rows = [np.asarray(a).reshape(len(a), -1) for a in arrays]
    return np.concatenate(rows, axis=1), np.concatenate(history)


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


FOUR_SHARDS = SHARDED | {"gradient_accumulation_steps": 2, "batch_size": 4}


@pytest.mark.parametrize(
    ("num_devices", "changes", "common"),
    [
        (4, {}, SEVERAL),
        (2, {"per_device_batch_size": 1}, {}),
        (4, FOUR_SHARDS, MUON | {"model": SCANNED}),
        (4, SHARDED, {"ema": 0.9}),
    ],
)
def test_devices_and_shards_do_not_change_the_numbers(num_devices, changes, common):
    one, several = make_trainer(**common), make_trainer(num_devices, **common | changes)
    assert_same(run(several, like=one), run(one))


@pytest.mark.parametrize(("limit", "number"), [(1, 4), (3, 2), (4, 1)])
def test_micro_batches_are_equal_and_within_the_limit(limit, number):
    trainer = make_trainer(2, per_device_batch_size=limit)
    assert trainer.config.gradient_accumulation_steps == number


def test_scanned_blocks_are_drawn_and_updated_as_a_list():
    """Muon, AdamW of the rest, bfloat16 and weight decay treat each block's arrays alone."""
    models = dataclasses.replace(SCANNED, loop=Loop()), SCANNED
    plain, scanned = (make_trainer(model=model, **MUON) for model in models)
    mixed = dataclasses.replace(plain.config, precision="mixed")
    rules, stacked_rules = (parameter_rules(mixed, t.shapes) for t in (plain, scanned))
    assert {re.sub(r"blocks\.\d", "blocks", n): r for n, r in rules.items()} == stacked_rules
    for steps in (0, 1):
        replicas = [trainer.train(begin(trainer), 0, steps)[0] for trainer in (plain, scanned)]
        by_list, by_scan = ({n: a[0] for n, a in m.parameters.items()} for m in replicas)
        by_scan = unstack_blocks(by_scan)
        assert by_scan.keys() == by_list.keys()
        for name, array in by_list.items():
            np.testing.assert_allclose(by_scan[name], array, atol=1e-6, err_msg=name)


def test_the_moving_average_equals_its_formula():
    trainer = make_trainer(ema=0.9)
    state, steps = begin(trainer), []
    for step in range(20):
        state, _ = trainer.train(state, step, 1)
        steps.append({name: np.float64(a) for name, a in host_copy(state).parameters.items()})
    weights = 0.9 ** np.arange(19, -1, -1)
    for name, average in state.ema.items():
        expected = np.average([arrays[name] for arrays in steps], axis=0, weights=weights)
        np.testing.assert_allclose(average, expected, rtol=1e-5, atol=1e-7, err_msg=name)
    assert max(np.abs(steps[-1][name] - a).max() for name, a in state.ema.items()) > 1e-3
    state = make_trainer(ema=0.9, trainable="*.attention.*").abstract_state
    assert state.ema.keys() == {name for name in state.parameters if ".attention." in name}


def test_state_and_models_of_a_sharded_run_stay_divided():
    trainer = make_trainer(4, ema=0.9, **SHARDED)
    parameters, averages = begin(trainer).parameters, begin(trainer).ema
    shardings = [{n: a.sharding for n, a in arrays.items()} for arrays in (parameters, averages)]
    assert shardings[0] == shardings[1]
    assert min(a.addressable_shards[0].data.size / a.size for a in parameters.values()) == 1 / 4
    (model,) = trainer.models(parameters)
    kernel = model.blocks[0].feed_forward.hidden.kernel[...]
    assert kernel.addressable_shards[0].data.size == kernel.size / 4
    (alone,) = make_trainer().models(begin(make_trainer(ema=0.9), trainer).parameters)
    tokens = TOKENS[:8]
    np.testing.assert_allclose(jax.jit(model)(tokens), jax.jit(alone)(tokens), atol=1e-5)


def remember_start(learning_rate):
    """An optimizer whose state has the initial parameters."""
    return optax.GradientTransformation(lambda parameters: parameters, lambda g, s, p=None: (g, s))


def test_initial_parameters_replace_drawn_ones():
    trainer = make_trainer(4, seeds=2, ema=0.9, optimizer=remember_start, **SHARDED)
    drawn, table = trainer.init(), np.arange(256.0).reshape(16, 16)
    start = trainer.init({"embedding.table": table})
    tables = np.broadcast_to(table, drawn.parameters["embedding.table"].shape)
    expected = {**drawn.parameters, "embedding.table": tables}
    jax.tree.map(np.testing.assert_array_equal, start.parameters, expected)
    for name, shape in [("embedding.tables", (16, 16)), ("embedding.table", (16,))]:
        with pytest.raises(UserError, match=name):
            trainer.init({name: np.zeros(shape)})
    starts = [a for a in jax.tree.leaves(start.optimizer) if a.shape == tables.shape]
    assert sum(np.array_equal(a, tables) for a in starts) == 1
    assert jax.tree.structure(start) == jax.tree.structure(drawn)
    assert jax.tree.map(lambda a: a.sharding, start) == jax.tree.map(lambda a: a.sharding, drawn)


def test_the_number_of_calls_changes_no_bit():
    for once, in_parts in zip(run(make_trainer()), run(make_trainer(), (1, 6, 3)), strict=True):
        np.testing.assert_array_equal(once, in_parts)


@pytest.mark.parametrize(("num_devices", "sharding"), [(1, {}), (4, SHARDED)])
def test_a_seed_alone_trains_as_among_others(num_devices, sharding):
    parameters, losses = run(make_trainer(num_devices, **SEVERAL, **sharding))
    alone = run(make_trainer(seed=1, clip_norm=SEVERAL["clip_norm"]))
    assert_same(alone, (parameters[[1]], losses[:, [1]]))
    assert (parameters[0] != parameters[1]).any()


@pytest.mark.parametrize("changes", [SEVERAL, SHARDED])
def test_sums_of_examples_are_in_order_and_add_up_on_any_devices(changes):
    results, common = [], {n: v for n, v in changes.items() if n not in SHARDED}
    for trainer in (make_trainer(**common), make_trainer(4, **changes)):
        parameters = begin(trainer, make_trainer(**common)).parameters
        batches = validation_batches(TOKENS, MODEL.context, 8, 4)
        each = trainer.evaluate(parameters, batches, by_example=True)
        for name, sums in trainer.evaluate(parameters, batches).items():
            np.testing.assert_allclose(each[name].sum(1), sums.sum(1), rtol=1e-5)
        np.testing.assert_array_equal(each["count"][0], np.ravel(batches[2].sum(-1)))
        results.append(each["loss"])
    np.testing.assert_allclose(*results, atol=1e-5)
    assert np.unique(results[0]).size > results[0].size // 2


HALF = {"learning_rate_factor": 0.5}
WITHOUT_EFFECT = [
    ("*.lora_*", {}, "matches no parameter"),
    (None, {"*.atention.*": HALF}, "matches no parameter"),
    (None, {"*.bias": HALF, "head.bias": {"weight_decay": 0.1}}, "'*.bias'"),
    ("blocks.*", {"head.*": HALF}, "are frozen"),
    (None, {"*.bias": HALF | {"init": "gpt2"}}, "'*.bias' matches none"),
]


@pytest.mark.parametrize(("trainable", "groups", "message"), WITHOUT_EFFECT)
def test_a_pattern_or_group_without_effect_is_an_error(trainable, groups, message):
    groups = tuple(ParameterGroup(pattern, **fields) for pattern, fields in groups.items())
    config = TrainingConfig(trainable=trainable, groups=groups)
    task = generator_task(dataclasses.replace(MODEL, bias=True))
    assert message in complaint(Trainer, task, config, jnp.asarray(TOKENS))


def test_training_and_validation_are_compiled_once():
    trainer, compilations = make_trainer(4, **SEVERAL), []
    state = begin(trainer)
    batches = validation_batches(TOKENS, MODEL.context, 4, 4)
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compilations.append(event) if "backend_compile" in event else None
    )
    for step, num_steps in ((0, 3), (3, 5), (8, 1), (9, 7)):
        state, _ = trainer.train(state, step, num_steps)
        trainer.evaluate(state.parameters, batches)
        if step == 0:
            compilations.clear()
    assert compilations == []


def test_devices_exchange_one_vector_and_seeds_none(monkeypatch):
    """The vector holds the gradient, the loss, the accuracy and their counts."""
    monkeypatch.undo()
    trainer = make_trainer(2)
    expected = {"all-reduce": (1, 4 * (trainer.num_parameters + 4))}
    assert collectives(trainer.lower().compile().as_text()) == expected
    assert collectives(make_trainer(2, seeds=2).lower().compile().as_text()) == {}


def test_batches_and_noise_differ_by_step_and_seed():
    """With a learning rate of 0 the losses differ by batch and noise alone."""
    trainer = make_trainer(**SEVERAL)
    state = begin(trainer)._replace(learning_rate=jnp.zeros(2))
    state, history = trainer.train(state, 0, 10)
    jax.tree.map(np.testing.assert_array_equal, state.parameters, start_of(trainer).parameters)
    assert len(np.unique(history["loss"])) == history["loss"].size


def test_dropout_of_hidden_units_alone_is_on_in_training():
    config = dataclasses.replace(MODEL, dropout=0.0, feed_forward=FeedForward(dropout=0.5))
    task, windows = generator_task(config), jnp.asarray(TOKENS[:18].reshape(2, 9))

    @jax.jit
    def loss(seed):
        model, batch = task.init(jax.random.key(0)), (windows[:, :-1], windows[:, 1:])
        return task.loss(model, batch, jax.random.split(jax.random.key(seed), 2))["loss"][0]

    first, second = (float(loss(seed)) for seed in range(2))
    assert first != second


def norm(arrays):
    return np.sqrt(sum((np.asarray(a, np.float64) ** 2).sum() for a in arrays))


def test_norms_are_of_the_unclipped_gradient_and_the_update():
    model = dataclasses.replace(MODEL, dropout=0.0)
    rates = {"learning_rate": 1e-2, "optimizer": AdamW(), "clip_norm": 1e-3}
    trainer = make_trainer(log_norms=True, model=model, **rates)
    before = start_of(trainer).parameters

    @jax.jit
    @jax.grad
    def gradient_of(parameters):
        batch = trainer.task.draw(jnp.asarray(TOKENS), fold_in(jax.random.key(0), BATCH), 0, 8)
        total, count = trainer.task.loss(trainer._to_model(parameters), batch, None)["loss"]
        return total / count

    gradient = gradient_of({name: a[0] for name, a in before.items()})
    state, history = trainer.train(begin(trainer), 0, 1)
    updates = [np.asarray(state.parameters[n], np.float64) - a for n, a in before.items()]
    expected = {
        "gradient_norm": norm(gradient.values()),
        "parameter_norm": norm(before.values()),
        "update_ratio": norm(updates) / norm(before.values()),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(history[name][0], value, rtol=1e-3)
