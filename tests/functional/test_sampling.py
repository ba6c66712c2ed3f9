"""Sampling: filters keep what they say, draws follow the softmax."""

import jax
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.helpers import reference
from tests.helpers.arrays import assert_same, exact, normal
from tlite import functional as F

V, N = 8, 20_000
greedy = jax.jit(F.greedy)
keep_top_k = jax.jit(F.keep_top_k, static_argnums=1)
keep_top_p = jax.jit(F.keep_top_p, static_argnums=1)
sample = jax.jit(F.sample, static_argnames=("top_k", "top_p"))
unequal = st.permutations(range(V)).map(lambda order: np.float32(order) / 2)
any_logits = st.lists(st.integers(-8, 8), min_size=V, max_size=V).map(
    lambda values: np.float32(values) / 2
)


def kept(filtered):
    return set(np.flatnonzero(np.isfinite(filtered)).tolist())


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_greedy_takes_the_largest(batch):
    logits = normal(*batch, V)
    assert_same(greedy(logits), np.asarray(logits).argmax(-1))


def test_greedy_takes_the_first_of_equals():
    assert greedy(np.float32([0.0, 2.0, 2.0])) == 1


@given(unequal, st.integers(1, V + 2))
def test_top_k_keeps_the_k_largest_of_unequal_logits_as_they_were(logits, k):
    filtered = np.asarray(keep_top_k(logits, k))
    assert kept(filtered) == set(np.argsort(-logits)[:k].tolist())
    assert_same(filtered, np.where(np.isfinite(filtered), logits, -np.inf))


def test_top_k_keeps_all_that_equal_the_last_kept():
    assert kept(keep_top_k(np.float32([1.0, 2.0, 1.0, 0.0]), 2)) == {0, 1, 2}


@given(any_logits, st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_set_that_reaches_p(logits, p):
    odds = np.sort(np.exp(exact(logits)))[::-1]
    assume(np.abs(odds.cumsum() / odds.sum() - p).min() > 1e-5)
    filtered = np.asarray(F.keep_top_p(jax.device_put(logits), p))
    assert kept(filtered) == reference.top_p(logits.tolist(), p)
    assert_same(filtered, np.where(np.isfinite(filtered), logits, -np.inf))


@given(any_logits)
def test_top_p_of_1_keeps_all_and_a_tiny_p_one(logits):
    assert kept(keep_top_p(100 * logits, 1.0)) == set(range(V))
    assert kept(keep_top_p(logits, 1e-9)) == {int(logits.argmax())}


@pytest.mark.parametrize("keep", [lambda x: keep_top_k(x, 3), lambda x: keep_top_p(x, 0.7)])
def test_filters_of_a_batch_are_those_of_its_rows(keep):
    logits = np.asarray(normal(2, 3, V))
    together = np.asarray(keep(logits))
    for i in np.ndindex(2, 3):
        assert_same(together[i], keep(logits[i]))
    assert_same(jax.jit(jax.vmap(keep))(logits), together)


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({}, lambda x: x),
        ({"temperature": 0.5}, lambda x: 2 * x),
        ({"temperature": np.float32(3.0)}, lambda x: x / 3),
        ({"top_k": 3}, lambda x: keep_top_k(x, 3)),
        ({"top_p": 0.6}, lambda x: keep_top_p(x, 0.6)),
        (
            {"temperature": 2.0, "top_k": 5, "top_p": 0.8},
            lambda x: keep_top_p(keep_top_k(x / 2, 5), 0.8),
        ),
    ],
)
def test_draws_follow_the_softmax_of_the_filtered_logits(options, changed):
    logits = np.asarray(normal(V))
    draws = sample(jax.random.key(0), np.tile(logits, (N, 1)), **options)
    frequencies = np.bincount(draws, minlength=V) / N
    odds = np.exp(exact(np.asarray(changed(logits))))
    expected = odds / odds.sum()
    assert (np.abs(frequencies - expected) <= 5 * np.sqrt(expected * (1 - expected) / N)).all()


def test_a_low_temperature_is_greedy():
    logits = normal(200, V)
    assert_same(sample(jax.random.key(0), logits, temperature=1e-5), greedy(logits))


def test_draws_repeat_with_their_key_and_one_kept_token_is_the_greedy_one():
    logits, key = normal(50, V), jax.random.key(0)
    draws = np.asarray(sample(key, logits))
    assert_same(sample(key, logits), draws)
    assert (draws != sample(jax.random.key(1), logits)).any()
    assert_same(sample(key, logits, top_k=1), greedy(logits))
    assert_same(sample(key, logits, top_p=1e-6), greedy(logits))


@pytest.mark.parametrize(
    ("option", "values"),
    [("temperature", [0.0, -1.0]), ("top_k", [0, -1]), ("top_p", [0.0, -0.1, 1.1])],
)
def test_bad_options_are_named(option, values):
    for value in values:
        with pytest.raises(ValueError, match=f"not {value}"):
            F.sample(jax.random.key(0), normal(V), **{option: value})
