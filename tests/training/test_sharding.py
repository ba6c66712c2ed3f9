"""Mesh and partition specs; a lack of memory is an error before anything is allocated."""

import dataclasses
import os
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from tests.helpers.complaints import complaint
from tlite.data import BuiltinText
from tlite.errors import UserError
from tlite.experiment import GeneratorExperiment
from tlite.models import GeneratorConfig
from tlite.runs import Run
from tlite.training import Trainer, TrainingConfig, generator_task, sharding
from tlite.training.sharding import (
    check_fits,
    free_memory,
    make_mesh,
    out_of_memory,
    partition,
    unsharded_arrays,
)

MODEL = GeneratorConfig(
    vocabulary_size=5, context=8, width=8, num_heads=2, num_blocks=1, dropout=0.0
)
TRAINING = TrainingConfig(steps=2, batch_size=8, precision="float32")
TOKENS = jnp.asarray(np.tile(np.arange(5), 20))


@pytest.mark.parametrize(
    ("settings", "shape", "warning"),
    [
        ({}, (1, 4), None),
        ({"seeds": 2}, (2, 2), None),
        ({"seeds": 8}, (4, 1), None),
        ({"batch_size": 6}, (1, 2), "not divisible by 4 devices: 2 of 4 devices stay idle"),
        ({"batch_size": 5}, (1, 1), "3 of 4 devices stay idle"),
        ({"seeds": 2, "batch_size": 3}, (2, 1), "not divisible by 2 devices: 2 of 4"),
    ],
)
def test_devices_divide_seeds_then_the_batch_and_idle_ones_warn(settings, shape, warning):
    training = dataclasses.replace(TRAINING, **settings)
    trainer = Trainer(generator_task(MODEL), training, TOKENS, jax.local_devices()[:4])
    assert tuple(trainer.mesh.shape.values()) == shape
    assert len(trainer.mesh_warnings) == (warning is not None)
    assert all(warning in line for line in trainer.mesh_warnings)


@dataclasses.dataclass(frozen=True)
class FakeDevice:
    id: int
    process_index: int


def test_processes_with_unequal_devices_use_equally_many():
    devices = [FakeDevice(i, int(i > 3)) for i in range(6)]
    mesh, warnings = make_mesh(devices, TRAINING, 12)
    assert [device.id for device in mesh.devices.flat] == [0, 1, 4, 5]
    assert warnings == [
        "processes have unequal numbers of devices (4, 2): 2 of 6 devices stay idle"
    ]


def test_models_of_268_million_parameters_are_sharded():
    def is_sharded(width, **settings):
        task = generator_task(dataclasses.replace(MODEL, width=width))
        return Trainer(task, dataclasses.replace(TRAINING, **settings), TOKENS).sharded

    assert [is_sharded(width) for width in (8, 2**12, 2**13)] == [False, False, True]
    assert is_sharded(8, sharding="fsdp")
    assert not is_sharded(2**13, sharding="data_parallel")


def test_fsdp_divides_the_longest_divisible_dimension():
    expected = {
        "blocks.0.attention.query.kernel": ((1600, 1600), ("data", None)),
        "blocks.0.feed_forward.hidden.kernel": ((1600, 6400), (None, "data")),
        "blocks.0.feed_forward.output.kernel": ((6400, 1600), ("data", None)),
        "blocks.0.feed_forward.output.bias": ((1600,), (None,)),
        "decoder.blocks.attention.query.kernel": ((64, 1600, 1600), (None, "data", None)),
        "decoder.blocks.feed_forward.output.bias": ((64, 1600), (None, None)),
        "embedding.table": ((50304, 1600), ("data", None)),
        "odd_rows": ((50257, 1600), (None, "data")),
        "odd": ((511, 511), (None, None)),
    }
    shapes = {n: jax.ShapeDtypeStruct(shape, jnp.float32) for n, (shape, _) in expected.items()}
    mesh = AbstractMesh((1, 64), ("replica", "data"))
    assert partition(shapes, mesh) == {n: PartitionSpec(*axes) for n, (_, axes) in expected.items()}
    assert unsharded_arrays(shapes, mesh) == ["odd"]
    alone = partition(shapes, AbstractMesh((1, 1), mesh.axis_names))
    assert not any(any(spec) for spec in alone.values())


