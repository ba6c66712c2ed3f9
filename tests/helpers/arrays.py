"""Random arrays and parameters, and comparisons of values and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from tlite import functional as F
from tlite.models.block import BlockParameters


def numbers(*shape, seed=0):
    """Return normal numbers as a NumPy array, without compiling a program."""
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def normal(*shape, seed=0):
    return jax.device_put(numbers(*shape, seed=seed))


def some_mask(*shape, seed=0):
    """Return a random mask, True for two in three keys and for the first of every query."""
    mask = np.random.default_rng([seed, *shape]).random(shape) < 2 / 3
    mask[..., 0] = True
    return jax.device_put(mask)


def host_copy(replicas):
    """Copy the arrays of a `TrainState` before the next step donates their buffers."""
    return jax.tree.map(np.array, jax.device_get(replicas._replace(key=None)))


def linear_parameters(inputs, outputs, bias=True, seed=0):
    kernel = numbers(inputs, outputs, seed=seed) / np.sqrt(np.float32(inputs))
    return F.LinearParameters(jax.device_put(kernel), normal(outputs, seed=seed) if bias else None)


def norm_parameters(width, bias=True, seed=0):
    return F.NormParameters(
        jax.device_put(1 + numbers(width, seed=seed) / 4),
        normal(width, seed=seed + 1) if bias else None,
    )


def attention_parameters(width, query_dim, bias=True, seed=0, *, kv_dim=None, norm_dim=None):
    """Return attention parameters, with norms of queries and keys of width `norm_dim`."""
    sizes = query_dim, kv_dim or query_dim, kv_dim or query_dim
    layers = (linear_parameters(width, size, bias, seed + i) for i, size in enumerate(sizes))
    norms = [norm_parameters(norm_dim, False, seed + i) for i in (6, 7)] if norm_dim else []
    return F.AttentionParameters(*layers, linear_parameters(query_dim, width, bias, seed), *norms)


def feed_forward_parameters(width, hidden, bias=True, seed=0, *, gated=False):
    gate = linear_parameters(width, hidden, bias, seed + 1) if gated else None
    return F.FeedForwardParameters(
        linear_parameters(width, hidden, bias, seed),
        linear_parameters(hidden, width, bias, seed),
        gate,
    )


def block_parameters(width, mlp_dim, norm_bias=True, *, decoder=False):
    """Return parameters of a block, with cross-attention if `decoder`."""
    cross_attention = {
        "cross_attention": attention_parameters(width, width, seed=5),
        "cross_attention_norm": norm_parameters(width, norm_bias, 4),
    }
    return BlockParameters(
        attention=attention_parameters(width, width),
        attention_norm=norm_parameters(width, norm_bias),
        feed_forward=feed_forward_parameters(width, mlp_dim),
        feed_forward_norm=norm_parameters(width, norm_bias, 2),
        **cross_attention if decoder else {},
    )


def integers(high, *shape):
    drawn = np.random.default_rng([high, *shape]).integers(0, high, shape)
    return jax.device_put(drawn.astype(np.int32))


def exact(tree):
    """Convert arrays to NumPy, float32 to float64."""
    return jax.tree.map(
        lambda x: np.array(x, np.float64 if x.dtype == np.float32 else x.dtype), tree
    )


def over_batch(batch, formula, *arrays, params=None):
    """Apply `formula` to the parameters and every sample of arrays with leading axes `batch`."""
    if params is not None:
        formula = functools.partial(formula, exact(params))
    arrays = exact(arrays)
    results = [formula(*(array[i] for array in arrays)) for i in np.ndindex(*batch)]
    return jax.tree.map(
        lambda *leaves: np.stack(leaves).reshape(batch + np.shape(leaves[0])), *results
    )


def assert_close(actual, expected, tolerance=1e-5):
    jax.tree.map(
        lambda a, e: np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance),
        actual,
        expected,
    )


def assert_same(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def assert_all_finite(tree):
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def assert_gradients_are_causal(function, x):
    """Assert that row t of the result has gradients in rows 0 to t of x and in no other."""

    @jax.jit
    def row_gradients(x):
        result, pull_back = jax.vjp(function, x)
        rows = jnp.eye(len(x))[:, :, None] * normal(*result.shape)
        return jax.vmap(pull_back)(rows)[0]

    assert_same(np.asarray(row_gradients(x)).any(-1), np.tri(len(x), dtype=bool))
