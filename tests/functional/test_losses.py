"""Losses: (sum, count) that add up however a batch is cut."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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

N, V = 6, 5
LOGITS = 3 * np.asarray(normal(N, V))
TARGETS = np.asarray(integers(V, N))
WEIGHTS = np.array([1, 0, 0.5, 2, 0, 1], np.float32)
cross_entropy = jax.jit(F.cross_entropy, static_argnames="smoothing")
accuracy = jax.jit(F.accuracy)
losses = pytest.mark.parametrize("loss", [cross_entropy, accuracy], ids=["entropy", "accuracy"])
weighted = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])


log_softmax = jax.jit(jax.nn.log_softmax)


@weighted
@pytest.mark.parametrize("smoothing", [0.0, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_cross_entropy_is_its_formula(batch, smoothing, weights):
    rows = [x[: math.prod(batch)] for x in (LOGITS, TARGETS, weights) if x is not None]
    shaped = (np.reshape(x, (*batch, *x.shape[1:])) for x in rows)
    expected = reference.cross_entropy(*exact(rows), smoothing=smoothing)
    assert_close(cross_entropy(*shaped, smoothing=smoothing), expected)


def test_cross_entropy_of_each_token_is_that_of_flat_log_softmax():
    expected = -np.asarray(log_softmax(LOGITS))[np.arange(N), TARGETS]
    assert_close(jax.jit(F.token_cross_entropy)(LOGITS, TARGETS), expected)


def test_a_smoothed_loss_is_smallest_at_the_smoothed_target_itself():
    smoothing = 0.2
    wanted = (1 - smoothing) * np.eye(V, dtype=np.float32)[TARGETS] + smoothing / V
    gradient = jax.grad(lambda x: F.cross_entropy(x, jnp.asarray(TARGETS), smoothing=smoothing)[0])
    assert_close(jax.jit(gradient)(np.log(wanted)), np.zeros((N, V)), 1e-6)


def test_smoothing_0_is_the_plain_loss_to_the_bit():
    assert_same(
        cross_entropy(LOGITS, TARGETS, WEIGHTS, 0.0), cross_entropy(LOGITS, TARGETS, WEIGHTS)
    )


@losses
@pytest.mark.parametrize("cut", [1, 3])
def test_parts_of_a_batch_add_up_to_the_whole(loss, cut):
    whole = loss(LOGITS, TARGETS, WEIGHTS)
    parts = [loss(LOGITS[part], TARGETS[part], WEIGHTS[part]) for part in np.s_[:cut, cut:]]
    assert_close(tuple(map(sum, zip(*parts, strict=True))), whole)


@losses
def test_weight_0_removes_an_element_and_weights_1_change_nothing(loss):
    kept = WEIGHTS > 0
    assert_close(loss(LOGITS, TARGETS, kept.astype(np.float32)), loss(LOGITS[kept], TARGETS[kept]))
    assert_close(loss(LOGITS, TARGETS, np.ones(N, np.float32)), loss(LOGITS, TARGETS))


@losses
def test_no_elements_sum_and_count_to_0(loss):
    assert_same(loss(LOGITS, TARGETS, np.zeros(N, np.float32)), (0.0, 0.0))


@pytest.mark.parametrize("size", [1e4, -1e4, 1e30])
@pytest.mark.parametrize("target", range(3))
def test_extreme_logits_give_the_finite_loss_of_log_softmax(size, target):
    logits = np.array([[size, 0.0, -size]], np.float32)
    value, gradient = loss_and_gradient(logits, np.array([target]))
    assert_all_finite((value, gradient))
    assert_close(value, -np.asarray(log_softmax(logits))[0, target])


@jax.jit
@jax.value_and_grad
def loss_and_gradient(logits, targets):
    return F.cross_entropy(logits, targets)[0]


@weighted
def test_accuracy_counts_the_largest_logits_that_are_targets(weights):
    used = np.ones(N) if weights is None else weights
    right = sum(used[n] for n in range(N) if max(LOGITS[n]) == LOGITS[n, TARGETS[n]])
    assert_close(accuracy(LOGITS, TARGETS, weights), (right, used.sum()))


@losses
def test_losses_under_jit_and_vmap_are_those_of_each_row(loss):
    total, count = jax.jit(jax.vmap(loss))(LOGITS, TARGETS, WEIGHTS)
    assert_close((np.sum(total), np.sum(count)), loss(LOGITS, TARGETS, WEIGHTS))
