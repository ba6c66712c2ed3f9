"""From vectors of words to one vector of the text, and from sentences' scores to one score."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from tlite.functional.layers import linear


def dense_pool(
    params, x: Float[Array, "*batch T D"], mask: Bool[Array, "*batch T"]
) -> Float[Array, "*batch T"]:
    """One number x_t w + b for each word, 0 for padding; `params` is a linear layer (D, 1)."""
    return jnp.where(mask, linear(params, x)[..., 0], 0)


def mean_pool(
    x: Float[Array, "*batch T D"], mask: Bool[Array, "*batch T"]
) -> Float[Array, "*batch D"]:
    """The mean of the words' vectors; 0 where there is no word."""
    count = jnp.maximum(mask.sum(-1, keepdims=True), 1)
    return jnp.where(mask[..., None], x, 0).sum(-2) / count


def attention_pool(
    params, x: Float[Array, "*batch T D"], mask: Bool[Array, "*batch T"]
) -> Float[Array, "*batch D"]:
    """sum_t softmax(x w + b)_t x_t (Yang et al. 2016, eq. 5-7, without the hidden layer).

    `params` is a linear layer (D, 1). Padding has weight 0; without a word the result is 0.
    """
    weights = jax.nn.softmax(linear(params, x)[..., 0], axis=-1, where=mask)
    return jnp.einsum("...t,...td->...d", weights, x)


def parabolic_average(
    probabilities: Float[Array, "*batch S"], mask: Bool[Array, "*batch S"]
) -> Float[Array, "*batch"]:
    """sum_s w_s p_s / sum_s w_s with w = (p - 0.5)^2: the sure sentences count most.

    1/2 where no sentence leans to either side, or there is none.
    """
    weights = jnp.where(mask, jnp.square(probabilities - 0.5), 0)
    total = weights.sum(-1)
    lean = (weights * (probabilities - 0.5)).sum(-1)
    return 0.5 + lean / jnp.where(total > 0, total, 1)
