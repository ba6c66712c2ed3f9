"""Losses are (sum, count) and add up over a batch; samples follow the filtered softmax."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.helpers import reference
from tests.helpers.arrays import (
    assert_all_finite,
    assert_close,
    assert_same,
    exact,
    integers,
    normal,
)
from tlite import functional as F
from tlite.training import Focal

N, V = 6, 5
LOGITS = 3 * np.asarray(normal(N, V))
TARGETS = np.asarray(integers(V, N))
WEIGHTS = np.array([1, 0, 0.5, 2, 0, 1], np.float32)
cross_entropy = jax.jit(F.cross_entropy, static_argnames="smoothing")
accuracy = jax.jit(F.accuracy)
losses = pytest.mark.parametrize("loss", [cross_entropy, accuracy], ids=["entropy", "accuracy"])
weighted = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])


@jax.jit
@jax.value_and_grad
def loss_and_gradient(logits, targets):
    return F.cross_entropy(logits, targets)[0]


@weighted
@pytest.mark.parametrize("smoothing", [0.0, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_cross_entropy_is_its_formula(batch, smoothing, weights):
    rows = [x[: math.prod(batch)] for x in (LOGITS, TARGETS, weights) if x is not None]
    shaped = (np.reshape(x, (*batch, *x.shape[1:])) for x in rows)
    expected = reference.cross_entropy(*exact(rows), smoothing=smoothing)
    assert_close(cross_entropy(*shaped, smoothing=smoothing), expected)


@losses
@pytest.mark.parametrize("cut", [1, 3])
def test_parts_of_a_batch_add_up_to_the_whole(loss, cut):
    parts = [loss(LOGITS[part], TARGETS[part], WEIGHTS[part]) for part in np.s_[:cut, cut:]]
    assert_close(tuple(map(sum, zip(*parts, strict=True))), loss(LOGITS, TARGETS, WEIGHTS))


@losses
@weighted
def test_targets_below_0_are_ignored(loss, weights):
    ignored = np.arange(N) % 3 == 1
    targets = np.where(ignored, -1 - np.arange(N), TARGETS)
    others = [x if x is None else x[~ignored] for x in (LOGITS, TARGETS, weights)]
    assert_close(loss(LOGITS, targets, weights), loss(*others))
    gradient = loss_and_gradient(LOGITS, targets)[1]
    assert_same(np.asarray(gradient).any(-1), ~ignored)


def test_targets_beyond_the_vocabulary_are_errors_or_nan():
    targets = np.array([*TARGETS[1:], V])
    for loss in (F.token_cross_entropy, F.cross_entropy, F.accuracy):
        with pytest.raises(ValueError, match=f"token {V}"):
            loss(jnp.asarray(LOGITS), jnp.asarray(targets))
    assert np.isnan(cross_entropy(LOGITS, targets)[0])


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_losses_of_16_bit_logits_are_summed_in_float32(dtype):
    size = 4_097  # bfloat16 rounds it to 4,096
    logits, targets = normal(size, V).astype(dtype), integers(V, size)
    for loss in (cross_entropy, accuracy):
        total, count = loss(logits, targets)
        assert count == size
        assert_close(total, loss(logits.astype(jnp.float32), targets)[0], 1e-6)


@pytest.mark.parametrize("size", [1e4, -1e4, 1e30])
@pytest.mark.parametrize("target", range(3))
def test_extreme_logits_give_the_finite_loss_of_log_softmax(size, target):
    logits = np.array([[size, 0.0, -size]], np.float32)
    value, gradient = loss_and_gradient(logits, np.array([target]))
    assert_all_finite((value, gradient))
    assert_close(value, -np.asarray(jax.nn.log_softmax(logits))[0, target])


@weighted
def test_accuracy_counts_the_largest_logits_that_are_targets(weights):
    used = np.ones(N) if weights is None else weights
    right = sum(used[n] for n in range(N) if max(LOGITS[n]) == LOGITS[n, TARGETS[n]])
    assert_close(accuracy(LOGITS, TARGETS, weights), (right, used.sum()))


BATCH = 3 * np.asarray(normal(3, 5, 7))
MISSING = np.where(np.arange(15).reshape(3, 5) == 1, -1, np.asarray(integers(7, 3, 5)))


@pytest.mark.parametrize("gamma", [None, 0.0, 0.5, 2.0])
def test_z_loss_and_focal_loss_equal_their_formulas(gamma):
    """With gamma = 0 the focal loss is the cross-entropy; without gamma it is the z-loss."""
    logits, is_target = exact(BATCH), MISSING >= 0
    log_sum = np.log(np.exp(logits).sum(-1))
    log_p = np.take_along_axis(logits, np.maximum(MISSING, 0)[..., None], -1)[..., 0] - log_sum
    expected = log_sum**2 if gamma is None else -((1 - np.exp(log_p)) ** gamma) * log_p
    targets, settings = jnp.asarray(MISSING), {} if gamma is None else {"gamma": gamma}
    loss = functools.partial(F.z_loss if gamma is None else F.focal_loss, **settings)
    assert_close(loss(jnp.asarray(BATCH), targets), is_target * expected)
    assert loss(jnp.asarray(BATCH, jnp.bfloat16), targets).dtype == jnp.float32
    certain = jnp.asarray(BATCH).at[0, 0, MISSING[0, 0]].set(200.0)
    gradient = jax.grad(lambda z: loss(z, targets).sum())(certain)
    assert_all_finite(gradient)
    assert not gradient[0, 1].any()  # at padding
    with pytest.raises(ValueError, match="gamma must not be negative"):
        Focal(gamma=-1.0)


W, DRAWS = 8, 20_000
keep_top_k = jax.jit(F.keep_top_k, static_argnums=1)
keep_top_p = jax.jit(F.keep_top_p, static_argnums=1)
sample = jax.jit(F.sample, static_argnames=("top_k", "top_p"))
any_logits = st.lists(st.integers(-8, 8), min_size=W, max_size=W).map(
    lambda values: np.float32(values) / 2
)


def assert_keeps(filtered, logits, expected):
    """Assert that the expected indices keep their logits and all others are -inf."""
    is_kept = np.isin(np.arange(W), [*expected])
    assert_same(filtered, np.where(is_kept, logits, -np.inf).astype(np.float32))


@given(any_logits, st.integers(1, W + 2))
def test_top_k_keeps_the_k_largest_and_ties(logits, k):
    largest = np.flatnonzero(logits >= np.sort(logits)[-min(k, W)])
    assert_keeps(keep_top_k(logits, k), logits, largest)


@given(any_logits, st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_set_that_reaches_p(logits, p):
    odds = np.sort(np.exp(exact(logits)))[::-1]
    assume(np.abs(odds.cumsum() / odds.sum() - p).min() > 1e-5)
    filtered = F.keep_top_p(jax.device_put(logits), p)
    assert_keeps(filtered, logits, reference.top_p(logits.tolist(), p))
    assert_keeps(keep_top_p(100 * logits, 1.0), 100 * logits, range(W))
    assert_keeps(keep_top_p(logits, 1e-9), logits, {int(logits.argmax())})


@pytest.mark.parametrize(
    ("options", "filter_logits"),
    [
        ({}, lambda x: x),
        ({"temperature": 0.5}, lambda x: 2 * x),
        ({"temperature": np.float32(3.0)}, lambda x: x / 3),
        ({"top_k": 3}, lambda x: keep_top_k(x, 3)),
        ({"top_p": 0.6}, lambda x: keep_top_p(x, 0.6)),
        ({"min_p": 0.3}, lambda x: np.where(x < x.max() + np.log(0.3), -np.inf, x)),
        (
            {"temperature": 2.0, "top_k": 5, "top_p": 0.8},
            lambda x: keep_top_p(keep_top_k(x / 2, 5), 0.8),
        ),
    ],
)
def test_draws_follow_the_softmax_of_the_filtered_logits(options, filter_logits):
    logits = np.asarray(normal(W))
    draws = sample(jax.random.key(0), np.tile(logits, (DRAWS, 1)), **options)
    frequencies = np.bincount(draws, minlength=W) / DRAWS
    odds = np.exp(exact(np.asarray(filter_logits(logits))))
    expected = odds / odds.sum()
    assert (np.abs(frequencies - expected) <= 5 * np.sqrt(expected * (1 - expected) / DRAWS)).all()


def test_samples_repeat_with_their_key_and_top_1_is_greedy():
    logits, key = normal(5, 10, W), jax.random.key(0)
    draws = np.asarray(sample(key, logits))
    assert_same(sample(key, logits), draws)
    assert (draws != sample(jax.random.key(1), logits)).any()
    for option in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert_same(sample(key, logits, **option), F.greedy(key, logits))


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("temperature", [0.0, -1.0, np.float32(0), np.float32(-1), jnp.array(-2.0)]),
        ("top_k", [0, -1]),
        ("top_p", [0.0, -0.1, 1.1]),
        ("min_p", [0.0, 1.1]),
    ],
)
def test_bad_options_are_named(option, values):
    for value in values:
        with pytest.raises(ValueError, match=f"not {value}"):
            F.sample(jax.random.key(0), normal(W), **{option: value})


def test_repetition_penalty_divides_positive_logits():
    logits, tokens = np.float32([[2, -2, 0, 4], [2, -2, 0, -4]]), np.array([[1, 1, 0], [3, -1, -1]])
    expected = [[1, -4, 0, 4], [2, -2, 0, -8]]
    assert_same(jax.jit(F.repetition_penalty)(logits, tokens, 2.0), np.float32(expected))
