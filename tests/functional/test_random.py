"""Random bits: what dropout needs of them, within five standard deviations for fixed keys."""

import functools
import itertools

import jax
import numpy as np
import pytest

from tests.functional.helpers import assert_same
from tlite import functional as F

N = 2**16
KEYS = {
    "0": jax.random.key(0),
    "1": jax.random.key(1),
    "2**31": jax.random.key(2**31),
    "step 0": jax.random.fold_in(jax.random.key(0), 0),
    "step 1": jax.random.fold_in(jax.random.key(0), 1),
    "step 2": jax.random.fold_in(jax.random.key(0), 2),
}
PAIRS = list(itertools.combinations(KEYS, 2))
each_pair = pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
each_key = pytest.mark.parametrize("key", KEYS)


@functools.cache
def words(key):
    return np.asarray(F.random_bits(KEYS[key], (N,)))


@functools.cache
def signs(key):
    """The 32 bits of each word as -1 and 1."""
    return np.unpackbits(words(key).view(np.uint8).reshape(-1, 4), axis=1) * np.float32(2) - 1


def uniforms(key):
    """Mean 0 and variance 1, to correlate."""
    return (words(key) / 2.0**32 - 0.5) * np.sqrt(12)


def correlations(first, second):
    return np.einsum("ni,nj->ij", first, second) / N


def deviations(products):
    """The mean of N products of independent signs or uniforms, in standard deviations."""
    return np.abs(products).max() * np.sqrt(N)


@each_key
def test_words_are_uniform_on_average(key):
    assert deviations(uniforms(key).mean()) < 5


@each_key
def test_each_of_the_32_bits_is_balanced(key):
    assert deviations(signs(key).mean(0)) < 5


@each_key
def test_bits_of_a_word_are_uncorrelated(key):
    assert deviations(correlations(signs(key), signs(key)) - np.eye(32)) < 5


@pytest.mark.parametrize("distance", [1, 2, 3, 32, 64, 128, 1024])
@each_key
def test_neighbours_are_uncorrelated(key, distance):
    x = uniforms(key)
    assert deviations((x * np.roll(x, distance)).mean()) < 5


@each_key
def test_bits_of_neighbours_are_uncorrelated(key):
    following = np.roll(signs(key), 1, axis=0)
    assert deviations(correlations(signs(key), following)) < 5


@each_pair
def test_different_keys_are_uncorrelated(pair):
    first, second = pair
    assert deviations((uniforms(first) * uniforms(second)).mean()) < 5
    assert deviations(correlations(signs(first), signs(second))) < 5


@each_pair
def test_no_key_repeats_the_words_of_another_at_other_places(pair):
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
    first = np.asarray(F.random_bits(keys, (1,)))[:, 0] / 2.0**32 - 0.5
    assert deviations(first.mean() * np.sqrt(12)) < 5
    assert deviations((first * np.roll(first, 1)).mean() * 12) < 5


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("shape", [(), (2, 5)])
def test_words_of_many_keys_are_those_of_each(batch, shape):
    keys = jax.random.split(jax.random.key(0), batch) if batch else jax.random.key(0)
    together = F.random_bits(keys, shape)
    assert together.shape == batch + shape
    assert together.dtype == np.uint32
    for i in np.ndindex(*batch):
        assert_same(together[i], F.random_bits(keys[i], shape))


def test_words_depend_on_the_index_alone_not_on_the_shape():
    key = jax.random.key(0)
    assert_same(F.random_bits(key, (4, 6)).reshape(-1), F.random_bits(key, (24,)))


@each_key
def test_words_do_not_repeat(key):
    assert len(np.unique(words(key))) == N


def test_fold_in_is_that_of_jax_for_each_key():
    keys = jax.random.split(jax.random.key(0), (2, 3))
    folded = F.fold_in(keys, 7)
    for i in np.ndindex(2, 3):
        assert folded[i] == jax.random.fold_in(keys[i], 7)
