import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tlite.comparison.flops import flops_of_generator
from tlite.errors import UserError
from tlite.experiment import ClassifierExperiment, GeneratorExperiment
from tlite.models import GeneratorConfig, LMHead
from tlite.planning.plan import (
    bytes_on_a_device,
    collectives,
    count_devices,
    plan,
    planned_trainer,
)
from tlite.runs.experiment_files import load_experiment
from tlite.training import Trainer, TrainingConfig, generator_task
from tlite.training.loader import PrefetchingLoader

SIZES = {"vocabulary_size": 64, "context": 16, "width": 32, "num_heads": 2, "num_blocks": 1}
MODEL = GeneratorConfig(**SIZES, dropout=0.0, head=LMHead(tied=True))
TRAINING = TrainingConfig(batch_size=16, per_device_batch_size=2, steps=10)
EXPERIMENT = GeneratorExperiment("small", model=MODEL, training=TRAINING)


def planned(capsys, experiment=EXPERIMENT, devices=4, parameters=False, **changes):
    training = dataclasses.replace(experiment.training, **changes)
    plan(
        dataclasses.replace(experiment, training=training),
        devices,
        hardware="a100",
        parameters=parameters,
    )
    return capsys.readouterr().out


def test_a_plan_describes_the_program_of_the_trainer(capsys):
    """The bytes of arguments and of temporary arrays equal those of a trainer with data."""
    out = planned(capsys, parameters=True)
    assert re.search(
        r"blocks\.\*\.attention\.key\.kernel +\(32, 32\) +float32, adamw, decay 0", out
    )

    def read(seed, step, rows):
        return np.zeros((rows.stop - rows.start, 17), np.uint16)

    feed = lambda config, mesh: PrefetchingLoader(read, config, mesh)  # noqa: E731
    trainer = Trainer(generator_task(EXPERIMENT.model), EXPERIMENT.training, feed)
    replicas = trainer.init()
    state_bytes = sum(a.nbytes for a in jax.tree.leaves((replicas.parameters, replicas.optimizer)))
    planned_one = planned_trainer(EXPERIMENT.model, EXPERIMENT.training, jax.devices())
    sizes = bytes_on_a_device(planned_one, planned_one.lower().compile())
    assert sizes["parameters"] + sizes["optimizer"] == state_bytes
    memory = trainer.lower().compile().memory_analysis()
    needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    needed += memory.output_size_in_bytes - memory.alias_size_in_bytes
    buffer = trainer.loader.max_steps_per_call * 16 * 17 * 2 // 4  # bytes of the batches of a call
    assert sizes["in all"] == pytest.approx(needed - buffer, rel=0.02)
    assert "4 of 4 a100 devices: " in out
    assert "16 examples, 256 tokens; 2 on a device at a time, 2 times" in out
    assert "4 data, parameters replicated" in out
    assert re.search(r"[12] all-reduce", out)
    assert "all-gather" not in out


def test_arrays_that_cannot_be_sharded_are_named(capsys, monkeypatch):
    monkeypatch.setattr("tlite.training.sharding.MIN_SHARDED_SIZE", 64)
    model = dataclasses.replace(EXPERIMENT.model, vocabulary_size=61, context=15, width=30)
    experiment = dataclasses.replace(EXPERIMENT, model=model)
    assert "not sharded" not in planned(capsys, sharding="fsdp")
    out = planned(capsys, experiment, sharding="fsdp")
    assert "not sharded, as no axis is divisible: " in out
    assert "blocks.*.attention.key.kernel" in out
    assert "all-gather" in out


def test_flops_are_those_of_the_program():
    """6 N + 12 L D T against XLA's own count of a model without a scan."""
    model = dataclasses.replace(EXPERIMENT.model, num_blocks=2, width=64, dropout=0.0)
    task = generator_task(model)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    batch = tuple(jax.ShapeDtypeStruct((8, 16), np.int32) for _ in range(2))

    def gradient(parameters, batch):
        return jax.grad(lambda p: task.loss(p, batch, None)["loss"][0])(parameters)

    counted = jax.jit(gradient).lower(shapes, batch).compile().cost_analysis()["flops"]
    assert flops_of_generator(model) * 8 * 16 == pytest.approx(counted, rel=0.03)


