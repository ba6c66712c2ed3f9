"""Schedules of the learning rate: factors of its peak, as functions of the step."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from tlite.config import resolve_word

Step = Int[Array, ""] | np.integer


def constant(config: Any) -> Callable:
    return optax.constant_schedule(1.0)


def cosine(config: Any) -> Callable:
    """Half a cosine from 1, at the warm-up's end, to `final_learning_rate_fraction`."""
    return optax.cosine_decay_schedule(
        1.0, _decay_steps(config), alpha=config.final_learning_rate_fraction
    )


def linear(config: Any) -> Callable:
    """A line from 1, at the warm-up's end, to `final_learning_rate_fraction`."""
    return optax.linear_schedule(1.0, config.final_learning_rate_fraction, _decay_steps(config))


def inverse_sqrt(config: Any) -> Callable:
    """ "Attention is all you need", eq. 3, as a fraction of the peak and delayed by one update."""
    first = max(config.warmup_steps, 1)
    return lambda since: jnp.sqrt(first / (since + first))


def wsd(config: Any) -> Callable:
    """1 until the last `decay_fraction` of the steps, then a line (warm-up, stable, decay).

    The line falls from 1 at `decay_start` to `final_learning_rate_fraction`.
    """
    decay = max(config.steps - config.decay_start, 1)
    begin = config.decay_start - config.warmup_steps
    return optax.linear_schedule(1.0, config.final_learning_rate_fraction, decay, begin)


def _decay_steps(config: Any) -> int:
    return max(config.steps - config.warmup_steps, 1)


SCHEDULES: dict[str, Callable[[Any], Callable]] = {
    "constant": constant,
    "cosine": cosine,
    "linear": linear,
    "inverse_sqrt": inverse_sqrt,
    "wsd": wsd,
}
"""Schedules by the words of `TrainingConfig.schedule`."""


def schedule(config: Any, step: Step) -> Float[Array, ""]:
    """Return the learning rate of update `step` (from 0) as a fraction of its peak.

    After a linear warm-up the schedule gets the number of steps since the end of the warm-up.
    """
    if isinstance(config.schedule, str):
        decay = SCHEDULES[config.schedule](config)
    else:
        decay = config.schedule
    if not config.warmup_steps:
        return jnp.asarray(decay(step), jnp.float32)
    # The first update has the rate 1 / warmup_steps, not 0.
    warmup = (step + 1) / config.warmup_steps
    return jnp.where(step < config.warmup_steps, warmup, decay(step - config.warmup_steps))


def learning_rates(config: Any) -> dict[str, Float[np.ndarray, " steps"]]:
    """Return the learning rates of all updates by a label, for pictures."""
    rates = config.learning_rate * jax.vmap(partial(schedule, config))(jnp.arange(config.steps))
    return {f"peak {config.learning_rate:g}": np.asarray(rates)}


WORDS = dict(zip(SCHEDULES, SCHEDULES, strict=True))  # a config keeps the word
resolve_schedule = partial(resolve_word, "schedule", WORDS, "the step")
"""Return a word or a function of the step as it is."""
