"""Padding has no effect on the pools of a classifier."""

import functools

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.helpers.arrays import (
    assert_all_finite,
    assert_close,
    assert_same,
    linear_parameters,
    normal,
)
from tlite.models.classifier import attention_pool, dense_pool, mean_pool

T, D = 5, 4
POOLS = {
    "dense": dense_pool,
    "mean": lambda params, x, mask: mean_pool(x, mask),
    "attention": attention_pool,
}


@functools.cache
def pooled_and_gradients(pool):
    """A function of (x, mask) that returns the pooled vector and gradients of a weighted sum."""

    @jax.jit
    def compute(x, mask):
        params = linear_parameters(D, 1)
        pooled, pull_back = jax.vjp(lambda params, x: pool(params, x, mask), params, x)
        return pooled, *pull_back(normal(*pooled.shape))

    return compute


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
@hypothesis.given(arrays(bool, T), st.sampled_from([0.0, 1.0, -100.0, 1e30]))
def test_padding_changes_no_bit_and_has_no_gradient(pool, mask, size):
    x, compute = np.asarray(normal(T, D)), pooled_and_gradients(pool)
    noise = np.float32(size) * np.asarray(normal(T, D, seed=1))
    expected, params_gradient, _ = compute(x, mask)
    pooled, *gradients = compute(np.where(mask[:, None], x, noise), mask)
    assert_same(pooled, expected)
    assert_all_finite(gradients)
    assert_close(gradients[0], params_gradient, 1e-6)
    assert_same(np.asarray(gradients[1])[~mask], np.zeros_like(x)[~mask])
