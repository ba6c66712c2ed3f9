"""A linear classifier near the optimum of its loss, which is convex: no rate to choose."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.sparse
import scipy.special

from tlite.baselines.logistic import log_count_ratios

MOST = 150  # iterations of L-BFGS, which ends earlier where the loss no longer falls


def fit_bags_of_words(
    features: np.ndarray,
    labels: np.ndarray,
    sizes: Sequence[int],
    num_classes: int,
    l2: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Weights (V, C) and bias (C,) of the sum of some `functional.bag_of_words`, by L-BFGS.

    With weights = r w they minimise the mean cross-entropy + l2 / 2 |w|^2, where r are the
    log-count ratios of naive Bayes: what tells the classes apart by its counts gets its weight for
    less (Wang and Manning 2012, "NBSVM", here with the logistic loss).

    Args:
        features: ids (N, G) of each text's features, all different; below 0 is padding.
        labels: the classes (N,).
        sizes: how many features each bag has, the first those with the first ids; V together.
    """
    bags, classes = unit_bags(features, sizes), np.eye(num_classes)[labels]
    transposed = bags.T.tocsr()
    counts = jnp.asarray((transposed > 0) @ classes, jnp.float32)
    ratios = np.asarray(log_count_ratios(counts), np.float64)

    def loss(flat):
        w, bias = flat[: ratios.size].reshape(ratios.shape), flat[ratios.size :]
        log_p = scipy.special.log_softmax(bags @ (ratios * w) + bias, axis=-1)
        error = (np.exp(log_p) - classes) / len(labels)
        value = -(classes * log_p).sum() / len(labels) + l2 / 2 * np.square(w).sum()
        gradient = ratios * (transposed @ error) + l2 * w
        return value, np.concatenate([gradient.ravel(), error.sum(0)])

    start = np.zeros(ratios.size + num_classes)
    limits = {"maxiter": MOST, "maxfun": 2 * MOST}
    found = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options=limits).x
    return ratios * found[: ratios.size].reshape(ratios.shape), found[ratios.size :]


def unit_bags(features: np.ndarray, sizes: Sequence[int]) -> scipy.sparse.csr_matrix:
    """The features (N, G) of each text as a sparse row (V,), its part of each bag of length 1."""
    bags, first = [], 0
    for size in sizes:
        inside = (features >= first) & (features < first + size)
        number = inside.sum(-1)
        values = np.repeat(1 / np.sqrt(np.maximum(number, 1)), number)
        starts = np.concatenate([[0], np.cumsum(number)])
        shape = len(features), size
        bags.append(scipy.sparse.csr_matrix((values, features[inside] - first, starts), shape))
        first += size
    return scipy.sparse.hstack(bags, format="csr")
