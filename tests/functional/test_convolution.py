"""The short convolution: its sum, causality, what came before, and caches."""

import jax
import numpy as np
import pytest

from tests.helpers import reference
from tests.helpers.arrays import (
    assert_close,
    assert_same,
    exact,
    normal,
)
from tlite import functional as F
from tlite.functional.convolution import rows_before

T, D = 5, 3
X = np.asarray(normal(2, T, D))
causal_convolution = jax.jit(F.causal_convolution)


@pytest.mark.parametrize("number", [1, 2, T, T + 2])
def test_it_is_its_sum(number):
    taps = normal(number, D)
    expected = np.stack([reference.causal_convolution(exact(taps), exact(x)) for x in X])
    assert_close(causal_convolution(taps, X), expected, 1e-6)


def test_without_taps_of_its_own_it_is_the_identity():
    assert_same(causal_convolution(np.zeros((3, D), np.float32), X), X)


def test_a_place_sees_itself_and_so_many_before_it():
    slopes = jax.jit(jax.jacobian(lambda x: causal_convolution(normal(3, D), x)))(X[0])
    distances = np.subtract.outer(np.arange(T), np.arange(T))
    assert_same(np.asarray(slopes).any((1, 3)), (distances >= 0) & (distances < 3))


@pytest.mark.parametrize("start", [np.array(2), np.array([0, 3])])
def test_the_end_of_a_sequence_follows_from_the_rows_before_it(start):
    taps, places = normal(3, D), np.broadcast_to(start, 2)[:, None] + np.arange(2)
    taken = (np.arange(2)[:, None], places)
    before = jax.jit(rows_before, static_argnums=2)(X, start, 2)
    whole = np.asarray(causal_convolution(taps, X))
    assert_close(causal_convolution(taps, X[taken], before), whole[taken], 1e-6)
