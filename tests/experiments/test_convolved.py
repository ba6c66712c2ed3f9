"""The records' short convolutions: what they compute, and the same with a cache."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.record_tiny_shakespeare import Convolved, experiment
from tests.helpers.models import drawn
from tlite import functional as F
from tlite.models import Attention, FeedForward, make_model
from tlite.models.parameters import held

WINDOWS = Convolved(Attention(query_key_norm=True, windows=(4, 0)), taps=2)
CONFIG = dataclasses.replace(
    experiment.model, vocabulary_size=11, context=12, width=16, num_heads=2, num_blocks=2
)


def test_a_layer_gets_the_convolution_of_what_came_before():
    layer = Convolved(FeedForward(activation="tanh"), taps=3)
    rng = jax.random.key(0)
    arrays = layer.init(rng, CONFIG)
    np.testing.assert_array_equal(arrays["taps"], np.zeros((3, CONFIG.width)))
    taps, x = jax.random.normal(rng, (2, 3, CONFIG.width))[0], jax.random.normal(rng, (2, 5, 16))
    expected = np.array(x)
    for t in range(5):
        for j in range(min(3, t + 1)):
            expected[:, t] += taps[j] * x[:, t - j]
    params, look = held(arrays | {"taps": taps}), F.Look(num_heads=2)
    y, rows = layer(params, x, look)
    np.testing.assert_allclose(
        y, layer.layer(params.layer, jnp.array(expected), look)[0], atol=1e-5
    )
    np.testing.assert_array_equal(rows["inputs"], x)


@pytest.mark.parametrize("attention", [CONFIG.attention, WINDOWS], ids=["record", "windows"])
def test_cached_decoding_is_the_full_pass(attention):
    model = drawn(make_model, dataclasses.replace(CONFIG, attention=attention))
    tokens = jax.random.randint(jax.random.key(2), (2, 12), 0, 11)
    full, caches, start = model(tokens), model.empty_caches(2), 0
    for length in (1, 1, 5, 2, 3):  # shorter and longer than the taps
        piece = tokens[:, start : start + length]
        logits, caches = model.extend(piece, caches, jnp.full(2, start))
        np.testing.assert_allclose(logits, full[:, start : start + length], atol=2e-5)
        start += length
    assert start == 12


def test_samples_may_be_at_different_places_of_their_caches():
    model = drawn(make_model, CONFIG)
    tokens = jax.random.randint(jax.random.key(3), (2, 8), 0, 11)
    full, starts = model(tokens), jnp.array([1, 4])
    _, caches = model.extend(tokens[:, :4], model.empty_caches(2), jnp.zeros(2, int))
    pieces = jnp.stack([row[start : start + 3] for row, start in zip(tokens, starts, strict=True)])
    logits, _ = model.extend(pieces, caches, starts)
    for found, row, start in zip(logits, full, starts, strict=True):
        np.testing.assert_allclose(found, row[start : start + 3], atol=2e-5)


def test_without_taps_it_is_the_model_without_convolutions():
    plain = dataclasses.replace(
        CONFIG,
        attention=dataclasses.replace(CONFIG.attention.layer, zero_output=False),
        feed_forward=dataclasses.replace(CONFIG.feed_forward.layer, zero_output=False),
    )
    wrapped = dataclasses.replace(
        plain,
        attention=Convolved(plain.attention),
        feed_forward=Convolved(plain.feed_forward),
    )
    tokens = jnp.arange(11)
    models = [make_model(config, rng=jax.random.key(0)) for config in (plain, wrapped)]
    np.testing.assert_array_equal(*(model(tokens) for model in models))
