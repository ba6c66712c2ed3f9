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
    """Batches of several shapes; the batches of a shape are a bucket."""

    choose: Callable[[Any, Key[Array, ""], Int[Array, ""]], Int[Array, ""]]
    """data, key, index of the micro-batch in the run -> index of its bucket"""
    draws: tuple[Callable[[Any, Key[Array, ""], Int[Array, ""]], Any], ...]
    """for each bucket: data, key, index of the micro-batch in the run -> batch"""
    multiple_of: int
    """Number of devices; every batch size is a multiple of it."""


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
    has_perplexity: bool
    """True if the loss is a mean over tokens, so that exp(loss) is a perplexity."""
    buckets: Buckets | None = None
    """Replaces `draw` if batches have different shapes."""
    unpack_rows: Callable[[Any], Any] = lambda rows: rows
    """rows of a prefetching loader -> batch"""


def init_parameters(
    init: Callable[[Key[Array, ""]], Any], config: TrainingConfig, key: Key[Array, ""]
) -> dict[str, Array]:
    """Return the initial parameters of a seed by name, with those of low-rank updates.

    Args:
        init: key -> model
    """
    arrays = named_arrays(init(fold_in(key, INIT)))
    key_by_name = fold_in(key, INIT_BY_NAME)
    for inits in find_inits(config, arrays).values():
        arrays = draw_initial_values(arrays, key_by_name, inits)
    low_rank = config.low_rank
    return arrays | (init_low_rank(low_rank, arrays, key_by_name) if low_rank else {})


class TrainState(NamedTuple):
    """State of one seed; of several seeds if every array has a leading axis for them."""

    parameters: dict[str, Float[Array, "..."]]
    """Arrays by name, the frozen ones too."""
    optimizer: PyTree[Array]
    key: Key[Array, "*replicas"]
    learning_rate: Float[Array, "*replicas"]
    """Peak, before the schedule; an array, so that runs that differ only in it share a program."""
    ema: dict[str, Float[Array, "..."]] | None = None
    """Moving average of the trained arrays if `TrainingConfig.ema` is set."""


def update_ema(
    decay: float, ema: dict[str, Array], trained: dict[str, Array], step: Int[Array, ""]
) -> dict[str, Array]:
    """Return the moving average of the parameters after update `step` (counted from 0).

    a_t = a_(t-1) + (1 - d) / (1 - d^t) (theta_t - a_(t-1)) with t = step + 1. This is an average
    that starts at 0, with Adam's bias correction (Kingma and Ba 2015): a_1 = theta_1, whatever the
    initial values are.
    """
    weight = (1 - decay) / -jnp.expm1((step + 1) * math.log(decay))
    return {name: mean + weight * (trained[name] - mean) for name, mean in ema.items()}


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
    """Update on the batch of `step`; return the new state, and mean losses and norms by name.

    Sums over all examples are divided by their count once, at the end, so except for rounding the
    result does not depend on the number of devices or micro-batches. A layer's `aux` depends on
    them unless it is a mean over examples: it is computed on a device's rows of a micro-batch (with
    FSDP on all rows).
    """
    dropout_key = fold_in(fold_in(state.key, DROPOUT), step)
    gradient_of_batch = partial(
        batch_gradient, task, config, to_model, strategy, state, dropout_key
    )
    batch_key = fold_in(state.key, BATCH)
    gradient_of_micro_batch = loader.bind_micro_batches(
        gradient_of_batch, task, config, strategy, data, batch_key, step
    )
    gradient, sums = strategy.psum(
        sum_over_micro_batches(gradient_of_micro_batch, config.gradient_accumulation_steps)
    )
    gradient = jax.tree.map(lambda a: a / sums["loss"][1], gradient)
    state, norm_metrics = apply_gradient(config, state, gradient, step)
    return state, {name: total / count for name, (total, count) in sums.items()} | norm_metrics


def batch_gradient(
    task: Task,
    config: TrainingConfig,
    to_model: Callable[[dict[str, Array]], Any],
    strategy: DataParallel | FSDP,
    state: TrainState,
    dropout_key: Key[Array, ""],
    batch: Any,
    example_indices: Int[Array, "B"],
) -> tuple[dict[str, Array], dict[str, tuple[Array, Array]]]:
    """Return the sums of gradient and losses over this device's rows of a batch.

    Args:
        dropout_key: folded with the index of each example.
        example_indices: indices of the batch's rows among the examples of the update.
    """
    keys = jax.vmap(partial(fold_in, dropout_key))(example_indices)
    parameters = strategy.gather_params(state.parameters)
    trained = select_trainable(config, state.parameters)
    point = strategy.gather_params(gradient_parameters(config, trained, state.optimizer))

    def objective(point):
        return total_loss(task, config, to_model(parameters | point), batch, keys)

    gradient, sums = jax.grad(objective, has_aux=True)(point)
    return strategy.reduce_scatter_grads(gradient), sums


def apply_gradient(
    config: TrainingConfig, state: TrainState, gradient: dict[str, Array], step: Int[Array, ""]
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """Return the state after an update by this gradient, and norms if they are logged."""
    trained = select_trainable(config, state.parameters)
    rate = state.learning_rate * schedule(config, step)
    updates, optimizer = make_optimizer(config, rate).update(gradient, state.optimizer, trained)
    updated = optax.apply_updates(trained, updates)
    ema = state.ema and update_ema(config.ema, state.ema, updated, step)
    norm_metrics = norms(gradient, updates, trained) if config.log_norms else {}
    parameters = state.parameters | updated
    return state._replace(parameters=parameters, optimizer=optimizer, ema=ema), norm_metrics


def total_loss(task: Task, config: TrainingConfig, model, batch, keys) -> tuple[Array, dict]:
    """Return the summed loss with the scalars that layers add, and (sum, count) by name.

    The model's matrices are cast to the config's precision here, after low-rank updates are merged.
    """
    sums = task.loss(with_precision(model, config.precision), batch, keys, config.loss)
    aux = sum(total for name, (total, _) in sums.items() if name.startswith("aux_"))
    return sums["loss"][0] + config.aux_weight * aux, sums


def sum_over_micro_batches(
    function: Callable[[Int[Array, ""] | int], PyTree], num_micro_batches: int
) -> PyTree:
    """Return function(0) + ... + function(num_micro_batches - 1), computed one after the other."""
    if num_micro_batches == 1:
        return function(0)
    function = jax.jit(function, inline=True)  # traced once, for its shapes and in the loop
    shapes = jax.eval_shape(function, 0)
    return jax.lax.fori_loop(
        0,
        num_micro_batches,
        lambda index, total: jax.tree.map(jnp.add, total, function(index)),
        jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes),
    )


def norms(gradient: PyTree, updates: PyTree, parameters: PyTree) -> dict[str, Float[Array, ""]]:
    """Return Euclidean norms over all trained arrays, by the name of their metric.

    They are |g| before clipping, |theta| before the update u, and the ratio |u| / |theta|.
    """
    parameter_norm = optax.tree.norm(parameters)
    return {
        "gradient_norm": optax.tree.norm(gradient),
        "parameter_norm": parameter_norm,
        "update_ratio": optax.tree.norm(updates) / parameter_norm,
    }
