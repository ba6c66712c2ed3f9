"""Losses and scores as (sum, count): divided once, at the end, whatever was added up before.

So padding, partial batches, gradient accumulation and several devices all give the same number.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Smoothing = float | Float[Array, ""]


def token_cross_entropy(
    logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"], smoothing: Smoothing = 0.0
) -> Float[Array, "*batch"]:
    """-log softmax(logits)[target] for each target, in nats.

    With label smoothing (Szegedy et al. 2016, section 7) the target is worth 1 - smoothing, and
    `smoothing` is spread evenly over all V.
    """
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    if isinstance(smoothing, Array) or smoothing:
        chosen = (1 - smoothing) * chosen + smoothing * logits.mean(-1)
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def cross_entropy(
    logits: Float[Array, "*batch V"],
    targets: Int[Array, "*batch"],
    weights: Float[Array, "*batch"] | None = None,
    smoothing: Smoothing = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(sum of weight * -log softmax(logits)[target], sum of weights); weights are 1 by default."""
    return weighted_sum(token_cross_entropy(logits, targets, smoothing), weights)


def accuracy(
    logits: Float[Array, "*batch V"],
    targets: Int[Array, "*batch"],
    weights: Float[Array, "*batch"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(sum of weight * [argmax(logits) = target], sum of weights)."""
    return weighted_sum((logits.argmax(-1) == targets).astype(logits.dtype), weights)


def weighted_sum(
    values: Float[Array, "*batch"], weights: Float[Array, "*batch"] | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(sum of weight * value, sum of weights)."""
    if weights is None:
        return values.sum(), jnp.array(values.size, values.dtype)
    return (weights * values).sum(), weights.sum()
