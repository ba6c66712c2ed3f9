"""A prefetching loader trains as a dataset on the devices, for any devices and calls."""

import contextlib
import copy
import dataclasses
import functools
import threading

import jax
import numpy as np
import pytest

from tests.helpers.arrays import host_copy
from tlite.errors import UserError
from tlite.models import GeneratorConfig
from tlite.training import Trainer, TrainingConfig, generator_task
from tlite.training.loader import DeviceDataset, PrefetchingLoader, map_dataset
from tlite.training.step import Buckets

MODEL = GeneratorConfig(vocabulary_size=11, context=8, width=8, num_heads=2, num_blocks=1)
TRAINING = TrainingConfig(steps=12, batch_size=8, learning_rate=1e-3)
TOKENS = np.random.default_rng(0).integers(0, 11, 500).astype(np.uint16)


def starts(seed, step, number):
    return np.random.default_rng((seed, step)).integers(0, len(TOKENS) - 9, number)


def read(seed, step, rows):
    """Return windows that depend on seed, step and row alone."""
    chosen = starts(seed, step, TRAINING.gradient_accumulation_steps * TRAINING.batch_size)[rows]
    return TOKENS[chosen[:, None] + np.arange(9)]


def streamed(num_devices=1, read=read, task=None, **changes):
    training = dataclasses.replace(TRAINING, **changes)
    devices = jax.local_devices()[:num_devices]
    loader = lambda config, mesh: PrefetchingLoader(read, config, mesh)  # noqa: E731
    return Trainer(task or generator_task(MODEL), training, loader, devices)


def resident():
    """Return a trainer that draws the same windows from a dataset on the devices."""
    table = np.stack([starts(0, step, 8) for step in range(TRAINING.steps)])
    task = generator_task(MODEL)

    def draw(data, rng, step, size):
        tokens, table = data
        windows = tokens[table[step][:, None] + np.arange(9)]
        return windows[:, :-1], windows[:, 1:]

    data = TOKENS.astype(np.int32), table.astype(np.int32)
    return Trainer(task._replace(draw=draw), TRAINING, data, jax.local_devices()[:1])


def run(trainer, *parts, replicas=None):
    """Train from `replicas`, or from the first state of seed 0, which is compiled once."""
    replicas = trainer.place(start()) if replicas is None else replicas
    step, losses = 0, []
    for num_steps in parts:
        replicas, history = trainer.train(replicas, step, num_steps)
        losses.append(history["loss"])
        step += num_steps
    return replicas.parameters, np.concatenate(losses)


@functools.cache
def alone():
    """Return a trainer on one device, compiled once for all of its runs."""
    trainer = streamed()
    trainer.compile()
    return trainer


start = functools.cache(lambda: host_copy(alone().init()))
run_alone = functools.cache(lambda: run(alone(), 12))


def like_alone(make_loader=None, **changes):
    """Return a trainer with the same program and another loader, seed or learning rate."""
    trainer = copy.copy(alone())
    trainer.config = dataclasses.replace(TRAINING, **changes)
    make_loader = make_loader or functools.partial(PrefetchingLoader, read)
    trainer.loader = make_loader(trainer.config, trainer.mesh)
    return trainer


def test_streamed_is_resident_bit_for_bit():
    one, other = run_alone(), run(resident(), 12)
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize(
    ("num_devices", "changes"), [(2, {"per_device_batch_size": 2}), (4, {"sharding": "fsdp"})]
)
def test_devices_and_small_buffers_do_not_change_the_batches(num_devices, changes, monkeypatch):
    expected = run_alone()[1]  # computed first, with the default buffer size
    monkeypatch.setattr("tlite.training.sharding.MIN_SHARDED_SIZE", 64)
    monkeypatch.setattr("tlite.training.loader.MAX_BUFFER_BYTES", 3 * 8 * 9 * 2)
    trainer = streamed(num_devices, **changes)
    assert trainer.loader.max_steps_per_call == 3
    np.testing.assert_allclose(run(trainer, 3, 3, 2, 3, 1)[1], expected, atol=1e-5)


def test_each_seed_reads_its_own_batches():
    trainer = streamed(4, seeds=2)
    together = run(trainer, 6, replicas=trainer.init())[1]
    assert together.shape == (6, 2)
    last = like_alone(seed=1)
    last = run(last, 6, replicas=last.init())[1]
    for replica, expected in ((0, run_alone()[1][:6]), (1, last)):
        np.testing.assert_allclose(together[:, [replica]], expected, atol=1e-5)


def test_the_buckets_of_a_task_do_not_mix_the_batches_of_seeds():
    plain, task = streamed(seeds=2), generator_task(MODEL)._replace(buckets=Buckets(None, (), 1))
    expected = run(plain, 3, replicas=plain.init())[1]
    trainer = streamed(task=task, seeds=2)
    np.testing.assert_array_equal(run(trainer, 3, replicas=trainer.init())[1], expected)


def test_batches_are_read_ahead_and_errors_raised_in_their_call():
    steps, ahead = [], threading.Event()

    def read_and_log(seed, step, rows):
        steps.append(step)
        if step == 5:
            ahead.set()
        if step > 5:
            raise UserError("can't read train.bin: Input/output error")
        return read(seed, step, rows)

    loader = streamed(read=read_and_log).loader
    loader.batches(0, 5)
    assert ahead.wait(timeout=30)  # without another call
    with pytest.raises(UserError, match="can't read"):
        loader.batches(5, 3)
    loader.close()
    assert len(steps) == len(set(steps)) + 1  # the first is read once more, for its shape


def test_a_closed_loader_can_be_read_again():
    with contextlib.closing(streamed().loader) as loader:
        before = loader.batches(3, 2)
        loader.close()
        np.testing.assert_array_equal(before, loader.batches(3, 2))


def test_devices_of_a_cpu_share_one_copy_of_the_data():
    data = np.arange(2**20, dtype=np.int32)[1:], np.arange(7)
    devices = np.array(jax.local_devices()).reshape(1, 4)
    mesh = jax.sharding.Mesh(devices, resident().mesh.axis_names)
    for array, expected in zip(DeviceDataset(data, mesh).batches(0, 1), data, strict=True):
        shards = [shard.data for shard in array.addressable_shards]
        assert len(shards) == 4
        assert len({shard.unsafe_buffer_pointer() for shard in shards}) == 1
        for shard in shards:
            np.testing.assert_array_equal(shard, expected)


def test_a_grain_mixture_trains_and_resumes_bit_for_bit():
    """Mix two shuffled datasets with different tokens."""
    import grain

    def mixture(seed):
        cycle = (np.arange(5)[:, None] + np.arange(9)) % 5
        parts = [grain.MapDataset.source(list(np.uint16(cycle + first))) for first in (0, 6)]
        parts = [part.shuffle(seed=seed).repeat() for part in parts]
        return grain.MapDataset.mix(parts, weights=[0.75, 0.25])

    trainer = like_alone(map_dataset(mixture))
    undisturbed, losses = run(trainer, 12)
    assert losses[-1] < losses[0]
    state, _ = trainer.train(trainer.place(start()), 0, 5)
    state = host_copy(state)
    trainer = like_alone(map_dataset(mixture))
    resumed, _ = trainer.train(trainer.place(state), 5, 7)
    jax.tree.map(np.testing.assert_array_equal, resumed.parameters, undisturbed)
