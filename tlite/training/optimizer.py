"""The optimizer over one flat vector of parameters, and its schedule."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from tlite.training.config import TrainingConfig


def schedule(config: TrainingConfig, step: Int[Array, ""] | np.integer) -> Float[Array, ""]:
    """The learning rate before update `step` (from 0), as a fraction of its peak."""
    if config.schedule == "constant":
        decay = optax.constant_schedule(1.0)
    elif config.schedule == "inverse_sqrt":
        # "Attention is all you need", eq. 3, as a fraction of the peak at the warm-up's end
        first = max(config.warmup_steps, 1)
        decay = lambda since: jnp.sqrt(first / (since + first))  # noqa: E731
    else:
        decay_steps = max(config.steps - config.warmup_steps, 1)
        decay = optax.cosine_decay_schedule(1.0, decay_steps, alpha=config.final_learning_rate)
    if not config.warmup_steps:
        return jnp.asarray(decay(step), jnp.float32)
    # The first update already moves: rate 1/warm-up, not 0.
    warmup = (step + 1) / config.warmup_steps
    return jnp.where(step < config.warmup_steps, warmup, decay(step - config.warmup_steps))


def make_optimizer(config: TrainingConfig, model) -> optax.GradientTransformation:
    """Clip, Adam, decoupled weight decay (Loshchilov and Hutter 2019) for `ravel_pytree(model)`.

    The learning rate is left to the caller, who has one for each member. Only arrays of two or
    more axes decay: not biases, not the scales of norms.
    """
    parts = []
    if config.clip_norm is not None:
        parts.append(optax.clip_by_global_norm(config.clip_norm))
    parts.append(optax.scale_by_adam(config.beta1, config.beta2, config.adam_epsilon))
    if config.weight_decay:
        parts.append(optax.stateless(lambda updates, flat: updates + _decay(config, model) * flat))
    return optax.chain(*parts)


def _decay(config: TrainingConfig, model) -> Float[Array, "P"]:
    rates = [
        jnp.full(leaf.size, config.weight_decay * (leaf.ndim > 1))
        for leaf in jax.tree.leaves(model)
    ]
    return jnp.concatenate(rates)
