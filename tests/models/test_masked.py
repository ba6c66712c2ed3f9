"""The masked language model: counted by hand, blind to padding, the same batched or alone."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_close, assert_same
from tests.helpers.models import call, difference, drawn
from tlite import inspection
from tlite.models import Encoder, MaskedConfig, TransformerMasked
from tlite.modules import count_parameters

T, V, D = 5, 7, 8
SMALL = MaskedConfig(
    vocabulary_size=V, context=6, width=D, num_heads=2, num_blocks=2, hidden_width=6, dropout=0.5
)
BLOCK = (4 * D * D + D) + (2 * 6 * D + 6 + D) + 2 * 2 * D
BODY = V * D + 6 * D + 2 * BLOCK
TOKENS = np.array([[3, 0, 5, 1, 6], [2, 4, 6, -1, -1], [-1, 4, -1, 0, 2]])
KEYS = jax.random.split(jax.random.key(0), 3)


@functools.cache
def small(**switches):
    return drawn(TransformerMasked, dataclasses.replace(SMALL, **switches))


@pytest.mark.parametrize(
    ("switches", "change"),
    [
        ({}, 0),
        ({"head_bias": False}, -V),
        ({"projection_bias": False}, -D),
        ({"projection_norm": False}, -2 * D),
        ({"norm": "rms"}, -(2 * 2 + 1) * D),
        ({"norm_bias": False}, -(2 * 2 + 1) * D),
        ({"norm_first": True}, 2 * D),
        ({"embedding_norm": True, "segments": 2}, 2 * D + 2 * D),
    ],
)
def test_it_has_the_parameters_of_an_encoder_a_projection_and_a_bias(switches, change):
    config = dataclasses.replace(SMALL, **switches)
    model = jax.eval_shape(lambda: TransformerMasked(config, key=KEYS[0]))
    assert count_parameters(model) == BODY + D * D + D + 2 * D + V + change


def test_padding_changes_nothing_whatever_its_number_and_its_length():
    model = small()
    logits = np.asarray(call(model, TOKENS))
    assert logits.shape == (3, T, V)
    assert_same(call(model, np.where(TOKENS < 0, -9, TOKENS)), logits)
    assert_close(call(model, TOKENS[1, :3]), logits[1, :3])
    unpadded = np.asarray(call(model, np.maximum(TOKENS, 0)))
    assert difference(unpadded[1, :3], logits[1, :3]) > 1e-2


def test_nothing_but_padding_has_finite_logits_and_gradients():
    tokens = jnp.full((2, T), -1)
    value_and_gradients = jax.jit(jax.value_and_grad(lambda model: (model(tokens) ** 2).sum()))
    value, gradients = value_and_gradients(small())
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((value, gradients)))


def test_every_place_sees_what_comes_later():
    model = small()
    tokens = TOKENS.copy()
    tokens[0, -1] = 2
    assert np.abs(call(model, tokens) - call(model, TOKENS))[0].max(-1).min() > 1e-4


def test_a_text_is_the_same_alone_batched_or_mapped_with_noise():
    model = small()
    batched = np.asarray(call(model, TOKENS, key=KEYS))
    mapped = jax.jit(jax.vmap(lambda tokens, key: model(tokens, key=key)))(TOKENS, KEYS)
    assert_close(mapped, batched)
    assert_close(call(model, TOKENS[0], key=KEYS[0]), batched[0])
    assert difference(batched, call(model, TOKENS)) > 1e-2


def test_logits_are_those_of_the_encoders_vectors():
    model = small()
    logits, seen, of_vectors = seen_inside(model)
    assert_same(logits, call(model, TOKENS))
    assert_same(of_vectors, logits)
    shapes = {name: value.shape for name, value in seen.items()}
    assert shapes == {"final": (3, T, D), "blocks.1.residual": (3, T, D)}


@jax.jit
def seen_inside(model):
    """Logits, what is captured, and the logits of the vectors."""
    logits, seen = inspection.run(
        model, jnp.asarray(TOKENS), capture=["final", "blocks.1.residual"]
    )
    return logits, seen, model.logits(seen["final"])


def test_the_bare_encoder_gives_the_vectors_that_the_masked_model_has():
    bare = drawn(Encoder, SMALL)
    vectors = call(bare, TOKENS)
    assert vectors.shape == (3, T, D)
    assert_same(vectors, seen_inside(small())[1]["final"])
    assert_same(call(bare, np.where(TOKENS < 0, -4, TOKENS)), vectors)


def test_too_many_tokens_are_refused_with_both_lengths():
    with pytest.raises(ValueError, match=r"length 7 .* length 6"):
        small()(jnp.zeros(7, int))