@pytest.mark.parametrize(
    ("model", "training", "words"),
    [
        ({"width": 10**9}, {}, r"training 12,0\d\d,.* parameters would need .* GiB"),
        ({"context": 2 * 10**9, "positions": "learned"}, {}, "parameters would need"),
        ({}, {"seeds": 10**8}, r"training 100,000,000 x [\d,]+ parameters would need"),
        ({}, {"batch_size": 10**9}, r"training with a batch of [\d,]+ would need"),
        ({}, {"gradient_accumulation_steps": 10**9}, r"training with a batch of [\d,]+ would need"),
    ],
)
def test_a_lack_of_memory_is_an_error_with_both_sizes(model, training, words):
    task = generator_task(dataclasses.replace(MODEL, **model))
    trainer = Trainer(task, dataclasses.replace(TRAINING, **training), TOKENS)
    assert re.search(words + r".*and [\d,.]+ GiB are free$", complaint(trainer.compile))


def test_the_check_of_memory_counts_the_data(monkeypatch, tmp_path):
    trainer = Trainer(generator_task(MODEL), TRAINING, np.zeros(2**20, np.int32), jax.devices()[:1])
    monkeypatch.setattr(sharding, "free_memory", lambda: 2**22 + 2**20)
    trainer.check_fits()
    monkeypatch.setattr(sharding, "free_memory", lambda: 2**22 - 1)
    assert "would need" in complaint(trainer.check_fits)
    # A run that does not fit leaves no folder.
    model = dataclasses.replace(MODEL, vocabulary_size=0, width=2**10)
    large = GeneratorExperiment("large", BuiltinText(), model, TRAINING)
    assert "would need" in complaint(Run.create, large, tmp_path / "run")
    assert not [*tmp_path.iterdir()]


def test_devices_of_a_cpu_share_its_memory(monkeypatch):
    """Each GPU has its own memory; that of a TPU is unknown."""
    monkeypatch.setattr(sharding, "free_memory", lambda: 2**30)
    memory = {"gpu": {"bytes_limit": 2**31, "bytes_in_use": 2**30}, "tpu": None, "cpu": None}
    cpu, gpu, tpu = (
        SimpleNamespace(platform=name, memory_stats=lambda name=name: memory[name])
        for name in ("cpu", "gpu", "tpu")
    )
    for size, devices in ((2**30, [cpu]), (2**30, [gpu, gpu]), (2**60, [tpu])):
        check_fits("it", size, devices)
    for size, devices in ((2**30, [cpu, cpu]), (2**30 + 1, [gpu])):
        assert "and 1.0 GiB are free" in complaint(check_fits, "it", size, devices)


def test_free_memory_is_the_machines_or_its_control_groups(monkeypatch, tmp_path):
    real = free_memory()
    monkeypatch.setattr(sharding, "Path", lambda path: tmp_path / path.removeprefix("/"))
    assert free_memory() is None

    def write(path, content):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)

    write("proc/meminfo", "MemTotal: 900 kB\nMemFree: 100 kB\nMemAvailable: 500 kB\n")
    assert free_memory() == 500 * 1024
    write("sys/fs/cgroup/memory.max", "max\n")  # no limit
    write("sys/fs/cgroup/memory.current", "300000\n")
    write("sys/fs/cgroup/memory.stat", "anon 200000\ninactive_file 60000\nactive_file 40000\n")
    assert free_memory() == 500 * 1024
    write("sys/fs/cgroup/memory.max", "400000\n")
    assert free_memory() == 400000 - 300000 + 60000 + 40000
    if real is not None:
        assert 0 < real <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), UserError),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), UserError),
        (jax.errors.JaxRuntimeError("INTERNAL: a bug"), jax.errors.JaxRuntimeError),
    ],
)
def test_a_failed_allocation_is_a_user_error_and_a_bug_is_not(error, expected):
    with pytest.raises(expected), out_of_memory("a step"):
        raise error
