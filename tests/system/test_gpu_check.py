"""The comparisons of gpu_check, tiny and on a CPU."""

import jax

from experiments.benchmarks import gpu_check
from tests.helpers.python import python
from tlite.functional import fused_attention

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
