"""The fitted linear model is the minimum of its loss."""

import jax
import jax.numpy as jnp
import numpy as np

from tlite import baselines as B
from tlite import functional as F
from tlite.baselines.convex import fit_bags_of_words

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


def test_the_gradient_of_the_loss_vanishes():
    counts = np.zeros((V, C), np.float32)
    for row, label in zip(FEATURES, LABELS, strict=True):
        counts[row[row >= 0], label] += 1
    ratios = np.asarray(jax.jit(B.log_count_ratios)(counts))
    fitted = [np.float32(a) for a in fit_bags_of_words(FEATURES, LABELS, SIZES, C, L2)]
    gradient = jax.jit(jax.grad(loss, (0, 1)))
    first = jax.device_get(gradient(np.zeros((V, C)), np.zeros(C), ratios))
    last = jax.device_get(gradient(*fitted, ratios))
    for before, after in zip(first, last, strict=True):
        assert abs(after).max() < 1e-3 * abs(before).max()
