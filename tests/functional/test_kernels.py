"""Kernels have the outputs and gradients of their definitions, up to rounding."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import normal
from tlite.functional import (
    causal_mask,
    chunked_causal_attention,
    fused_attention,
    matmul,
    mixed_attention,
    scaled_dot_product_attention,
)

SHAPES = {"one head": (5, 4), "heads": (2, 3, 7, 5), "grouped": (2, 3, 7, 5)}


def random_mask(*shape):
    return jnp.asarray(np.random.default_rng(5).random(shape) < 0.6)


MASKS = {
    "none": lambda t: None,
    "causal": causal_mask,
    "empty row": lambda t: jnp.asarray(np.tri(t, dtype=bool) & (np.arange(t) != 2)[:, None]),
    "keys per example": lambda t: random_mask(2, 1, 1, t),
    "per head": lambda t: random_mask(2, 3, t, t),
    "shared": lambda t: random_mask(1, 1, t, t),
}


def draw(shape, seed=0):
    """Return random numbers that bfloat16 represents exactly: only sums and weights are rounded."""
    numbers = np.random.default_rng([seed, *shape]).normal(size=(4, *shape))
    return [jax.device_put(x.astype(jnp.bfloat16).astype(np.float32)) for x in numbers]


each_attention = pytest.mark.parametrize(
    "attention", [mixed_attention, fused_attention], ids=["mixed", "fused"]
)


def run(attention, inputs, d_output, **kwargs):
    """Return the output and the gradients with respect to all inputs."""

    @jax.jit
    def output_and_gradients(inputs):
        output, pull_back = jax.vjp(lambda inputs: attention(**inputs, **kwargs)[0], inputs)
        return output, *pull_back(d_output)[0].values()

    return output_and_gradients(inputs)


@each_attention
@pytest.mark.parametrize(
    ("shape", "mask"),
    [("one head", m) for m in list(MASKS)[:3]]
    + [("heads", m) for m in MASKS]
    + [("grouped", "per head")],
)
def test_attention_has_output_and_gradients_of_its_definition(shape, mask, attention):
    query, key, value, d_output = draw(SHAPES[shape])
    inputs = {"query": query, "key": key, "value": value}
    if shape == "grouped":
        inputs |= {"key": key[:, :1], "value": value[:, :1]}
    mask = MASKS[mask](SHAPES[shape][-2])
    both = attention, scaled_dot_product_attention
    results = (run(functools.partial(a, mask=mask), inputs, d_output) for a in both)
    for actual, expected, tolerance in zip(*results, [0.01, 0.02, 0.02, 0.02], strict=True):
        assert actual.dtype == jnp.float32
        expected = np.asarray(expected)
        # 0.008 was measured: several operands are rounded by up to 0.002 of each (8 bits) in turn.
        np.testing.assert_allclose(actual, expected, atol=tolerance * np.abs(expected).max())
        assert not np.asarray(actual)[expected == 0].any()  # such as gradients of masked values


@pytest.mark.parametrize("window", [0, 1, 3])
def test_is_causal_and_window_equal_the_mask_they_describe(window):
    query, key, value, d_output = draw((2, 3, 7, 4))
    inputs = {"query": query, "key": key, "value": value}
    near = np.subtract.outer(*[np.arange(7)] * 2) < (window or 7)
    mask = jnp.asarray(np.tri(7, dtype=bool) & near)
    attention = functools.partial(fused_attention, mask=mask)
    described = run(attention, inputs, d_output, is_causal=True, window=window)
    for one, other in zip(described, run(attention, inputs, d_output), strict=True):
        np.testing.assert_allclose(one, other, atol=0.01 * np.abs(other).max())


@each_attention
@pytest.mark.parametrize("factor", [1, 2])
def test_tapped_weights_are_those_used_of_rounded_inputs(attention, factor):
    inputs = [normal(2, 3, 7, 4, seed=seed) for seed in range(3)]
    tapped = {}

    def tap(name, value):
        tapped[name] = value
        return factor * value if name == "weights" else value

    output, weights = attention(*inputs, causal_mask(7), tap=tap)
    plain = attention(*inputs, causal_mask(7))
    np.testing.assert_allclose(output, factor * plain[0], atol=0.02 * factor)
    np.testing.assert_array_equal(weights, factor * tapped["weights"])
    np.testing.assert_array_equal(tapped["weights"], plain[1])
    exact = scaled_dot_product_attention(*inputs, causal_mask(7))[1]
    np.testing.assert_allclose(tapped["weights"], exact, atol=0.01)
    assert (tapped["weights"] != exact).any()


EXACT, MIXED = (scaled_dot_product_attention, None, 1e-6), (mixed_attention, jnp.bfloat16, 0.01)
CASES = {  # num_kv_heads, keyword arguments; attention, operand dtype, tolerance
    "plain": (4, {}, *EXACT),
    "grouped, scale, softcap, bias": (2, {"scale": 0.3, "softcap": 2.0}, *EXACT),
    "mixed": (4, {}, *MIXED),
}


@pytest.mark.parametrize(
    ("case", "window"), [*itertools.product([*CASES][:2], [0, 1, 9]), ("mixed", 9)]
)
@pytest.mark.parametrize(("length", "chunk_size"), [(3, 8), (16, 8), (39, 2)])
def test_chunked_attention_is_its_definition(length, chunk_size, case, window):
    num_kv_heads, kwargs, attention, dtype, tolerance = CASES[case]
    query, key, value, d_output = draw((2, 4, length, 5))
    inputs = {"query": query, "key": key[:, :num_kv_heads], "value": value[:, :num_kv_heads]}
    inputs |= {"bias": draw((1, 4, length, length))[0]} if kwargs else {}
    near = np.subtract.outer(*[np.arange(length)] * 2) < (window or length)
    definition = functools.partial(attention, mask=causal_mask(length) & near)
    expected = run(definition, inputs, d_output, **kwargs)
    chunked = chunked_causal_attention(attention, chunk_size, dtype)
    call = functools.partial(chunked, is_causal=True, window=window, **kwargs)
    actual = run(call, inputs, d_output)
    np.testing.assert_array_equal(jax.jit(call)(**inputs)[0], actual[0])  # without a gradient
    for one, other in zip(actual, expected, strict=True):
        # A window of one has the gradient 0: the rounding of terms of about 1 that cancel remains.
        scale = np.abs(other).max() or 1
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("attention", [scaled_dot_product_attention, mixed_attention])
def test_other_masks_and_taps_use_the_definition(attention):
    query, key, value, _ = draw((2, 3, 9, 4))
    mask, chunked = random_mask(2, 1, 1, 9), chunked_causal_attention(attention, 2)
    np.testing.assert_array_equal(
        jax.jit(chunked)(query, key, value, mask)[0], jax.jit(attention)(query, key, value, mask)[0]
    )
    for tap in (lambda _, weights: weights, lambda _, weights: 2 * weights):
        expected = attention(query, key, value, causal_mask(9), tap=tap)
        actual = chunked(query, key, value, causal_mask(9), is_causal=True, tap=tap)
        jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.parametrize("attention", [scaled_dot_product_attention, mixed_attention])
def test_memory_of_chunked_attention_is_linear_in_the_length(attention):
    def size(attention, length, **kwargs):
        x = jax.ShapeDtypeStruct((2, length, 8), jnp.float32)

        def loss(*inputs):
            return (attention(*inputs, causal_mask(length), **kwargs)[0] ** 2).sum()

        program = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(x, x, x).compile()
        return program.memory_analysis().temp_size_in_bytes

    chunked = chunked_causal_attention(attention, 16)
    short, long = (size(chunked, length, is_causal=True) for length in (512, 2048))
    assert long < 5 * short
    assert long < size(attention, 2048) / 10


PRODUCTS = [((5, 7), (7, 3)), ((2, 48, 32), (32, 16)), ((33,), (33, 8)), ((2, 3, 4, 6), (6, 10))]


def to_bfloat16(array):
    return np.asarray(array).astype(jnp.bfloat16)


def rounded(array):
    """Round `array` to bfloat16 and return it as float64."""
    return to_bfloat16(array).astype(np.float64)


@pytest.mark.parametrize(("x_shape", "matrix_shape"), PRODUCTS)
def test_matmul_sums_in_float32_and_has_rounded_gradients(x_shape, matrix_shape):
    x, matrix = normal(*x_shape), normal(*matrix_shape, seed=1)
    d_output = normal(*x_shape[:-1], matrix_shape[1], seed=2)
    np.testing.assert_array_equal(jax.jit(matmul)(x, matrix), jax.jit(jnp.matmul)(x, matrix))

    @jax.jit
    def product_and_gradients(x, matrix):
        y, pull_back = jax.vjp(matmul, x, matrix)
        return y, *pull_back(d_output)

    y, d_x, d_matrix = product_and_gradients(x, to_bfloat16(matrix))
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, rounded(x) @ rounded(matrix), atol=1e-4)
    flat = rounded(d_output).reshape(-1, matrix_shape[1])
    np.testing.assert_allclose(d_x, (flat @ rounded(matrix).T).reshape(x_shape), atol=1e-4)
    expected = rounded(x).reshape(-1, matrix_shape[0]).T @ flat
    assert d_matrix.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(d_matrix, np.float64), expected, rtol=0.005, atol=1e-3)
