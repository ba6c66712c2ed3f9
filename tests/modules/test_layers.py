"""Modules: they hold the parameters by the counts, and add nothing to the functions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_close, assert_same, integers, normal
from tlite import functional as F
from tlite import modules
from tlite.models import GeneratorConfig
from tlite.modules.layers import Own, make_own

KEY = jax.random.key(0)
D, H = 32, 4
CONFIG = GeneratorConfig(width=D, num_heads=H)


def linear_parameters(layer):
    return F.LinearParameters(layer.kernel[...], None if layer.bias is None else layer.bias[...])


def norm_parameters(norm):
    return F.NormParameters(
        norm.scale[...], None if getattr(norm, "bias", None) is None else norm.bias[...]
    )


def attention_parameters(attention):
    layers = (attention.query, attention.key, attention.value, attention.output)
    norms = (getattr(attention, name, None) for name in ("query_norm", "key_norm"))
    norms = (None if norm is None else norm_parameters(norm) for norm in norms)
    return F.AttentionParameters(*map(linear_parameters, layers), *norms)


def feed_forward_parameters(layer):
    layers = [layer.hidden, layer.output, *([layer.gate] if hasattr(layer, "gate") else [])]
    return F.FeedForwardParameters(*map(linear_parameters, layers))


def block_parameters(block):
    return F.EncoderBlockParameters(
        attention_parameters(block.attention),
        norm_parameters(block.attention_norm),
        feed_forward_parameters(block.feed_forward),
        norm_parameters(block.feed_forward_norm),
    )


@pytest.mark.parametrize(
    ("module", "count", "arrays"),
    [
        (modules.Linear(3, 5, key=KEY), 20, 2),
        (modules.Linear(3, 5, bias=False, key=KEY), 15, 1),
        (modules.Embedding(7, 5, key=KEY), 35, 1),
        (modules.LayerNorm(5), 10, 2),
        (modules.LayerNorm(5, bias=False), 5, 1),
        (modules.RMSNorm(5), 5, 1),
        (modules.ZeroCentredRMSNorm(5), 5, 1),
        (modules.MultiHeadAttention(D, H, key_heads=1, key=KEY), 2 * D * D + 2 * D * 8 + D, 5),
        (
            modules.MultiHeadAttention(D, H, key_heads=2, head_width=5, qkv_bias=True, key=KEY),
            2 * 20 * D + 2 * 10 * D + 20 + 2 * 10 + D,
            8,
        ),
        (modules.FeedForward(D, 10, gated=True, key=KEY), 3 * 10 * D + 2 * 10 + D, 6),
        (modules.MultiHeadAttention(D, H, key=KEY), 4_128, 5),
        (modules.MultiHeadAttention(D, H, qkv_bias=True, key=KEY), 4_224, 8),
        (modules.MultiHeadAttention(D, H, bias=False, key=KEY), 4_096, 4),
        (modules.MultiHeadAttention(D, 3, head_width=5, key=KEY), 4 * 15 * D + D, 5),
        (modules.FeedForward(D, 10, key=KEY), 2 * 10 * D + 10 + D, 4),
        (modules.FeedForward(D, 10, bias=False, key=KEY), 2 * 10 * D, 2),
        (modules.EncoderBlock(CONFIG, key=KEY), 12_608, 13),
    ],
)
def test_modules_hold_as_many_parameters_as_counted_by_hand(module, count, arrays):
    assert modules.count_parameters(module) == count
    assert len(jax.tree.leaves(module)) == arrays


@pytest.mark.parametrize("bias", [True, False])
def test_layers_are_the_functions_of_their_parameters(bias):
    x = normal(2, 3, D)

    @jax.jit
    def results():
        linear, norm = modules.Linear(D, 5, bias=bias, key=KEY), modules.LayerNorm(D, bias=bias)
        feed_forward = modules.FeedForward(D, 6, bias=bias, key=KEY)
        return [linear(x), norm(x), modules.RMSNorm(D)(x), feed_forward(x)], [
            F.linear(linear_parameters(linear), x),
            F.layer_norm(norm_parameters(norm), x),
            F.rms_norm(F.NormParameters(jnp.ones(D)), x),
            F.feed_forward(feed_forward_parameters(feed_forward), x),
        ]

    assert_same(*results())


def test_options_of_layers_are_those_of_their_functions():
    x, centred = normal(2, 3, D), modules.ZeroCentredRMSNorm(D)

    @jax.jit
    def results():
        gated, plain = (modules.FeedForward(D, 6, gated=g, key=KEY) for g in (True, False))
        expected = F.feed_forward(feed_forward_parameters(gated), x)
        return gated(x), expected, plain(x), centred(x), modules.RMSNorm(D)(x)

    gated, expected, plain, of_centred, of_rms = map(np.asarray, results())
    assert_same(gated, expected)
    assert np.abs(gated - plain).max() > 1e-3
    assert not centred.scale[...].any()
    assert_same(of_centred, of_rms)


def test_a_gate_leaves_the_other_layers_as_they_are_drawn_without():
    gated, plain = (modules.FeedForward(D, 6, gated=g, key=KEY) for g in (True, False))
    assert_same(gated.hidden.kernel[...], plain.hidden.kernel[...])
    assert_same(gated.output.kernel[...], plain.output.kernel[...])
    assert np.abs(gated.gate.kernel[...] - gated.hidden.kernel[...]).max() > 1e-2


OPTIONS = [{}, {"head_width": 5}, {"qkv_bias": True, "bias": False}, {"key_heads": 1}]


@pytest.mark.parametrize("options", [*OPTIONS, {"key_heads": 2, "head_width": 6}])
def test_attention_is_the_function_of_its_parameters(options):
    inputs = normal(2, 3, D), normal(2, 5, D), normal(2, 5, D, seed=1), np.tri(3, 5, dtype=bool)

    @jax.jit
    def results(*inputs):
        attention = modules.MultiHeadAttention(D, H, key=KEY, **options)
        ways = attention_parameters(attention), attention
        of_function = [F.multi_head_attention(way, *inputs, num_heads=H) for way in ways]
        return [attention(*inputs)] * 2, of_function

    assert_same(*results(*inputs))


@pytest.mark.parametrize(
    ("switches", "change"),
    [
        ({"gated": True}, D * 4 * D + 4 * D),
        ({"key_heads": 1}, -2 * D * (D - 8)),
        ({"query_key_norm": True}, 2 * 2 * 8),
        ({"query_key_norm": True, "norm": "rms"}, 2 * 8 - 2 * D),
        ({"query_key_norm": True, "norm": "zero_centred_rms"}, 2 * 8 - 2 * D),
        ({"output_norms": True}, 2 * 2 * D),
        ({"norm_bias": False}, -2 * D),
        ({"feed_forward_bias": False}, -5 * D),
        ({"bias": False, "norm_bias": True}, -6 * D),
    ],
)
def test_a_blocks_options_change_its_parameters_as_counted_by_hand(switches, change):
    block = modules.EncoderBlock(dataclasses.replace(CONFIG, **switches), key=KEY)
    assert modules.count_parameters(block) == 12_608 + change


def test_parameters_of_a_function_of_ones_own_are_made_by_it():
    def function(own, x):
        return x

    assert make_own(function, CONFIG, KEY) is None
    assert make_own("gelu", CONFIG, KEY) is None
    function.parameters = lambda config, key: {
        "width": jnp.float32(config.width),
        "noise": jax.random.normal(key, (3,)),
        "numbers": np.arange(2.0),
    }
    own, again, other = (make_own(function, CONFIG, k) for k in (KEY, KEY, jax.random.key(1)))
    assert isinstance(own, Own)
    assert own.width[...] == D
    assert own.numbers.shape == (2,)
    assert_same(own.noise[...], again.noise[...])
    assert (own.noise[...] != other.noise[...]).all()
    assert modules.count_parameters(own) == 6


@pytest.mark.parametrize("pre_norm", [False, True])
def test_a_block_and_its_gradients_are_those_of_its_parameters(pre_norm):
    x = normal(2, 5, D)

    def total(params):
        return (F.encoder_block(params, x, num_heads=H, pre_norm=pre_norm) ** 3).sum()

    @jax.jit
    def results():
        block = modules.EncoderBlock(CONFIG, key=KEY)
        (one, of_module), (other, of_tuple) = (
            jax.value_and_grad(total)(params) for params in (block, block_parameters(block))
        )
        return (one, other), (block_parameters(of_module), of_tuple)

    values, gradients = results()
    assert_same(*values)
    assert_close(*gradients)


def test_embedding_looks_up_its_rows():
    embedding, tokens = modules.Embedding(7, 5, key=KEY), integers(7, 2, 3)
    assert_same(embedding(tokens), embedding.table[...][tokens])


def test_parameters_are_drawn_as_documented():
    kernel = modules.Linear(100, 200, key=KEY).kernel[...]
    limit = np.sqrt(6 / 300)
    assert 0.99 * limit < np.abs(kernel).max() <= limit
    assert_close(kernel.std(), limit / np.sqrt(3), 1e-2)
    assert_close(modules.Embedding(100, 200, key=KEY).table[...].std(), 0.02, 1e-3)
    zeros = modules.Linear(3, 5, initializer=jax.nn.initializers.zeros, key=KEY)
    assert not zeros.kernel[...].any()


def test_the_layers_of_a_block_are_drawn_independently():
    kernels = [
        leaf for leaf in jax.tree.leaves(modules.EncoderBlock(CONFIG, key=KEY)) if leaf.ndim == 2
    ]
    starts = {float(kernel[0, 0]) for kernel in kernels}
    assert len(starts) == len(kernels) == 6


def test_a_width_that_heads_do_not_divide_is_named_unless_their_width_is_given():
    with pytest.raises(ValueError, match="32 is not divisible by 5 heads"):
        modules.MultiHeadAttention(D, 5, key=KEY)
    assert modules.MultiHeadAttention(D, 5, head_width=2, key=KEY).query.kernel.shape == (D, 10)
