"""Low-rank updates of matrices."""

import jax
import numpy as np
import pytest

from tlite.models import CausalLM, GeneratorConfig, Loop
from tlite.models.low_rank import LowRank, init_low_rank, merge_low_rank
from tlite.models.parameters import from_named_arrays, named_arrays

SIZES = {"vocabulary_size": 11, "context": 8, "width": 8, "num_heads": 2, "num_blocks": 2}
LOW_RANK = LowRank("*.attention.*", rank=2, alpha=6.0)


def arrays_of(**changes):
    model = CausalLM(GeneratorConfig(**SIZES, **changes), rng=jax.random.key(0))
    arrays = named_arrays(model)
    return model, arrays, init_low_rank(LOW_RANK, arrays, jax.random.key(1))


@pytest.mark.parametrize("scan", [False, True])
def test_the_model_is_unchanged_at_the_start(scan):
    model, arrays, added = arrays_of(loop=Loop(scan=scan))
    names = [name for name in arrays if ".attention." in name and name.endswith("kernel")]
    assert {f"{name.removesuffix('kernel')}lora_{x}" for name in names for x in "ab"} == {*added}
    merged = merge_low_rank(LOW_RANK, dict(sorted((arrays | added).items())))  # as under jit
    assert merged.keys() == arrays.keys()
    tokens = jax.numpy.arange(8) % 11
    logits = from_named_arrays(model)(merged)(tokens)
    np.testing.assert_array_equal(logits, model(tokens))


def test_merged_matrices_are_the_sum():
    _, arrays, added = arrays_of()
    name = "blocks.1.attention.query."
    added[f"{name}lora_b"] += 1.0
    merged = merge_low_rank(LOW_RANK, arrays | added)
    update = np.asarray(added[f"{name}lora_a"]) @ np.ones((2, 8))
    expected = np.asarray(arrays[f"{name}kernel"]) + 3.0 * update
    np.testing.assert_allclose(merged[f"{name}kernel"], expected, rtol=1e-5, atol=1e-6)
    assert merged["embedding.table"] is arrays["embedding.table"]


def test_updates_are_merged_in_float32_on_a_gpu_too():
    _, arrays, added = arrays_of()
    program = str(jax.make_jaxpr(lambda a: merge_low_rank(LOW_RANK, a))(arrays | added))
    assert program.count("dot_general") == program.count("(Precision.HIGHEST, Precision.HIGHEST)")
    assert "dot_general" in program


@pytest.mark.parametrize(
    ("low_rank", "words"),
    [
        (LowRank("*.atention.*"), r"'\*\.atention\.\*' matches no matrix among blocks\.0\."),
        (LowRank("*.attention.* *.bias"), r"'\*\.bias' matches no matrix"),
        (LowRank(" "), "'' matches no matrix"),
        (LowRank(rank=9), r"rank 9 is above 8, the smaller side of blocks\.0\.attention\.key"),
        (LowRank("*.hidden.*", rank=9), r"above 8, the smaller side of blocks\.0\..*\.hidden"),
    ],
    ids=["misspelt", "one_of_two", "empty", "rank", "rank_of_wide"],
)
def test_patterns_without_a_matrix_and_high_ranks_are_errors(low_rank, words):
    _, arrays, _ = arrays_of()
    with pytest.raises(ValueError, match=words):
        init_low_rank(low_rank, arrays, jax.random.key(1))


def test_a_rank_may_be_the_smaller_side_of_its_matrix():
    _, arrays, _ = arrays_of()
    added = init_low_rank(LowRank(rank=8), arrays, jax.random.key(1))
    assert all(array.shape == (8, 8) for array in added.values())


def test_the_first_low_rank_factor_has_deviation_of_its_inputs():
    _, arrays, _ = arrays_of()
    added = init_low_rank(LowRank(rank=8), arrays, jax.random.key(1))
    drawn = np.stack([array for name, array in added.items() if name.endswith("_a")])
    # The relative error of the deviation of 512 values is about 3 %.
    assert np.std(drawn) == pytest.approx(8**-0.5, rel=0.2)
