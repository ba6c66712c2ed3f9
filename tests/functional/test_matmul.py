import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tlite.functional import matmul

SHAPES = [((5, 7), (7, 3)), ((2, 48, 32), (32, 16)), ((33,), (33, 8)), ((2, 3, 4, 6), (6, 10))]


def draw(x_shape, matrix_shape):
    keys = jax.random.split(jax.random.key(0), 3)
    x, matrix = jax.random.normal(keys[0], x_shape), jax.random.normal(keys[1], matrix_shape)
    return x, matrix, jax.random.normal(keys[2], (*x_shape[:-1], matrix_shape[1]))


def rounded(array):
    """As float64, after rounding to bfloat16."""
    return np.asarray(array.astype(jnp.bfloat16), np.float64)


@pytest.mark.parametrize(("x_shape", "matrix_shape"), SHAPES)
def test_float32_operands_give_the_plain_product(x_shape, matrix_shape):
    x, matrix, _ = draw(x_shape, matrix_shape)
    np.testing.assert_array_equal(matmul(x, matrix), x @ matrix)


@pytest.mark.parametrize(("x_shape", "matrix_shape"), SHAPES)
def test_bfloat16_operands_are_summed_in_float32(x_shape, matrix_shape):
    x, matrix, _ = draw(x_shape, matrix_shape)
    y = matmul(x, matrix.astype(jnp.bfloat16))
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, rounded(x) @ rounded(matrix), atol=1e-4)


@pytest.mark.parametrize(("x_shape", "matrix_shape"), SHAPES)
def test_gradients_are_those_of_the_rounded_operands(x_shape, matrix_shape):
    x, matrix, gradient = draw(x_shape, matrix_shape)
    _, pull_back = jax.vjp(matmul, x, matrix.astype(jnp.bfloat16))
    by_x, by_matrix = pull_back(gradient)
    rows = rounded(gradient).reshape(-1, matrix_shape[1])
    np.testing.assert_allclose(by_x, (rows @ rounded(matrix).T).reshape(x_shape), atol=1e-4)
    expected = rounded(x).reshape(-1, matrix_shape[0]).T @ rows
    assert by_matrix.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(by_matrix, np.float64), expected, rtol=0.005, atol=1e-3)


def test_products_work_in_a_loop_under_vmap_and_jit():
    x, matrix, _ = draw((4, 5, 8), (8, 8))
    matrix = matrix.astype(jnp.bfloat16)
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, x: matmul(x, matrix), x))
    once = jnp.asarray(rounded(x) @ rounded(matrix), jnp.float32)
    np.testing.assert_allclose(looped(x), rounded(once) @ rounded(matrix), atol=1e-5)
    np.testing.assert_allclose(
        jax.vmap(matmul, in_axes=(0, None))(x, matrix), matmul(x, matrix), atol=1e-5
    )
