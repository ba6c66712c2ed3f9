"""The records' short convolutions: what they compute, and the same with a cache."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.record_tiny_shakespeare import Convolved, experiment
from tests.helpers.arrays import integers, numbers
from tests.helpers.models import call, drawn, extend, initial_model
from tlite import functional as F
from tlite.models import Attention, FeedForward, make_model
from tlite.models.parameters import as_params

WINDOWS = Convolved(Attention(query_key_norm=True, windows=(4, 0)), taps=2)
CONFIG = dataclasses.replace(
    experiment.model, vocabulary_size=11, context=12, width=16, num_heads=2, num_blocks=2
)


def test_a_layer_gets_the_convolution_of_what_came_before():
    layer = Convolved(FeedForward(activation="tanh"), taps=3)
    arrays = jax.jit(lambda: layer.init(jax.random.key(0), CONFIG))()
    np.testing.assert_array_equal(arrays["taps"], np.zeros((3, CONFIG.width)))
    taps, x = numbers(3, CONFIG.width), numbers(2, 5, CONFIG.width)
    expected = x.copy()
    for t in range(5):
        for j in range(min(3, t + 1)):
            expected[:, t] += taps[j] * x[:, t - j]
    params, look = as_params(arrays | {"taps": taps}), F.Look(num_heads=2)
    y, rows = jax.jit(lambda params, x: layer(params, x, look))(params, x)
    of_expected = jax.jit(lambda params, x: layer.layer(params, x, look)[0])
    np.testing.assert_allclose(y, of_expected(params.layer, jnp.array(expected)), atol=1e-5)
    np.testing.assert_array_equal(rows["inputs"], x)


@pytest.mark.parametrize("attention", [CONFIG.attention, WINDOWS], ids=["record", "windows"])
def test_cached_decoding_is_the_full_pass_wherever_each_sample_is(attention):
    model = drawn(make_model, dataclasses.replace(CONFIG, attention=attention))
    tokens = integers(11, 2, 12)
    full, caches = call(model, tokens), model.empty_caches(2)
    for starts, length in [((0, 0), 1), ((1, 1), 1), ((2, 2), 5), ((7, 4), 3), ((9, 7), 3)]:
        places = np.add.outer(starts, range(length))
        piece = np.take_along_axis(np.asarray(tokens), places, axis=1)
        logits, caches = extend(model, piece, caches, np.array(starts))
        expected = np.take_along_axis(np.asarray(full), places[..., None], axis=1)
        np.testing.assert_allclose(logits, expected, atol=2e-5)


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
    models = [initial_model(make_model, config) for config in (plain, wrapped)]
    np.testing.assert_array_equal(*(call(model, jnp.arange(11)) for model in models))
