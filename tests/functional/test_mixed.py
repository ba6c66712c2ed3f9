"""Products in mixed precision: operands in bfloat16, sums in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import normal
from tlite.functional import matmul

SHAPES = [((5, 7), (7, 3)), ((2, 48, 32), (32, 16)), ((33,), (33, 8)), ((2, 3, 4, 6), (6, 10))]


def draw(x_shape, matrix_shape):
    x, matrix = normal(*x_shape), normal(*matrix_shape, seed=1)
    return x, matrix, normal(*x_shape[:-1], matrix_shape[1], seed=2)


product = jax.jit(matmul)


def halved(array):
    return np.asarray(array).astype(jnp.bfloat16)


def rounded(array):
    """As float64, after rounding to bfloat16."""
    return halved(array).astype(np.float64)


@pytest.mark.parametrize(("x_shape", "matrix_shape"), SHAPES)
def test_float32_operands_give_the_plain_product(x_shape, matrix_shape):
    x, matrix, _ = draw(x_shape, matrix_shape)
    np.testing.assert_array_equal(product(x, matrix), jax.jit(jnp.matmul)(x, matrix))


@pytest.mark.parametrize(("x_shape", "matrix_shape"), SHAPES)
def test_bfloat16_operands_are_summed_in_float32(x_shape, matrix_shape):
    x, matrix, _ = draw(x_shape, matrix_shape)
    y = product(x, halved(matrix))
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, rounded(x) @ rounded(matrix), atol=1e-4)


@pytest.mark.parametrize(("x_shape", "matrix_shape"), SHAPES)
def test_gradients_are_those_of_the_rounded_operands(x_shape, matrix_shape):
    x, matrix, gradient = draw(x_shape, matrix_shape)
    gradients = jax.jit(lambda x, matrix: jax.vjp(matmul, x, matrix)[1](gradient))
    by_x, by_matrix = gradients(x, halved(matrix))
    rows = rounded(gradient).reshape(-1, matrix_shape[1])
    np.testing.assert_allclose(by_x, (rows @ rounded(matrix).T).reshape(x_shape), atol=1e-4)
    expected = rounded(x).reshape(-1, matrix_shape[0]).T @ rows
    assert by_matrix.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(by_matrix, np.float64), expected, rtol=0.005, atol=1e-3)
