"""Fit a linear classifier by L-BFGS: the loss is convex, so there is no learning rate to tune."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.sparse
import scipy.special

from tlite.models.logistic import log_count_ratios

MAX_ITERATIONS = 150


def fit_bags_of_words(
    features: np.ndarray,
    labels: np.ndarray,
    sizes: Sequence[int],
    num_classes: int,
    l2: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit logits that are a sum of `bag_of_words`; return weights (V, C) and bias (C,).

    Minimises mean cross-entropy + l2 / 2 |w|^2 with weights = r w, where r are the log-count
    ratios of naive Bayes: features with a large ratio are penalised less (Wang and Manning 2012,
    "NBSVM", here with the logistic loss).

    Args:
        features: distinct feature ids (N, G) of each text; negative ids are padding.
        labels: classes (N,).
        sizes: number of features in each bag, in the order of their ids; the sum is V.
        l2: strength of the L2 penalty.
    """
    bags, targets = unit_bags(features, sizes), np.eye(num_classes)[labels]
    transposed = bags.T.tocsr()
    counts = jnp.asarray((transposed > 0) @ targets, jnp.float32)
    ratios = np.asarray(log_count_ratios(counts), np.float64)

    def loss_and_gradient(flat):
        w, bias = flat[: ratios.size].reshape(ratios.shape), flat[ratios.size :]
        log_p = scipy.special.log_softmax(bags @ (ratios * w) + bias, axis=-1)
        error = (np.exp(log_p) - targets) / len(labels)
        value = -(targets * log_p).sum() / len(labels) + l2 / 2 * np.square(w).sum()
        gradient = ratios * (transposed @ error) + l2 * w
        return value, np.concatenate([gradient.ravel(), error.sum(0)])

    solution = scipy.optimize.minimize(
        loss_and_gradient,
        np.zeros(ratios.size + num_classes),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": MAX_ITERATIONS, "maxfun": 2 * MAX_ITERATIONS},
    ).x
    return ratios * solution[: ratios.size].reshape(ratios.shape), solution[ratios.size :]


def unit_bags(features: np.ndarray, sizes: Sequence[int]) -> scipy.sparse.csr_matrix:
    """Return the binary feature vector (V,) of each text as a sparse row, bags scaled to norm 1."""
    bags, first_id = [], 0
    for size in sizes:
        is_in_bag = (features >= first_id) & (features < first_id + size)
        counts = is_in_bag.sum(-1)
        values = np.repeat(1 / np.sqrt(np.maximum(counts, 1)), counts)
        columns = features[is_in_bag] - first_id
        row_starts = np.concatenate([[0], np.cumsum(counts)])
        shape = len(features), size
        bags.append(scipy.sparse.csr_matrix((values, columns, row_starts), shape))
        first_id += size
    return scipy.sparse.hstack(bags, format="csr")
