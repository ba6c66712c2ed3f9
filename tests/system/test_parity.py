"""Positions and tokens equal those of transformers."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from tests.helpers.arrays import assert_close, assert_same
from tests.helpers.reference import BUCKETS, DISTANCES, LLAMA3, YARN, each_dim
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
    """Return the frequencies of a kind of scaling, and the factor of queries and keys."""
    config = transformers.LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        max_position_embeddings=settings.pop("context", 2048),
        rope_parameters={"rope_type": kind, "rope_theta": base, **settings},
    )
    frequencies, factor = utils.ROPE_INIT_FUNCTIONS[kind](config, device="cpu")
    return frequencies.numpy(), factor


@pytest.mark.parametrize(
    ("kind", "settings"), [*(("llama3", s) for s in LLAMA3), *(("yarn", s) for s in YARN)]
)
@each_dim
def test_scaled_frequencies_are_those_of_transformers(dim, kind, settings):
    factor, original, first, second, base = settings
    names = {"factor": factor, "original_max_position_embeddings": original}
    if kind == "llama3":
        names |= {"low_freq_factor": first, "high_freq_factor": second}
        limits = {"low_frequency_factor": first, "high_frequency_factor": second}
    else:
        limits = {"beta_fast": first, "beta_slow": second}
        names |= limits | {"context": int(factor * original)}
    expected, expected_factor = frequencies_of_transformers(kind, dim, base, **names)
    scaling = RotaryScaling(kind, factor, original, **limits)
    frequencies, attention_factor = rotary_frequencies(Rotary(base, scaling=scaling), dim)
    plain = F.rotary_frequencies(dim, base)
    assert_close(frequencies / plain, expected / plain)
    assert_close(1.0 if attention_factor is None else attention_factor, expected_factor)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "longest"), BUCKETS)
def test_relative_buckets_are_those_of_t5(buckets, longest, causal):
    theirs = t5.T5Attention._relative_position_bucket(
        torch.tensor(DISTANCES), not causal, buckets, longest
    )
    compute = partial(F.relative_position_buckets, causal=causal)
    for function in (compute, jax.jit(compute, static_argnums=(1, 2))):
        assert_same(function(jnp.asarray(DISTANCES), buckets, longest), theirs.numpy())


def test_a_saved_tokenizer_is_opened_by_transformers(tmp_path):
    tokenizer = PretrainedTokenizer(byte_level(), {"bos": "<s>", "eos": "</s>", "pad": "<pad>"}, {})
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.encode(TEXT) == tokenizer.encode(TEXT).tolist()
    assert theirs.eos_token == "</s>"
