"""Random bits and orders: as even as dropout and epochs need them, for fixed keys.

What is said to be random is within five standard deviations.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.arrays import assert_same
from tlite import functional as F

N = 2**16
KEYS = [jax.random.key(seed) for seed in (0, 1, 2**31)]
KEYS += [jax.random.fold_in(KEYS[0], i) for i in range(3)]
random_bits = jax.jit(F.random_bits, static_argnames="shape")
shuffled = jax.jit(F.permuted_index, static_argnames="size")


def deviations(first, second):
    """How far the mean of N products of independent columns is from 0, in standard deviations."""
    return np.abs(first.T @ second).max() / np.sqrt(N)


def test_random_bits_are_balanced_and_uncorrelated():
    """And no word is repeated; `test_golden.py` has the very numbers."""
    words = [np.asarray(random_bits(rng, (N,))) for rng in KEYS]
    bits = [np.unpackbits(w.view(np.uint8)).reshape(N, 32) * np.float32(2) - 1 for w in words]
    for own, signs in zip(words, bits, strict=True):
        assert len(np.unique(own)) == N
        assert deviations(np.ones((N, 1), np.float32), signs) < 5
        assert np.abs(signs.T @ signs / N - np.eye(32)).max() * np.sqrt(N) < 5
        assert deviations(signs, np.roll(signs, 1, axis=0)) < 5
        uniform = (own / 2.0**32 - 0.5) * np.sqrt(12)
        for distance in (1, 2, 3, 32, 64, 128, 1024):
            assert deviations(uniform, np.roll(uniform, distance)) < 5
    for first, second in itertools.combinations(bits, 2):
        assert deviations(first, second) < 5


def test_many_keys_for_one_element_are_uniform_too():
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), np.arange(N))
    uniform = (np.asarray(random_bits(keys, (1,))) / 2.0**32 - 0.5) * np.sqrt(12)
    assert deviations(np.ones((N, 1)), uniform) < 5
    assert deviations(uniform, np.roll(uniform, 1)) < 5


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("shape", [(), (2, 5)])
def test_words_of_many_keys_are_those_of_each(batch, shape):
    @jax.jit
    def results():
        keys = jax.random.split(jax.random.key(0), batch) if batch else jax.random.key(0)
        each = {i: F.random_bits(keys[i], shape) for i in np.ndindex(*batch)}
        return F.random_bits(keys, shape), each

    together, each = results()
    assert together.shape == batch + shape
    assert together.dtype == np.uint32
    for i, alone in each.items():
        assert_same(np.asarray(together)[i], alone)


def test_words_depend_on_the_index_alone_not_on_the_shape():
    key = jax.random.key(0)
    assert_same(np.ravel(random_bits(key, (4, 6))), random_bits(key, (24,)))


def test_fold_in_is_that_of_jax_for_each_key():
    keys = jax.random.split(jax.random.key(0), (2, 3))
    folded = F.fold_in(keys, 7)
    assert all(folded[i] == jax.random.fold_in(keys[i], 7) for i in np.ndindex(2, 3))


# Orders


@functools.partial(jax.jit, static_argnames="size")
def order(rng, size):
    return F.permuted_index(rng, jnp.arange(size), size)


# On either side of powers of four: each size has a program of its own.
@given(st.sampled_from([1, 2, 4, 5, 16, 17, 300, 4097, 65_537]), st.integers(0, 2**31))
def test_an_order_has_every_element_once(size, seed):
    assert_same(np.sort(order(jax.random.key(seed), size)), np.arange(size))


@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3)])
def test_elements_depend_on_their_places_alone(shape):
    places = np.random.default_rng(0).integers(0, 50, shape)
    elements = shuffled(KEYS[1], places, 50)
    assert elements.shape == shape
    assert_same(elements, np.asarray(order(KEYS[1], 50))[places])


@pytest.mark.parametrize("size", [2, 3, 4, 5, 10, 17, 1000])
def test_every_element_comes_to_every_place_about_equally_often(size):
    """By tenths of the elements, at 20 places at most; of few elements all orders come up."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), jnp.arange(10_000))
    places, parts = jnp.arange(min(size, 20)), min(size, 10)
    elements = np.asarray(jax.jit(jax.vmap(lambda rng: F.permuted_index(rng, places, size)))(keys))
    shares = np.bincount(np.arange(size) * parts // size) / size
    for place in (elements * parts // size).T:
        frequencies = np.bincount(place, minlength=parts) / len(elements)
        deviation = np.sqrt(shares * (1 - shares) / len(elements))
        assert (np.abs(frequencies - shares) < 5 * deviation).all()
    assert size > 5 or len({*map(tuple, elements.tolist())}) == math.factorial(size)


@pytest.mark.parametrize("size", [1000, 65_536, 100_003])
def test_orders_follow_neither_the_places_nor_each_other(size):
    orders = [order(key, size) for key in KEYS]
    pairs = [*itertools.combinations([np.arange(size), *orders], 2)]
    for first, second in [*pairs, *((elements[:-1], elements[1:]) for elements in orders)]:
        assert abs(np.corrcoef(first, second)[0, 1]) * np.sqrt(size) < 5
