"""One update of one model: a pure function of parameters, data, key and step number.

The optimizer acts on parameters by name (`optimizers`); the learning rate is a function of the step
(`schedules`).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.random import fold_in
from jaxtyping import Array, Float, Int, Key, PyTree

from tlite.models.init import draw_initial_values
from tlite.models.low_rank import init_low_rank
from tlite.models.parameters import named_arrays
from tlite.training.config import TrainingConfig
from tlite.training.loader import Loader
from tlite.training.optimizers import (
    find_inits,
    gradient_parameters,
    make_optimizer,
    select_trainable,
)
from tlite.training.precision import with_precision
from tlite.training.schedules import schedule
from tlite.training.sharding import FSDP, DataParallel

INIT, BATCH, DROPOUT, INIT_BY_NAME = range(4)  # folded into a seed's key, one for each use


class Buckets(NamedTuple):
    """Batches of several shapes, numbered by micro-batch."""

    choose: Callable[[Any, Key[Array, ""], Int[Array, ""]], Int[Array, ""]]
    """data, key, number -> index of the shape"""
    draws: tuple[Callable[[Any, Key[Array, ""], Int[Array, ""]], Any], ...]
    """for each shape: data, key, number -> batch"""
    multiple_of: int = 1
    """Number of devices that divides every batch."""


class Task(NamedTuple):
    """A model, how its data is drawn, its loss, and its evaluation."""

    init: Callable[[Key[Array, ""]], Any]
    """key -> model"""
    draw: Callable[[Any, Key[Array, ""], Int[Array, ""], int], Any]
    """data, key, step, B -> batch, a pytree of arrays whose first axis is B"""
    loss: Callable[..., dict[str, tuple[Array, Array]]]
    """model, batch, a key for each example, loss of (logits, targets) -> {"loss": (sum, count),
    ...}; names that begin with aux_ are added to the loss, times `aux_weight`."""
    evaluate: Callable[[Any, Any], PyTree[Array]]
    """model, batch -> sums of each example: arrays whose first axis is B"""
    has_perplexity: bool = False
    """True if exp(cross-entropy) is a perplexity: the mean is over tokens."""
    buckets: Buckets | None = None
    """Replaces `draw` if batches have different shapes."""
    unpack_rows: Callable[[Any], Any] = lambda rows: rows
    """rows of a prefetching loader -> batch"""


def init_parameters(
    init: Callable[[Key[Array, ""]], Any], config: TrainingConfig, key: Key[Array, ""]
) -> dict[str, Array]:
    """Return the initial parameters of a seed by name, those of low-rank updates too.

    Args:
        init: key -> model
    """
    arrays = named_arrays(init(fold_in(key, INIT)))
    by_name = fold_in(key, INIT_BY_NAME)
    for inits in find_inits(config, arrays).values():
        arrays = draw_initial_values(arrays, by_name, inits)
    low_rank = config.low_rank
    return arrays | (init_low_rank(low_rank, arrays, by_name) if low_rank else {})


class TrainState(NamedTuple):
    """State of one seed, or with a leading axis of all; parameters are arrays by name."""

    parameters: dict[str, Float[Array, "..."]]
    optimizer: PyTree[Array]
    key: Key[Array, "*replicas"]
    learning_rate: Float[Array, "*replicas"]
    """An array, so that runs that differ only in it share a compiled program."""
    ema: dict[str, Float[Array, "..."]] | None = None
    """Moving average of the trained arrays if `TrainingConfig.ema` is set."""


def update_ema(
    decay: float, ema: dict[str, Array], trained: dict[str, Array], step: Int[Array, ""]
) -> dict[str, Array]:
    """Return the average after update `step` (from 0).

    a_t = a_(t-1) + (1 - d) / (1 - d^t) (theta_t - a_(t-1)) with t = step + 1 is Adam's bias
    correction (Kingma and Ba 2015) of an average that starts at 0: a_1 = theta_1, and a_0 is lost.
    """
    weight = (1 - decay) / -jnp.expm1((step + 1) * math.log(decay))
    return {name: a + weight * (trained[name] - a) for name, a in ema.items()}


def train_step(
    task: Task,
    config: TrainingConfig,
    to_model: Callable[[dict[str, Array]], Any],
    strategy: DataParallel | FSDP,
    loader: Loader,
    state: TrainState,
    data: Any,
    step: Int[Array, ""],
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """Update on the batch of (key, step); return the new state and the means of the losses.

    Sums over all examples are divided by their count once, at the end, so the result does not
    depend on the number of devices or micro-batches.
    """
    noise = fold_in(fold_in(state.key, DROPOUT), step)
    gradient_of = partial(batch_gradient, task, config, to_model, strategy, state, noise)
    rng = fold_in(state.key, BATCH)
    gradient_of_micro_batch = loader.bind_micro_batches(
        gradient_of, task, config, strategy, data, rng, step
    )
    accumulated = sum_over_micro_batches(
        gradient_of_micro_batch, config.gradient_accumulation_steps
    )
    gradient, sums = strategy.psum(accumulated)
    gradient = jax.tree.map(lambda a: a / sums["loss"][1], gradient)
    state, norm_metrics = apply_gradient(config, state, gradient, step)
    return state, {name: total / count for name, (total, count) in sums.items()} | norm_metrics


def batch_gradient(
    task: Task,
    config: TrainingConfig,
    to_model: Callable[[dict[str, Array]], Any],
    strategy: DataParallel | FSDP,
    state: TrainState,
    noise: Key[Array, ""],
    batch: Any,
    examples: Int[Array, "B"],
) -> tuple[dict[str, Array], dict[str, tuple[Array, Array]]]:
    """Return the sums of gradient and losses over this device's rows of a batch.

    Args:
        noise: key of dropout, folded with the index of each example in the update (`examples`).
    """
    keys = jax.vmap(partial(fold_in, noise))(examples)

    def objective(trained):
        return total_loss(task, config, to_model(parameters | trained), batch, keys)

    parameters = strategy.gather_params(state.parameters)
    trained = select_trainable(config, state.parameters)
    point = strategy.gather_params(gradient_parameters(config, trained, state.optimizer))
    gradient, sums = jax.grad(objective, has_aux=True)(point)
    return strategy.reduce_scatter_grads(gradient), sums


def apply_gradient(
    config: TrainingConfig, state: TrainState, gradient: dict[str, Array], step: Int[Array, ""]
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """Return the state after the update with a gradient, and norms if they are logged."""
    trained = select_trainable(config, state.parameters)
    rate = state.learning_rate * schedule(config, step)
    updates, slots = make_optimizer(config, rate).update(gradient, state.optimizer, trained)
    after = optax.apply_updates(trained, updates)
    ema = state.ema and update_ema(config.ema, state.ema, after, step)
    norm_metrics = norms(gradient, updates, trained) if config.log_norms else {}
    parameters = state.parameters | after
    return TrainState(parameters, slots, state.key, state.learning_rate, ema), norm_metrics


def total_loss(task: Task, config: TrainingConfig, model, batch, keys) -> tuple[Array, dict]:
    """Return the sum of the loss, with the scalars that layers add, and all sums by name.

    The matrices of the model, into which low-rank updates are merged, are cast first.
    """
    sums = task.loss(with_precision(model, config.precision), batch, keys, config.loss)
    aux = sum(total for name, (total, _) in sums.items() if name.startswith("aux_"))
    return sums["loss"][0] + config.aux_weight * aux, sums


def sum_over_micro_batches(
    function: Callable[[Int[Array, ""] | int], PyTree], number: int
) -> PyTree:
    """Return function(0) + ... + function(number - 1), computed in turn."""
    if number == 1:
        return function(0)
    function = jax.jit(function, inline=True)  # traced once, for its shapes and in the loop
    shapes = jax.eval_shape(function, 0)
    return jax.lax.fori_loop(
        0,
        number,
        lambda index, total: jax.tree.map(jnp.add, total, function(index)),
        jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes),
    )


def norms(gradient: PyTree, updates: PyTree, parameters: PyTree) -> dict[str, Float[Array, ""]]:
    """Return Euclidean norms over all trained arrays.

    |g| before clipping, |theta| before the update u, and the update ratio |u| / |theta|.
    """
    length = optax.tree.norm(parameters)
    return {
        "gradient_norm": optax.tree.norm(gradient),
        "parameter_norm": length,
        "update_ratio": optax.tree.norm(updates) / length,
    }
