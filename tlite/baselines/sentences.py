"""Combine the class probabilities of a text's sentences."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def parabolic_average(
    probabilities: Float[Array, "*batch S"], mask: Bool[Array, "*batch S"]
) -> Float[Array, "*batch"]:
    """Return sum_s w_s p_s / sum_s w_s with w = (p - 1/2)^2: confident sentences weigh most.

    16-bit probabilities are summed in float32. 1/2 if every weight is 0, or there is no sentence.
    """
    centred = probabilities.astype(jnp.promote_types(probabilities.dtype, jnp.float32)) - 0.5
    weights = jnp.where(mask, jnp.square(centred), 0)
    total = weights.sum(-1)
    mean = (weights * centred).sum(-1) / jnp.where(total > 0, total, 1)
    return (0.5 + mean).astype(probabilities.dtype)
