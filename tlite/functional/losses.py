"""Losses of logits (..., V) and integer targets (...): one value for each target, in nats.

A target below 0 is ignored: its loss is 0. A target of V or more is an error; under `jit`, which
can't check values, its cross-entropy is NaN. 16-bit logits are summed in float32.

`cross_entropy` and `accuracy` return pairs (sum, count), which are divided once at the end:
padding, partial batches, gradient accumulation and several devices then give the same number.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tlite.functional.layers import check_tokens, widen

Scalar = float | Float[Array, ""]


def token_cross_entropy(
    logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"], smoothing: Scalar = 0.0
) -> Float[Array, "*batch"]:
    """-log softmax(logits)[target] for each target, in nats; 0 for a target below 0.

    With label smoothing (Szegedy et al. 2016, section 7) the target has probability 1 - smoothing,
    and `smoothing` is spread evenly over all V tokens.

    Raises:
        ValueError: a target is V or more; under `jit` its loss is NaN.
    """
    check_tokens(targets, logits.shape[-1], padding=True)
    logits = widen(logits)
    logit = jnp.take_along_axis(logits, jnp.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    if isinstance(smoothing, Array) or smoothing:
        logit = (1 - smoothing) * logit + smoothing * logits.mean(-1)
    return jnp.where(targets < 0, 0, jax.nn.logsumexp(logits, axis=-1) - logit)


def z_loss(
    logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """(log sum_v exp(logits_v))^2 for each target, which keeps logits from drifting.

    A small multiple (1e-4) is added to the cross-entropy (de Brebisson and Vincent 2016; PaLM,
    Chowdhery et al. 2022, section 5).
    """
    check_tokens(targets, logits.shape[-1], padding=True)
    return jnp.where(targets < 0, 0, jax.nn.logsumexp(widen(logits), axis=-1) ** 2)


def focal_loss(
    logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"], gamma: Scalar = 2.0
) -> Float[Array, "*batch"]:
    """-(1 - p)^gamma log p for each target, p = softmax(logits)[target] (Lin et al. 2017, eq. 4).

    Targets that are predicted well already count less; gamma = 0 is the cross-entropy.
    """
    loss = token_cross_entropy(logits, targets)
    # 1 - p = 1 - exp(-loss); at p = 1 the power of 0 has no finite gradient below gamma = 1.
    return jnp.maximum(-jnp.expm1(-loss), jnp.finfo(loss.dtype).tiny) ** gamma * loss


def cross_entropy(
    logits: Float[Array, "*batch V"],
    targets: Int[Array, "*batch"],
    weights: Float[Array, "*batch"] | None = None,
    smoothing: Scalar = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(sum of weight * -log softmax(logits)[target], sum of weights); weights are 1 by default.

    A target below 0 has weight 0.

    Raises:
        ValueError: a target is V or more; under `jit` the sum is NaN.
    """
    return weighted_sum(token_cross_entropy(logits, targets, smoothing), targets, weights)


def accuracy(
    logits: Float[Array, "*batch V"],
    targets: Int[Array, "*batch"],
    weights: Float[Array, "*batch"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(sum of weight * [argmax(logits) = target], sum of weights); weights are 1 by default.

    A target below 0 has weight 0.

    Raises:
        ValueError: a target is V or more; under `jit` it counts as wrong.
    """
    check_tokens(targets, logits.shape[-1], padding=True)
    correct = (logits.argmax(-1) == targets).astype(jnp.promote_types(logits.dtype, jnp.float32))
    return weighted_sum(correct, targets, weights)


def weighted_sum(
    values: Float[Array, "*batch"],
    targets: Int[Array, "*batch"],
    weights: Float[Array, "*batch"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(sum of weight * value, sum of weights); value and weight of a target below 0 are 0."""
    is_target = targets >= 0
    if weights is None:
        return jnp.where(is_target, values, 0).sum(), is_target.sum().astype(values.dtype)
    weights = jnp.where(is_target, weights, 0)
    return (weights * values).sum(), weights.sum()