NUMBERS = {(0, None): 1, (8, None): 8, (0, "v5e:4x8"): 32, (64, "v5e:16x16"): 64}
BAD_SLICES = "v5e", "v5e:", "v5e:8", "v9:2x2", "v5e:0x4", "../x:2x2"


def test_devices_are_counted_and_invalid_slices_are_errors():
    assert {arguments: count_devices(*arguments) for arguments in NUMBERS} == NUMBERS
    for tpu in BAD_SLICES:
        with pytest.raises(UserError, match="--tpu"):
            count_devices(0, tpu)
    with pytest.raises(UserError, match="--devices must be at most 4, not 5"):
        plan(EXPERIMENT, 5)


def test_impossible_plans_are_errors():
    with pytest.raises(UserError, match="only generators"):
        plan(ClassifierExperiment("c"), 8)
    with pytest.raises(UserError, match="only generators"):
        plan(load_experiment("masked_language_model"), 1)
    with pytest.raises(UserError, match="--vocabulary-size"):
        plan(GeneratorExperiment("g"), 8)
    for hardware, utilisation in [("abacus", 0.4), ("a100", 0.0), ("a100", 1.5)]:
        with pytest.raises(UserError, match=r"--(hardware|utilisation)"):
            plan(EXPERIMENT, 4, hardware=hardware, utilisation=utilisation)


TPU = """
HloModule jit_step

%cond (p: (s32[], f32[8])) -> pred[] {
  %p = (s32[]{:T(128)}, f32[8]{0:T(8)}) parameter(0)
  %c = s32[]{:T(128)} constant(12)
  ROOT %less = pred[]{:T(512)} compare(%i, %c), direction=LT
}

%inner (x: f32[8]) -> f32[8] {
  %s = (bf16[4,96]{1,0:T(8,128)(2,1)}, bf16[8,96]{1,0}) all-gather-start(%x), dims={0}
  ROOT %d = bf16[8,96]{1,0:T(8,128)(2,1)} all-gather-done(%s)
}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %r = f32[8]{0:T(8)} fusion(%p), kind=kLoop, calls=%inner
  ROOT %t = (s32[]{:T(128)}, f32[8]{0:T(8)}) tuple(%i, %r)
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %w = (s32[]{:T(128)}, /*index=1*/f32[8]{0:T(8)}) while(%a), condition=%cond, body=%body
  ROOT %sum = f32[8]{0:T(8)} all-reduce(%w), to_apply=%add
}
"""


def test_collectives_in_a_loop_count_for_each_iteration():
    """An asynchronous collective, start and done, counts once."""
    gathered = 12 * 8 * 96 * 2
    assert collectives(TPU) == {"all-reduce": (1, 32), "all-gather": (12, gathered)}


def test_exchanges_of_a_program_equal_those_by_hand():
    mesh = Mesh(np.array(jax.local_devices()), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    replicated = NamedSharding(mesh, PartitionSpec())

    def step(x, matrix):
        def body(carry, _):
            x, matrix = carry
            # Each iteration gathers all rows of the matrix, and sums its change over devices.
            gathered = jax.lax.with_sharding_constraint(matrix, replicated)
            x = jax.lax.with_sharding_constraint(x @ gathered, rows)
            return (x, jax.lax.with_sharding_constraint(matrix + x.T @ x, rows)), None

        return jax.lax.scan(body, (x, matrix), None, 5)[0]

    arrays = [jax.ShapeDtypeStruct((8, 64), jnp.float32, sharding=rows)]
    arrays.append(jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=rows))
    exchanges = collectives(jax.jit(step).lower(*arrays).compile().as_text())
    assert exchanges["all-gather"] == (5, 5 * 64 * 64 * 4)
    assert exchanges["all-reduce"] == (5, 5 * 64 * 64 * 4)
