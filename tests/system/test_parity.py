"""Positions and tokens are those of transformers, number by number."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from tests.helpers.arrays import assert_close, assert_same
from tests.helpers.positions import BUCKETS, DISTANCES, LLAMA3, YARN, each_dim
from tests.helpers.tokenizers import TEXT, byte_level
from tlite import functional as F
from tlite.models import Rotary, RotaryScaling
from tlite.models.inputs import rotary_frequencies
from tlite.pretrained.tokenizers import PretrainedTokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
marian = pytest.importorskip("transformers.models.marian.modeling_marian")
t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
utils = pytest.importorskip("transformers.modeling_rope_utils")


@pytest.mark.parametrize("dim", [6, 5])
def test_split_sinusoidal_positions_are_those_of_marian(dim):
    theirs = marian.MarianSinusoidalPositionalEmbedding(9, dim)
    theirs.weight = torch.nn.Parameter(theirs.create_weight())
    expected = theirs(torch.Size([1, 9])).detach().numpy()
    assert_close(F.sinusoidal_positions(9, dim, split=True), expected)


def frequencies_of_transformers(kind, dim, base, **settings):
    """What its function for this kind of scaling gives, and what attention is multiplied by."""
    config = transformers.LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        max_position_embeddings=settings.pop("context", 2048),
        rope_parameters={"rope_type": kind, "rope_theta": base, **settings},
    )
    frequencies, factor = utils.ROPE_INIT_FUNCTIONS[kind](config, device="cpu")
    return frequencies.numpy(), factor


@pytest.mark.parametrize("settings", LLAMA3)
@each_dim
def test_llama3_frequencies_are_those_of_transformers(dim, settings):
    factor, original, low, high, base = settings
    names = {"factor": factor, "original_max_position_embeddings": original}
    names |= {"low_freq_factor": low, "high_freq_factor": high}
    theirs, magnitude = frequencies_of_transformers("llama3", dim, base, **names)
    plain = F.rotary_frequencies(dim, base)
    assert_close(F.llama3_frequencies(plain, factor, original, low, high) / plain, theirs / plain)
    assert magnitude == 1


@pytest.mark.parametrize("settings", YARN)
@each_dim
def test_yarn_frequencies_are_those_of_transformers(dim, settings):
    """The factor of queries and keys too."""
    factor, original, fast, slow, base = settings
    names = {"factor": factor, "original_max_position_embeddings": original}
    names |= {"context": int(factor * original), "beta_fast": fast, "beta_slow": slow}
    expected, expected_factor = frequencies_of_transformers("yarn", dim, base, **names)
    scaling = RotaryScaling("yarn", factor, original, beta_fast=fast, beta_slow=slow)
    frequencies, attention_factor = rotary_frequencies(Rotary(base, scaling=scaling), dim)
    plain = F.rotary_frequencies(dim, base)
    assert_close(frequencies / plain, expected / plain)
    assert_close(attention_factor, expected_factor)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "longest"), BUCKETS)
def test_relative_buckets_are_those_of_t5(buckets, longest, causal, compiled):
    theirs = t5.T5Attention._relative_position_bucket(
        torch.tensor(DISTANCES), not causal, buckets, longest
    )
    sizes = {"num_buckets": buckets, "max_distance": longest}
    of_ours = partial(F.relative_position_buckets, **sizes, causal=causal)
    ours = (jax.jit(of_ours) if compiled else of_ours)(jnp.asarray(DISTANCES))
    assert_same(ours, theirs.numpy())


def test_a_saved_tokenizer_is_opened_by_transformers(tmp_path):
    tokenizer = PretrainedTokenizer(byte_level(), {"bos": "<s>", "eos": "</s>", "pad": "<pad>"}, {})
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.encode(TEXT) == tokenizer.encode(TEXT).tolist()
    assert theirs.eos_token == "</s>"
