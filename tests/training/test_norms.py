"""Norms among the metrics: what they are, on whatever devices, and only where asked."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import host_copy
from tlite.models import GeneratorConfig
from tlite.training import Trainer, TrainingConfig, generator_task, validation_batches
from tlite.training.loop import fit
from tlite.training.metrics import read_metrics
from tlite.training.step import BATCH, fold_in

NORMS = {"gradient_norm", "parameter_norm", "update_ratio"}
TOKENS = np.random.default_rng(9).integers(0, 11, 300)
MODEL = GeneratorConfig(
    vocabulary_size=11, context=8, width=8, num_heads=2, num_blocks=1, dropout=0.0
)
TRAINING = TrainingConfig(
    steps=4,
    batch_size=8,
    learning_rate=1e-2,
    seeds=2,
    clip_norm=1e-3,
    evaluate_every=4,
    norms=True,
)


def make_trainer(num_devices=1, **changes):
    training = dataclasses.replace(TRAINING, **changes)
    devices = jax.local_devices()[:num_devices]
    return Trainer(generator_task(MODEL), training, jnp.asarray(TOKENS), devices)


def length(arrays):
    """Of each member's arrays (M, ...)."""
    squares = [(np.asarray(a, np.float64) ** 2).reshape(len(a), -1).sum(1) for a in arrays]
    return np.sqrt(sum(squares))


def stepped(trainer, members, num_steps=3):
    found = []
    for step in range(num_steps):
        members, history = trainer.train(members, step, 1)
        found.append({name: values[0] for name, values in history.items()})
    return members, found


@functools.cache
def plain():
    """A trainer that is compiled once, and its members at the start."""
    trainer = make_trainer()
    return trainer, host_copy(trainer.init())


def test_norms_are_of_the_gradient_before_clipping_and_of_what_is_moved():
    trainer, start = plain()
    before = start.parameters

    @jax.jit
    @jax.grad
    def gradient_of(parameters):
        batch = trainer.task.draw(jnp.asarray(TOKENS), fold_in(jax.random.key(0), BATCH), 0, 8)
        total, count = trainer.task.loss(trainer._to_model(parameters), batch, None)["loss"]
        return total / count

    gradient = gradient_of({name: a[0] for name, a in before.items()})
    members, (history,) = stepped(trainer, trainer.place(start), 1)
    moved = [np.asarray(members.parameters[n], np.float64) - a for n, a in before.items()]
    assert history["gradient_norm"][0] == pytest.approx(
        length(a[None] for a in gradient.values())[0], rel=1e-4
    )
    np.testing.assert_allclose(history["parameter_norm"], length(before.values()), rtol=1e-5)
    ratio = length(moved) / length(before.values())
    np.testing.assert_allclose(history["update_ratio"], ratio, rtol=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 2, "accumulate": 4},
        {"placement": "sharded", "model_devices": 2, "seeds": 1},
    ],
)
def test_norms_do_not_depend_on_how_it_is_computed(changes, monkeypatch):
    monkeypatch.setattr("tlite.training.placement.WHOLE_BELOW", 64)  # so that arrays are divided
    trainer, start = plain()
    _, expected = stepped(trainer, trainer.place(start))
    divided = make_trainer(4, **changes)
    assert divided.num_shards == 4 // divided.mesh.shape["member"] > 1
    start = jax.tree.map(lambda a: a[: divided.config.seeds], start)
    _, found = stepped(divided, divided.place(start))
    for one, other in zip(found, expected, strict=True):
        for name in NORMS:
            members = len(one[name])
            np.testing.assert_allclose(one[name], other[name][:members], rtol=1e-3)


def test_training_lines_have_norms_where_asked_and_training_is_the_same(tmp_path):
    states = []
    for trainer in (plain()[0], make_trainer(norms=False)):
        asked = trainer.config.norms
        folder = tmp_path / str(asked)
        folder.mkdir()
        batches = validation_batches(TOKENS, MODEL.context, 8, 1)
        start = trainer.place(plain()[1])
        states.append(fit(trainer, folder, batches, MODEL.context, lambda at=start: at).parameters)
        for line in read_metrics(folder / "metrics.jsonl"):
            expected = NORMS if asked and line["split"] == "training" else set()
            assert NORMS & line.keys() == expected
            assert all(len(line[f"{name}_members"]) == 2 for name in expected)
    for name, array in states[0].items():
        np.testing.assert_allclose(array, states[1][name], atol=1e-6)
