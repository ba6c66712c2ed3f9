"""The comparisons of gpu_check, tiny and on a CPU."""

import jax

from experiments.benchmarks import gpu_check
from experiments.benchmarks.settings import CPU_TRAINING
from tests.helpers.python import python
from tlite.functional import fused_attention
from tlite.training import TrainingConfig

CPU = jax.devices("cpu")[0]
TINY = {"batch": 2, "heads": 2, "length": 8, "width": 8}


def test_without_a_gpu_one_sentence_says_so():
    done = python("-m", "experiments.benchmarks.gpu_check", JAX_PLATFORMS="cpu")
    assert done == (2, "", "gpu-check: JAX sees no GPU here: nothing is checked\n")


def test_attention_is_compared_with_its_definition():
    rows = list(gpu_check.attention_rows(CPU, **TINY))
    assert len(rows) == 6
    assert all(row.ok for row in rows), rows


def test_an_attention_that_ignores_its_mask_fails():
    def unmasked(query, key, value, mask):
        return fused_attention(query, key, value)

    no_mask, *masked, kernel = gpu_check.attention_rows(CPU, **TINY, attention=unmasked)
    assert no_mask.ok
    assert kernel.ok
    assert not any(row.ok for row in masked), masked


def test_losses_of_two_devices_are_compared():
    tiny = {"width": 8, "num_heads": 1, "num_blocks": 1, "context": 8}
    rows = list(gpu_check.course_rows(CPU, jax.devices("cpu")[1], 5, **tiny))
    assert all(row.ok for row in rows), rows


def test_memory_is_compared_with_the_plan():
    rows = (gpu_check.memory_row("", 2**30, 0, int(part * 2**30)) for part in (1, 0.5, 1.5))
    assert [row.ok for row in rows] == [True, False, False]


def test_a_step_is_planned_and_timed():
    model, training = CPU_TRAINING[0].config(), TrainingConfig(batch_size=4)
    memory, speed = gpu_check.training_rows(CPU, "44k", model, training)
    assert (memory.measured, memory.ok) == ("not reported by the device", None)
    assert "tokens/s" in speed.measured
