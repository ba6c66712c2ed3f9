"""What a feature says about a class, by counting alone."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def log_count_ratios(counts: Float[Array, "V C"], smoothing: float = 1.0) -> Float[Array, "V C"]:
    """log((p / |p|) / (q / |q|)) of each feature and class (Wang and Manning 2012, eq. for r).

    `counts` are the texts of each class that have the feature. p are those of the class and q
    those of all others, both with `smoothing` added; |p| is the sum over the features.
    """
    p, q = counts + smoothing, counts.sum(-1, keepdims=True) - counts + smoothing
    return jnp.log(p / p.sum(0)) - jnp.log(q / q.sum(0))
