"""Random bits and permutations are uniform and uncorrelated, within five standard deviations."""

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
permuted_index = jax.jit(F.permuted_index, static_argnames="size")


def deviations(first, second):
    """Return the largest mean of N products of columns, in standard deviations."""
    return np.abs(first.T @ second).max() / np.sqrt(N)


def test_random_bits_are_balanced_and_uncorrelated():
    """Test within words, between neighbours and between keys; no word occurs twice."""
    words = [np.asarray(random_bits(rng, (N,))) for rng in KEYS]
    bits = [np.unpackbits(w.view(np.uint8)).reshape(N, 32) * np.float32(2) - 1 for w in words]
    for values, signs in zip(words, bits, strict=True):
        assert len(np.unique(values)) == N
        assert deviations(np.ones((N, 1), np.float32), signs) < 5
        assert np.abs(signs.T @ signs / N - np.eye(32)).max() * np.sqrt(N) < 5
        assert deviations(signs, np.roll(signs, 1, axis=0)) < 5
        uniform = (values / 2.0**32 - 0.5) * np.sqrt(12)
        for distance in (1, 2, 3, 32, 64, 128, 1024):
            assert deviations(uniform, np.roll(uniform, distance)) < 5
    for first, second in itertools.combinations(bits, 2):
        assert deviations(first, second) < 5


def test_bits_of_many_keys_are_uniform():
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), np.arange(N))
    uniform = (np.asarray(random_bits(keys, (1,))) / 2.0**32 - 0.5) * np.sqrt(12)
    assert deviations(np.ones((N, 1)), uniform) < 5
    assert deviations(uniform, np.roll(uniform, 1)) < 5


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("shape", [(), (2, 5)])
def test_arrays_of_keys_have_the_bits_of_each_key(batch, shape):
    keys = jax.random.split(jax.random.key(0), batch) if batch else jax.random.key(0)
    together, folded = random_bits(keys, shape), F.fold_in(keys, 7)
    assert together.shape == batch + shape
    assert together.dtype == np.uint32
    for i in np.ndindex(*batch):
        assert_same(np.asarray(together)[i], random_bits(keys[i], shape))
        assert folded[i] == jax.random.fold_in(keys[i], 7)
    flat = random_bits(keys, (math.prod(shape),))
    assert_same(np.reshape(together, flat.shape), flat)


# Permutations


@functools.partial(jax.jit, static_argnames="size")
def permutation(rng, size):
    return F.permuted_index(rng, jnp.arange(size), size)


# Sizes on either side of powers of four; each compiles its own program.
@given(st.sampled_from([1, 2, 4, 5, 16, 17, 300, 4097, 65_537]), st.integers(0, 2**31))
def test_a_permutation_has_every_element_once(size, seed):
    assert_same(np.sort(permutation(jax.random.key(seed), size)), np.arange(size))


@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3)])
def test_elements_depend_only_on_their_index(shape):
    index = np.random.default_rng(0).integers(0, 50, shape)
    elements = permuted_index(KEYS[1], index, 50)
    assert elements.shape == shape
    assert_same(elements, np.asarray(permutation(KEYS[1], 50))[index])


@pytest.mark.parametrize("size", [2, 3, 4, 5, 10, 17, 1000])
def test_every_element_is_equally_likely_at_every_index(size):
    """Count tenths of the elements at up to 20 indices; small sizes have all permutations."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), jnp.arange(10_000))
    index, bins = jnp.arange(min(size, 20)), min(size, 10)
    elements = np.asarray(jax.jit(jax.vmap(lambda rng: F.permuted_index(rng, index, size)))(keys))
    shares = np.bincount(np.arange(size) * bins // size) / size
    for column in (elements * bins // size).T:
        frequencies = np.bincount(column, minlength=bins) / len(elements)
        deviation = np.sqrt(shares * (1 - shares) / len(elements))
        assert (np.abs(frequencies - shares) < 5 * deviation).all()
    assert size > 5 or len({*map(tuple, elements.tolist())}) == math.factorial(size)


@pytest.mark.parametrize("size", [1000, 65_536, 100_003])
def test_permutations_are_uncorrelated(size):
    permutations = [permutation(key, size) for key in KEYS]
    pairs = [*itertools.combinations([np.arange(size), *permutations], 2)]
    for first, second in [*pairs, *((elements[:-1], elements[1:]) for elements in permutations)]:
        assert abs(np.corrcoef(first, second)[0, 1]) * np.sqrt(size) < 5
