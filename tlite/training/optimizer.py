"""Optimizers of parameters by name, and the schedule of the learning rate."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jaxtyping import Array, Float, Int

from tlite.training.config import TrainingConfig


def schedule(
    config: TrainingConfig, step: Int[Array, ""] | np.integer, numbers: dict[str, Any] | None = None
) -> Float[Array, ""]:
    """The learning rate before update `step` (from 0), as a fraction of its peak."""
    if config.schedule == "constant":
        decay = optax.constant_schedule(1.0)
    elif config.schedule == "inverse_sqrt":
        # "Attention is all you need", eq. 3, as a fraction of the peak at the warm-up's end
        first = max(config.warmup_steps, 1)
        decay = lambda since: jnp.sqrt(first / (since + first))  # noqa: E731
    else:
        decay_steps = max(config.steps - config.warmup_steps, 1)
        final = (numbers or {}).get("final_learning_rate", config.final_learning_rate)
        decay = optax.cosine_decay_schedule(1.0, decay_steps, alpha=final)
    if not config.warmup_steps:
        return jnp.asarray(decay(step), jnp.float32)
    # The first update already moves: rate 1/warm-up, not 0.
    warmup = (step + 1) / config.warmup_steps
    return jnp.where(step < config.warmup_steps, warmup, decay(step - config.warmup_steps))


def learning_rates(config: TrainingConfig) -> dict[str, Float[np.ndarray, "steps"]]:
    """The rate of every update, by the peak of each variant."""
    steps = jnp.arange(config.steps)
    return {
        f"peak {variant.learning_rate:g}": np.asarray(
            variant.learning_rate * jax.vmap(partial(schedule, variant))(steps)
        )
        for variant in config.variants
    }


def make_optimizer(
    config: TrainingConfig, numbers: dict[str, Any] | None = None
) -> optax.GradientTransformation:
    """Clip, what `config.optimizer` names, decoupled weight decay (Loshchilov and Hutter 2019).

    For dictionaries of arrays by name, without an axis of members. What it returns times the
    learning rate is to be subtracted; the rate is left to the caller, who has one for each member.
    What else each has of its own stands in `numbers`. The state is the same whatever they are.
    """
    numbers = numbers or {}
    parts, number = [], vars(config) | numbers
    if number["clip_norm"] is not None:
        parts.append(optax.clip_by_global_norm(number["clip_norm"]))
    adam = optax.scale_by_adam(number["beta1"], number["beta2"], number["adam_epsilon"])
    if config.optimizer == "lion":
        parts.append(optax.scale_by_lion(number["beta1"], number["beta2"]))
    elif config.optimizer == "muon":
        rules = {"matrices": muon(number["muon_momentum"]), "rest": adam}
        parts.append(optax.partition(rules, lambda arrays: {n: _rule(n) for n in arrays}))
    else:
        parts.append(adam)
    if config.weight_decay or "weight_decay" in numbers:
        mask = lambda arrays: {n: decays(n, a) for n, a in arrays.items()}  # noqa: E731
        parts.append(optax.add_decayed_weights(number["weight_decay"], mask))
    return optax.chain(*parts)


class Decay(NamedTuple):
    """A decay that is data, for optax: 1 - decay is rounded once, as a Python float's is.

    Of the float32 0.999 it would be wrong by 5e-5 of itself.
    """

    value: Float[Array, "*members"]
    complement: Float[Array, "*members"]

    def __mul__(self, array):
        return self.value * array

    def __pow__(self, count):
        return self.value**count

    def __rsub__(self, one):
        return self.complement


def numbers_of(config: TrainingConfig) -> dict[str, Float[Array, "M"] | Decay]:
    """`config.numbers` as the data of a program."""
    return {
        name: Decay(jnp.array(values), jnp.array([1 - value for value in values]))
        if name in ("beta1", "beta2", "muon_momentum")
        else jnp.array(values)
        for name, values in config.numbers.items()
    }


def muon(momentum: float | Decay) -> optax.GradientTransformation:
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
