"""Random bits and orders: as even as dropout and epochs need them, for fixed keys.

What is said to be random is within five standard deviations.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.arrays import assert_same
from tlite import functional as F

N = 2**16
KEYS = {str(seed): jax.random.key(seed) for seed in (0, 1, 2**31)}
KEYS |= {f"step {i}": jax.random.fold_in(KEYS["0"], i) for i in range(3)}
PAIRS = list(itertools.combinations(KEYS, 2))
each_pair = pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
each_key = pytest.mark.parametrize("key", KEYS)


random_bits = jax.jit(F.random_bits, static_argnames="shape")
shuffled = jax.jit(F.shuffled, static_argnames="size")


@functools.cache
def words(rng):
    return np.asarray(random_bits(KEYS[rng], (N,)))


@functools.cache
def signs(rng):
    """The 32 bits of each word as -1 and 1."""
    return np.unpackbits(words(rng).view(np.uint8).reshape(-1, 4), axis=1) * np.float32(2) - 1


def uniforms(rng):
    """Mean 0 and variance 1, to correlate."""
    return (words(rng) / 2.0**32 - 0.5) * np.sqrt(12)


def correlations(first, second):
    return first.T @ second / N


def deviations(products):
    """The mean of N products of independent signs or uniforms, in standard deviations."""
    return np.abs(products).max() * np.sqrt(N)


@each_key
def test_bits_are_balanced_and_uncorrelated_within_a_word_and_with_its_neighbour(key):
    bits = signs(key)
    assert deviations(bits.mean(0)) < 5
    assert deviations(correlations(bits, bits) - np.eye(32)) < 5
    assert deviations(correlations(bits, np.roll(bits, 1, axis=0))) < 5


@each_key
def test_neighbours_are_uncorrelated_and_no_word_is_repeated(key):
    x = uniforms(key)
    for distance in (1, 2, 3, 32, 64, 128, 1024):
        assert deviations((x * np.roll(x, distance)).mean()) < 5
    assert len(np.unique(words(key))) == N


@each_pair
def test_different_keys_are_uncorrelated_and_do_not_repeat_each_other(pair):
    first, second = pair
    assert deviations((uniforms(first) * uniforms(second)).mean()) < 5
    assert deviations(correlations(signs(first), signs(second))) < 5
    expected = N * N / 2**32
    assert len(np.intersect1d(*map(words, pair))) < expected + 5 * np.sqrt(expected)


@each_key
def test_bytes_are_uniform_by_their_chi_square(key):
    counts = np.bincount(words(key).view(np.uint8), minlength=256)
    expected = 4 * N / 256
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - 255) < 5 * np.sqrt(2 * 255)


def test_many_keys_for_one_element_are_uniform_too():
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), np.arange(N))
    first = np.asarray(random_bits(keys, (1,)))[:, 0] / 2.0**32 - 0.5
    assert deviations(first.mean() * np.sqrt(12)) < 5
    assert deviations((first * np.roll(first, 1)).mean() * 12) < 5


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

SIZES = [2, 3, 4, 5, 10, 17, 1000]
each_size = pytest.mark.parametrize("size", SIZES)


@functools.partial(jax.jit, static_argnames="size")
def order(rng, size):
    return F.shuffled(rng, jnp.arange(size), size)


@functools.cache
def many_orders(size):
    """The elements at the first places, 20 at most, in an order for each of many keys."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), jnp.arange(10_000))
    places = jnp.arange(min(size, 20))
    return np.asarray(jax.jit(jax.vmap(lambda rng: F.shuffled(rng, places, size)))(keys))


# On either side of powers of four: each size has a program of its own.
@given(st.sampled_from([1, 2, 4, 5, 16, 17, 300, 4097, 65_537]), st.integers(0, 2**31))
def test_an_order_has_every_element_once(size, seed):
    assert_same(np.sort(order(jax.random.key(seed), size)), np.arange(size))


@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3)])
def test_elements_depend_on_their_places_alone(shape):
    places = np.random.default_rng(0).integers(0, 50, shape)
    elements = shuffled(KEYS["1"], places, 50)
    assert elements.shape == shape
    assert_same(elements, np.asarray(order(KEYS["1"], 50))[places])


@each_size
def test_every_element_comes_to_every_place_about_equally_often(size):
    """By tenths of the elements."""
    elements, parts = many_orders(size), min(size, 10)
    number = len(elements)
    shares = np.bincount(np.arange(size) * parts // size) / size
    for place in (elements * parts // size).T:
        frequencies = np.bincount(place, minlength=parts) / number
        deviation = np.sqrt(shares * (1 - shares) / number)
        assert (np.abs(frequencies - shares) < 5 * deviation).all()


def test_all_orders_of_few_elements_come_up():
    assert len({tuple(elements) for elements in many_orders(4).tolist()}) == 24


@pytest.mark.parametrize("size", [1000, 65_536, 100_003])
def test_orders_follow_neither_the_places_nor_each_other(size):
    orders = [order(key, size) for key in KEYS.values()]
    for first, second in itertools.combinations([np.arange(size), *orders], 2):
        assert abs(np.corrcoef(first, second)[0, 1]) * np.sqrt(size) < 5
    for elements in orders:
        assert abs(np.corrcoef(elements[:-1], elements[1:])[0, 1]) * np.sqrt(size) < 5
