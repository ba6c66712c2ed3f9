import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from tlite.models import GeneratorConfig, Loop
from tlite.planning.hlo import exchanged
from tlite.training import Trainer, TrainingConfig, generator_task, validation_batches
from tlite.training.loop import validate
from tlite.training.placement import make_mesh, partition, whole

TOKENS = np.random.default_rng(9).integers(0, 16, 500)
MODEL = GeneratorConfig(
    vocabulary_size=16, context=8, width=16, num_heads=4, num_blocks=1, block="pre_norm"
)
SCANNED = dataclasses.replace(MODEL, num_blocks=2, loop=Loop(scan=True, remat=True))
# With so large an epsilon Adam's steps are 0.1 of the gradient. As it is used it would not notice a
# gradient that is a sum in place of a mean; and what is clipped hides that, too.
TRAINING = TrainingConfig(batch_size=8, learning_rate=1e2, adam_epsilon=1e3, weight_decay=1e-4)
MUON = {"optimizer": "muon", "learning_rate": 1e-4, "adam_epsilon": 1e-8, "clip_norm": 1.0}


@pytest.fixture
def small_is_large(monkeypatch):
    """Arrays of 64 elements or more are divided."""
    monkeypatch.setattr("tlite.training.placement.WHOLE_BELOW", 64)


@functools.cache
def make_trainer(num_devices=1, model=MODEL, **changes):
    """Compiled once for all of its runs."""
    training = dataclasses.replace(TRAINING, **changes)
    devices = jax.local_devices()[:num_devices]
    return Trainer(generator_task(model), training, jnp.asarray(TOKENS), devices)


@functools.cache
def run(trainer, num_steps=4):
    members, history = trainer.train(trainer.init(), 0, num_steps)
    return members, history["loss"]


def assert_close(one, other):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-5),
        one.parameters,
        other.parameters,
    )


def test_sharding_changes_no_number(small_is_large):
    shared = {"accumulate": 2, "batch_size": 4, "model_devices": 2, "placement": "sharded"}
    members, losses = run(make_trainer(4, SCANNED, **shared))
    parts = [a.addressable_shards[0].data.size / a.size for a in members.parameters.values()]
    assert min(parts) == pytest.approx(1 / 4)
    expected, expected_losses = run(make_trainer(1, SCANNED))
    assert_close(members, expected)
    np.testing.assert_allclose(losses, expected_losses, atol=1e-5)


def test_sharded_members_train_as_each_alone(small_is_large):
    together, losses = run(make_trainer(4, placement="sharded", seeds=2, **MUON))
    for member in range(2):
        alone, own = run(make_trainer(seed=member, **MUON))
        one = together._replace(
            parameters={n: np.asarray(a)[[member]] for n, a in together.parameters.items()}
        )
        assert_close(one, alone)
        np.testing.assert_allclose(losses[:, [member]], own, atol=1e-5)


def test_validation_of_a_sharded_model_is_that_of_one_device(small_is_large):
    sharded = make_trainer(4, placement="sharded", seeds=2, **MUON)
    found, expected = (
        validate(
            trainer,
            run(trainer)[0].parameters,
            validation_batches(TOKENS, MODEL.context, 4, trainer.num_shards),
        )
        for trainer in (sharded, make_trainer(seed=0, **MUON))
    )
    assert found["loss"][0] == pytest.approx(expected["loss"][0], abs=1e-5)


def test_a_replicated_model_has_one_exchange_and_gathers_nothing():
    """The gradient of all, the loss, the accuracy and their counts."""
    trainer = make_trainer(2)
    expected = {"all-reduce": (1, 4 * (trainer.num_parameters + 4))}
    assert exchanged(trainer.lower().compile().as_text()) == expected


def test_members_exchange_nothing_with_each_other():
    assert exchanged(make_trainer(2, seeds=2).lower().compile().as_text()) == {}


@pytest.mark.parametrize(
    ("num_devices", "seeds", "settings", "shape"),
    [
        (4, 1, {}, (1, 4, 1)),
        (4, 2, {}, (2, 2, 1)),
        (4, 8, {}, (4, 1, 1)),
        (4, 1, {"batch_size": 6}, (1, 2, 1)),
        (4, 1, {"model_devices": 2}, (1, 4, 1)),
        (4, 1, {"model_devices": 2, "placement": "sharded"}, (1, 2, 2)),
        (4, 2, {"model_devices": 8, "placement": "sharded"}, (2, 1, 2)),
    ],
)
def test_the_mesh_has_members_then_the_batch_then_the_model(num_devices, seeds, settings, shape):
    config = dataclasses.replace(TRAINING, seeds=seeds, **settings)
    mesh = make_mesh(jax.local_devices()[:num_devices], config, 10**6, config.batch_size)
    assert tuple(mesh.shape.values()) == shape


def test_large_models_are_divided_without_being_asked():
    for size, shape in {10**6: (1, 4, 1), 10**9: (1, 2, 2)}.items():
        config = dataclasses.replace(TRAINING, model_devices=2)
        assert (
            tuple(make_mesh(jax.local_devices(), config, size, config.batch_size).shape.values())
            == shape
        )


def test_the_table_of_a_gpt():
    shapes = {
        "blocks.0.attention.query.kernel": (1600, 1600),
        "blocks.0.feed_forward.hidden.kernel": (1600, 6400),
        "blocks.0.feed_forward.output.kernel": (6400, 1600),
        "blocks.0.feed_forward.output.bias": (1600,),
        "embedding.table": (50304, 1600),
        "odd": (511, 511),
    }
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    mesh = AbstractMesh((1, 64, 4), ("member", "data", "model"))
    assert partition(shapes, mesh) == {
        "blocks.0.attention.query.kernel": PartitionSpec("data", "model"),
        "blocks.0.feed_forward.hidden.kernel": PartitionSpec("model", "data"),
        "blocks.0.feed_forward.output.kernel": PartitionSpec("data", "model"),
        "blocks.0.feed_forward.output.bias": PartitionSpec(),
        "embedding.table": PartitionSpec("data", "model"),
        "odd": PartitionSpec(None, None),
    }
    assert whole(shapes, mesh) == ["odd"]
    for name, spec in partition(shapes, AbstractMesh((1, 256, 1), mesh.axis_names)).items():
        for size, axes in zip(shapes[name].shape, spec, strict=False):
            over = math.prod(
                mesh.shape[a] for a in ([axes] if isinstance(axes, str) else axes or ())
            )
            assert size % over == 0
