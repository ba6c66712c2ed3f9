"""The short convolutions of the records equal their formula, also with a cache."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.record_tiny_shakespeare import Convolved, experiment
from tests.helpers.arrays import integers, numbers
from tests.helpers.models import assert_chunks_give, call, drawn, extend
from tlite.models import Attention, BlockInputs, FeedForward, apply_layer, make_model
from tlite.models.custom import probe
from tlite.models.parameters import as_params

WINDOWS = Convolved(Attention(query_key_norm=True, windows=(4, 0)), taps=2)
CONFIG = dataclasses.replace(
    experiment.model, vocabulary_size=11, context=12, width=16, num_heads=2, num_blocks=2
)


def test_the_input_of_a_layer_is_a_causal_convolution():
    layer = Convolved(FeedForward(activation="tanh"), taps=3)
    arrays = jax.jit(lambda: layer.init(jax.random.key(0), CONFIG))()
    np.testing.assert_array_equal(arrays["taps"], np.zeros((3, CONFIG.width)))
    taps, x = numbers(3, CONFIG.width), numbers(2, 5, CONFIG.width)
    expected = x.copy()
    for t in range(5):
        for j in range(min(3, t + 1)):
            expected[:, t] += taps[j] * x[:, t - j]
    params, inputs = as_params(arrays | {"taps": taps}), BlockInputs()

    @jax.jit
    def outputs(params, x, expected):
        y, cache, _ = layer(params, x, inputs, config=CONFIG)
        inner = apply_layer(layer.layer, params.layer, expected, inputs, config=CONFIG)
        return y, inner[0], cache["inputs"]

    y, inner, cached = outputs(params, x, jnp.array(expected))
    np.testing.assert_allclose(y, inner, atol=1e-5)
    np.testing.assert_array_equal(cached, x)


def test_packed_documents_do_not_mix():
    config = dataclasses.replace(CONFIG, positions="none", block="pre_norm")
    model, tokens = drawn(make_model, config), integers(11, 2, 8)
    model = jax.tree.map(lambda a: a + 0.1, model)  # the taps are 0 at first
    alone = call(model, tokens[:, 3:])
    packed = call(model, tokens, segment_ids=jnp.array([0] * 3 + [1] * 5))
    np.testing.assert_allclose(packed[:, 3:], alone, atol=1e-4)


def test_cached_decoding_equals_a_full_pass():
    probe(dataclasses.replace(CONFIG, attention=WINDOWS), make_model)
    for attention in (CONFIG.attention, WINDOWS):
        config = dataclasses.replace(CONFIG, attention=attention)
        model, tokens = drawn(make_model, config), integers(11, 2, 5)
        decode = functools.partial(extend, model)
        assert_chunks_give(call(model, tokens), tokens, decode, model.empty_caches(2))
