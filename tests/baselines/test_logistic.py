"""Logistic regression, bags of words, naive Bayes and averages equal their formulas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.helpers import reference
from tests.helpers.arrays import (
    assert_all_finite,
    assert_close,
    assert_same,
    exact,
    integers,
    normal,
    over_batch,
)
from tlite import baselines as B

N, D = 6, 4
PARAMS = {"weights": normal(D), "bias": jnp.array(0.5)}
V, C, T = 7, 3, 5
WEIGHTS, BIAS = normal(V, C), normal(C)
logistic_regression, binary_cross_entropy, bag_of_words = map(
    jax.jit, (B.logistic_regression, B.binary_cross_entropy, B.bag_of_words)
)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_logistic_regression_and_its_loss_are_their_formulas(batch):
    x, targets = normal(*batch, D), np.asarray(integers(2, *batch))
    expected = sigmoid(exact(x) @ exact(PARAMS["weights"]) + 0.5)
    p = logistic_regression(PARAMS, x)
    assert_close(p, expected)
    loss = reference.binary_cross_entropy(expected.reshape(-1), targets.reshape(-1))
    assert_close(binary_cross_entropy(p, targets), loss)


def test_binary_cross_entropy_of_certainty_is_finite():
    p, targets = np.array([0, 1], np.float32), np.array([0, 1])
    loss_and_gradient = jax.jit(jax.value_and_grad(binary_cross_entropy))
    for labels, bounds in [(targets, (0, 1e-6)), (1 - targets, (15, 17))]:
        value, gradient = loss_and_gradient(p, labels)
        assert bounds[0] <= value <= bounds[1]
        assert_all_finite(gradient)


@pytest.mark.parametrize("steps", [0, 1, 20])
def test_gradient_descent_on_a_parabola_is_its_closed_form(steps):
    centre, rate = normal(3), 0.1
    loss = lambda params: jnp.square(params["a"] - centre).sum()  # noqa: E731
    result, losses = B.gradient_descent(loss, {"a": jnp.zeros(3)}, rate, steps)
    assert_close(result["a"], centre * (1 - (1 - 2 * rate) ** steps))
    start = np.square(exact(centre)).sum()
    assert_close(losses, start * (1 - 2 * rate) ** (2 * np.arange(steps)))


# Bags of words

some_tokens = st.lists(st.integers(-3, V - 1), min_size=T, max_size=T)


@given(st.lists(some_tokens, min_size=2, max_size=2).map(np.array))
def test_bag_of_words_is_linear_in_the_unit_binary_vector(tokens):
    formula = functools.partial(reference.bag_of_words, *exact((WEIGHTS, BIAS)))
    expected = over_batch((2,), formula, tokens)
    assert_close(bag_of_words(WEIGHTS, BIAS, tokens), expected)


def test_an_empty_bag_of_words_is_the_bias():
    tokens = jnp.full(T, -1)
    assert_same(bag_of_words(WEIGHTS, BIAS, tokens), BIAS)
    loss = lambda weights, bias: B.bag_of_words(weights, bias, tokens).sum()  # noqa: E731
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))(WEIGHTS, BIAS)
    assert_same(gradients, (np.zeros((V, C)), np.ones(C)))


# Bigrams


def test_bigram_ids_follow_the_words_and_padding_has_none():
    tokens = np.array([[2, 0, 5, -1, -1], [-1, -1, -1, -1, -1]])
    for num_bigrams in (1, 1000):
        extended = np.asarray(B.with_bigrams(jnp.asarray(tokens), 6, num_bigrams))
        assert (extended[:, :5] == tokens).all()
        assert ((extended[0, 5:7] >= 6) & (extended[0, 5:7] < 6 + num_bigrams)).all()
        assert (extended[0, 7:] == -1).all()
        assert (extended[1] == -1).all()
    pairs = np.stack(np.divmod(np.arange(2500), 50), -1)  # hashes are spread, and have an order
    assert len(np.unique(B.with_bigrams(jnp.asarray(pairs), 50, 100_000)[:, 2])) > 2400
    first, reversed_, again = np.asarray(B.with_bigrams(jnp.array([7, 9, 7, 9]), 10, 10_000))[4:]
    assert first == again != reversed_


# Averages of sentences

average = jax.jit(B.parabolic_average)
average_and_gradient = jax.jit(jax.value_and_grad(B.parabolic_average))


@given(arrays(np.float32, T, elements=st.floats(0, 1, width=32)), arrays(bool, T))
def test_the_parabolic_average_is_its_formula_with_finite_gradients(p, mask):
    value, gradient = average_and_gradient(p, mask)
    assert_close(value, reference.parabolic_average(*exact((p, mask))))
    assert_all_finite(gradient)
    assert not np.asarray(gradient)[~mask].any()
    both_classes = average(np.stack([p, 1 - p]), np.stack([mask, mask]))
    assert_close(both_classes, np.stack([value, 1 - np.asarray(value)]))


# Naive Bayes

COUNTS = jnp.array([[3.0, 0.0, 1.0], [2.0, 2.0, 2.0], [0.0, 5.0, 0.0], [0.0, 0.0, 0.0]])


def test_log_count_ratios_are_their_formula():
    counts = np.asarray(COUNTS, float)
    for smoothing in (1.0, 0.3):
        p, q = counts + smoothing, counts.sum(1, keepdims=True) - counts + smoothing
        expected = np.log(p / p.sum(0)) - np.log(q / q.sum(0))
        result = B.log_count_ratios(COUNTS, smoothing)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
