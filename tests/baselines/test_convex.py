"""The fitted linear model is the minimum of its loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tlite import baselines as B
from tlite import functional as F
from tlite.baselines.convex import fit_bags_of_words, unit_bags

N, G, V, C, L2 = 40, 5, 9, 3, 1e-2
SIZES = 6, 3
RNG = np.random.default_rng(0)
FEATURES = np.stack([RNG.permutation(V)[:G] for _ in range(N)])
FEATURES[::3, 3:] = -1
FEATURES[7] = -1
LABELS = np.where((FEATURES == 0).any(1), 0, np.where((FEATURES == 1).any(1), 1, 2))
LABELS[::5] = RNG.integers(0, C, len(LABELS[::5]))


@jax.jit
def loss(weights, bias, ratios):
    features = jnp.asarray(FEATURES)
    first = B.bag_of_words(weights, bias, jnp.where(features < SIZES[0], features, -1))
    second = B.bag_of_words(weights, 0 * bias, jnp.where(features < SIZES[0], -1, features))
    logits = first + second
    mean = F.cross_entropy(logits, jnp.asarray(LABELS))[0] / N
    return mean + L2 / 2 * jnp.square(weights / ratios).sum()


@pytest.fixture(scope="module")
def fitted():
    return [np.asarray(a, np.float32) for a in fit_bags_of_words(FEATURES, LABELS, SIZES, C, L2)]


@pytest.fixture(scope="module")
def ratios():
    counts = np.zeros((V, C))
    for row, label in zip(FEATURES, LABELS, strict=True):
        counts[row[row >= 0], label] += 1
    return np.asarray(jax.jit(B.log_count_ratios)(counts.astype(np.float32)))


def test_the_gradient_of_the_loss_vanishes(fitted, ratios):
    gradient = jax.jit(jax.grad(loss, (0, 1)))
    first = jax.device_get(gradient(np.zeros((V, C)), np.zeros(C), ratios))
    last = jax.device_get(gradient(*fitted, ratios))
    for before, after in zip(first, last, strict=True):
        assert abs(after).max() < 1e-3 * abs(before).max()


def test_no_nearby_parameters_have_a_smaller_loss(fitted, ratios):
    best = loss(*fitted, ratios)
    random = np.random.default_rng(0)
    for _ in range(20):
        moved = fitted[0] + 0.1 * ratios * random.normal(size=(V, C)).astype(np.float32)
        assert loss(moved, fitted[1], ratios) > best


def test_a_larger_penalty_gives_smaller_weights(fitted):
    weights, _ = fit_bags_of_words(FEATURES, LABELS, SIZES, C, 100 * L2)
    assert abs(weights).sum() < 0.5 * abs(fitted[0]).sum()


def test_both_bags_of_every_text_have_length_1_unless_empty():
    bags = unit_bags(FEATURES, SIZES).toarray()
    first = (FEATURES >= 0) & (FEATURES < 6)
    in_bags = [first, (FEATURES >= 0) & ~first]
    for bag, present in zip(np.split(bags, [6], axis=1), in_bags, strict=True):
        assert 0 < present.any(1).sum() < N
        np.testing.assert_allclose(np.linalg.norm(bag, axis=1), present.any(1), atol=1e-12)
        assert ((bag > 0).sum(1) == present.sum(1)).all()
