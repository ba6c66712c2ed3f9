"""The faster attentions have the output and gradients of the definition, up to rounding; and so
have products in mixed precision: operands in bfloat16, sums in float32."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import normal
from tlite.functional import causal_mask, matmul, scaled_dot_product_attention
from tlite.functional.fast_attention import (
    chunked_causal_attention,
    fused_attention,
    mixed_attention,
)

SHAPES = {"one head": (5, 4), "heads": (2, 3, 7, 5), "shared keys": (2, 3, 7, 5)}


def blind_in_row_2(t):
    return jnp.asarray(np.tri(t, dtype=bool) & (np.arange(t) != 2)[:, None])


def some(*shape):
    return jnp.asarray(np.random.default_rng(5).random(shape) < 0.6)


MASKS = {
    "none": lambda t: None,
    "causal": causal_mask,
    "a row that sees nothing": blind_in_row_2,
    "of keys of each example": lambda t: some(2, 1, 1, t),
    "of each head": lambda t: some(2, 3, t, t),
    "of all examples": lambda t: some(1, 1, t, t),
}


def draw(shape, seed=0):
    """Numbers that bfloat16 holds exactly, so that only sums and weights are rounded."""
    numbers = np.random.default_rng([seed, *shape]).normal(size=(4, *shape))
    return [jax.device_put(x.astype(jnp.bfloat16).astype(np.float32)) for x in numbers]


each_attention = pytest.mark.parametrize(
    "attention", [mixed_attention, fused_attention], ids=["mixed", "fused"]
)


def results_of(attention, inputs, gradient, **settings):
    """Output and gradients by each input."""

    @jax.jit
    def both(inputs):
        output, pull_back = jax.vjp(lambda inputs: attention(**inputs, **settings)[0], inputs)
        return output, *pull_back(gradient)[0].values()

    return both(inputs)


@each_attention
@pytest.mark.parametrize(
    ("shape", "mask"),
    [("one head", m) for m in list(MASKS)[:3]]
    + [("heads", m) for m in MASKS]
    + [("shared keys", "of each head")],
)
def test_output_and_gradients_are_those_of_the_definition_up_to_rounding(shape, mask, attention):
    """Where it gives zeros, as of what is masked, they are zeros to the bit."""
    query, key, value, gradient = draw(SHAPES[shape])
    inputs = {"query": query, "key": key, "value": value}
    if shape == "shared keys":
        inputs |= {"key": key[:, :1], "value": value[:, :1]}
    mask = MASKS[mask](SHAPES[shape][-2])
    both = attention, scaled_dot_product_attention
    results = (results_of(functools.partial(a, mask=mask), inputs, gradient) for a in both)
    for ours, expected, close in zip(*results, [0.01, 0.02, 0.02, 0.02], strict=True):
        assert ours.dtype == jnp.float32
        expected = np.asarray(expected)
        # 0.008 was measured: several operands are rounded by up to 0.002 of each (8 bits) in turn.
        np.testing.assert_allclose(ours, expected, atol=close * np.abs(expected).max())
        assert not np.asarray(ours)[expected == 0].any()


@pytest.mark.parametrize("window", [0, 1, 3])
def test_what_is_causal_and_within_a_window_is_what_the_mask_says(window):
    query, key, value, gradient = draw((2, 3, 7, 4))
    inputs = {"query": query, "key": key, "value": value}
    near = np.subtract.outer(*[np.arange(7)] * 2) < (window or 7)
    mask = jnp.asarray(np.tri(7, dtype=bool) & near)
    attention = functools.partial(fused_attention, mask=mask)
    said = results_of(attention, inputs, gradient, causal=True, window=window)
    for one, other in zip(said, results_of(attention, inputs, gradient), strict=True):
        np.testing.assert_allclose(one, other, atol=0.01 * np.abs(other).max())


@each_attention
@pytest.mark.parametrize("factor", [1, 2])
def test_observed_weights_are_the_ones_used_and_are_of_rounded_operands(attention, factor):
    inputs = [normal(2, 3, 7, 4, seed=seed) for seed in range(3)]
    seen, scaled = [], lambda name, weights: seen.append(weights) or factor * weights
    output, weights = attention(*inputs, causal_mask(7), tap=scaled)
    plain = attention(*inputs, causal_mask(7))
    np.testing.assert_allclose(output, factor * plain[0], atol=0.02 * factor)
    np.testing.assert_array_equal(weights, factor * seen[0])
    np.testing.assert_array_equal(seen[0], plain[1])
    exact = scaled_dot_product_attention(*inputs, causal_mask(7))[1]
    np.testing.assert_allclose(seen[0], exact, atol=0.01)
    assert (seen[0] != exact).any()


# So many queries at a time


EXACT, MIXED = (scaled_dot_product_attention, None, 1e-6), (mixed_attention, jnp.bfloat16, 0.01)
CASES = {  # heads of keys, settings; the attention, its operands and tolerance
    "plain": (4, {}, *EXACT),
    "shared keys, scaled and capped": (2, {"scale": 0.3, "softcap": 2.0}, *EXACT),
    "mixed": (4, {}, *MIXED),
}


@pytest.mark.parametrize(
    ("case", "window"), [*itertools.product([*CASES][:2], [0, 1, 9]), ("mixed", 9)]
)
@pytest.mark.parametrize(("length", "rows"), [(3, 8), (16, 8), (39, 2)])
def test_by_rows_it_is_the_definition(length, rows, case, window):
    """With a bias of scores where these are scaled and capped; and its gradient."""
    heads, of_scores, attention, operands, close = CASES[case]
    query, key, value, gradient = draw((2, 4, length, 5))
    inputs = {"query": query, "key": key[:, :heads], "value": value[:, :heads]}
    inputs |= {"bias": draw((1, 4, length, length))[0]} if of_scores else {}
    near = np.subtract.outer(*[np.arange(length)] * 2) < (window or length)
    whole = functools.partial(attention, mask=causal_mask(length) & near)
    expected = results_of(whole, inputs, gradient, **of_scores)
    said = {"causal": True, "window": window, **of_scores}
    ours = results_of(chunked_causal_attention(attention, rows, operands), inputs, gradient, **said)
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=close * np.abs(other).max())


@pytest.mark.parametrize("attention", [scaled_dot_product_attention, mixed_attention])
def test_what_is_not_causal_or_is_looked_at_is_computed_whole(attention):
    query, key, value, _ = draw((2, 3, 9, 4))
    mask = some(2, 1, 1, 9)  # of keys that are padding, say
    np.testing.assert_array_equal(
        jax.jit(chunked_causal_attention(attention, 2))(query, key, value, mask)[0],
        jax.jit(attention)(query, key, value, mask)[0],
    )
    for tap in (lambda _, weights: weights, lambda _, weights: 2 * weights):
        settings = {"mask": causal_mask(9), "tap": tap}
        ours = chunked_causal_attention(attention, 2)(query, key, value, causal=True, **settings)
        jax.tree.map(np.testing.assert_array_equal, ours, attention(query, key, value, **settings))


@pytest.mark.parametrize("attention", [scaled_dot_product_attention, mixed_attention])
def test_by_rows_memory_grows_with_the_length_and_not_with_its_square(attention):
    """That of a program of output and gradients, beside what goes in and comes out."""

    def size(attention, length, **settings):
        x = jax.ShapeDtypeStruct((2, length, 8), jnp.float32)

        def loss(*inputs):
            return (attention(*inputs, causal_mask(length), **settings)[0] ** 2).sum()

        program = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(x, x, x).compile()
        return program.memory_analysis().temp_size_in_bytes

    short, long = (
        size(chunked_causal_attention(attention, 16), length, causal=True) for length in (512, 2048)
    )
    assert long < 5 * short
    assert long < size(attention, 2048) / 10


# Products of matrices

PRODUCTS = [((5, 7), (7, 3)), ((2, 48, 32), (32, 16)), ((33,), (33, 8)), ((2, 3, 4, 6), (6, 10))]


def drawn(x_shape, matrix_shape):
    x, matrix = normal(*x_shape), normal(*matrix_shape, seed=1)
    return x, matrix, normal(*x_shape[:-1], matrix_shape[1], seed=2)


product = jax.jit(matmul)


def halved(array):
    return np.asarray(array).astype(jnp.bfloat16)


def rounded(array):
    """As float64, after rounding to bfloat16."""
    return halved(array).astype(np.float64)


@pytest.mark.parametrize(("x_shape", "matrix_shape"), PRODUCTS)
def test_float32_operands_give_the_plain_product(x_shape, matrix_shape):
    x, matrix, _ = drawn(x_shape, matrix_shape)
    np.testing.assert_array_equal(product(x, matrix), jax.jit(jnp.matmul)(x, matrix))


@pytest.mark.parametrize(("x_shape", "matrix_shape"), PRODUCTS)
def test_bfloat16_operands_are_summed_in_float32(x_shape, matrix_shape):
    x, matrix, _ = drawn(x_shape, matrix_shape)
    y = product(x, halved(matrix))
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, rounded(x) @ rounded(matrix), atol=1e-4)


@pytest.mark.parametrize(("x_shape", "matrix_shape"), PRODUCTS)
def test_gradients_are_those_of_the_rounded_operands(x_shape, matrix_shape):
    x, matrix, gradient = drawn(x_shape, matrix_shape)
    gradients = jax.jit(lambda x, matrix: jax.vjp(matmul, x, matrix)[1](gradient))
    by_x, by_matrix = gradients(x, halved(matrix))
    rows = rounded(gradient).reshape(-1, matrix_shape[1])
    np.testing.assert_allclose(by_x, (rows @ rounded(matrix).T).reshape(x_shape), atol=1e-4)
    expected = rounded(x).reshape(-1, matrix_shape[0]).T @ rows
    assert by_matrix.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(by_matrix, np.float64), expected, rtol=0.005, atol=1e-3)
