"""Optimizers of parameters by name, and the schedule of the learning rate."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
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


def learning_rates(config: TrainingConfig) -> dict[str, Float[np.ndarray, "steps"]]:
    """The rate of every update, by what it is called."""
    rates = config.learning_rate * jax.vmap(partial(schedule, config))(jnp.arange(config.steps))
    return {f"peak {config.learning_rate:g}": np.asarray(rates)}


def make_optimizer(config: TrainingConfig) -> optax.GradientTransformation:
    """Clip, what `config.optimizer` names, decoupled weight decay (Loshchilov and Hutter 2019).

    For dictionaries of arrays by name, without an axis of members. What it returns times the
    learning rate is to be subtracted.
    """
    parts = []
    if config.clip_norm is not None:
        parts.append(optax.clip_by_global_norm(config.clip_norm))
    adam = optax.scale_by_adam(config.beta1, config.beta2, config.adam_epsilon)
    if config.optimizer == "lion":
        parts.append(optax.scale_by_lion(config.beta1, config.beta2))
    elif config.optimizer == "muon":
        rules = {"matrices": muon(config.muon_momentum), "rest": adam}
        parts.append(optax.partition(rules, lambda arrays: {n: _rule(n) for n in arrays}))
    else:
        parts.append(adam)
    if config.weight_decay:
        mask = lambda arrays: {n: decays(n, a) for n, a in arrays.items()}  # noqa: E731
        parts.append(optax.add_decayed_weights(config.weight_decay, mask))
    return optax.chain(*parts)


def muon(momentum: float) -> optax.GradientTransformation:
    """Momentum made orthogonal (Jordan et al. 2024), 0.2 sqrt(max(I, O)) of it.

    With that factor an update is as long as Adam's mostly is, so that both have one learning rate
    and one weight decay (Liu et al. 2025, "Muon is scalable for LLM training", eq. 4).
    """

    def matrices(updates):
        return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(0, 1), updates)

    def scaled(updates, _):
        return jax.tree.map(lambda a: 0.2 * max(a.shape) ** 0.5 * a, updates)

    orthogonal = optax.contrib.scale_by_muon(beta=momentum, weight_dimension_numbers=matrices)
    return optax.chain(orthogonal, optax.stateless(scaled))


def _rule(name: str) -> str:
    """Muon's are the matrices between hidden vectors: no embedding, and not the head."""
    inside = name.endswith(".kernel") and "blocks." in name
    return "matrices" if inside else "rest"


def decays(name: str, array) -> bool:
    """Matrices and tables decay; biases, the scales of norms and what was found before do not."""
    if name.startswith(("word_ngrams.", "character_ngrams.")):
        return False
    return name.rpartition(".")[2] not in ("bias", "scale") and array.ndim > 1
