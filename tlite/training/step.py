"""One update of one model: a pure function of parameters, data, key and step number."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from tlite.functional import fold_in
from tlite.training.config import TrainingConfig
from tlite.training.feed import Streamed
from tlite.training.optimizer import make_optimizer, schedule
from tlite.training.placement import Placed
from tlite.training.precision import with_precision

INIT, BATCH, DROPOUT = range(3)  # what a seed's key is folded with for each of its uses


class Buckets(NamedTuple):
    """Batches of several shapes; the number of a batch counts accumulated ones too."""

    choose: Callable[[Any, Key[Array, ""], Int[Array, ""]], Int[Array, ""]]
    """data, key, number of the batch -> which of the shapes it has"""
    draws: tuple[Callable[[Any, Key[Array, ""], Int[Array, ""]], Any], ...]
    """for each shape: data, key, number -> batch"""
    multiple_of: int = 1
    """What the examples of each batch are a multiple of: so many devices can divide it."""


class Task(NamedTuple):
    """What training needs to know of a model and its data."""

    init: Callable[[Key[Array, ""]], Any]
    """key -> model"""
    draw: Callable[[Any, Key[Array, ""], Int[Array, ""], int], Any]
    """data, key, step, B -> batch, a pytree of arrays whose first axis is B"""
    loss: Callable[..., dict[str, tuple[Array, Array]]]
    """model, batch, a key for each example -> {"loss": (sum, count), ...}"""
    evaluate: Callable[[Any, Any], PyTree[Array]]
    """model, batch -> sums of each example: arrays whose first axis is B"""
    perplexity: bool = False
    """Whether exp(loss) says something: the loss is a mean over tokens."""
    buckets: Buckets | None = None
    """Takes the place of `draw` where batches have different shapes."""
    of_stream: Callable[[Any], Any] = lambda rows: rows
    """A batch of what is streamed, where data does not lie on the devices."""


class TrainState(NamedTuple):
    """Of one member of a run, or, with a leading axis, of all; parameters are arrays by name."""

    parameters: dict[str, Float[Array, "..."]]
    optimizer: PyTree[Array]
    key: Key[Array, "*members"]
    learning_rate: Float[Array, "*members"]
    """Data, so that runs which differ in it alone share a compiled program."""


def train_step(
    task: Task,
    config: TrainingConfig,
    to_model: Callable[[dict[str, Array]], Any],
    placed: Placed,
    state: TrainState,
    data: Any,
    step: Int[Array, ""],
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """Update on the batch of (key, step); returns the new state and the means of the losses.

    An example's noise comes from its place in the whole batch, and sums are divided once, so the
    numbers do not depend on how many devices or accumulated parts there are.
    """
    noise = fold_in(fold_in(state.key, DROPOUT), step)

    def gradient_of(batch, first, size):
        """Of this device's part of the `size` examples from `first` on; and the losses."""
        places = placed.part(first + jnp.arange(size))
        keys = jax.vmap(lambda place: fold_in(noise, place))(places)

        def objective(parameters):
            sums = task.loss(to_model(parameters), batch, keys)
            return sums["loss"][0], sums

        parameters = placed.model(with_precision(state.parameters, config.precision))
        gradient, sums = jax.grad(objective, has_aux=True)(parameters)
        return placed.gradient(with_precision(gradient, "float32")), sums

    on_batch = batches_of(task, config, placed, data, fold_in(state.key, BATCH), step)
    parts = summed(lambda index: on_batch(index, gradient_of), config.accumulate)
    gradient, sums = placed.total(parts)
    gradient = jax.tree.map(lambda a: a / sums["loss"][1], gradient)
    optimizer = make_optimizer(config)
    updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.parameters)
    rate = state.learning_rate * schedule(config, step)
    parameters = jax.tree.map(lambda a, by: a - rate * by, state.parameters, updates)
    found = {name: total / count for name, (total, count) in sums.items()}
    if config.norms:
        found |= norms(gradient, rate, updates, state.parameters)
    return state._replace(parameters=parameters, optimizer=optimizer_state), found


def batches_of(
    task: Task,
    config: TrainingConfig,
    placed: Placed,
    data: Any,
    rng: Key[Array, ""],
    step: Int[Array, ""],
) -> Callable[[Int[Array, ""], Callable], PyTree]:
    """What calls a function with the accumulated batch of an index: this device's part of it, the
    place of its first example in the update, and the number of its examples.

    A resident data set is drawn from: each device draws the whole batch, which costs next to
    nothing, and takes its part.
    """
    size, streamed = config.batch_size, isinstance(data, Streamed)
    if task.buckets is None and not streamed:
        drawn = task.draw(data, rng, step, config.accumulate * size)

    def on_batch(index, function):
        if task.buckets is not None:
            number = step * config.accumulate + index

            def on(draw):
                batch = draw(data, rng, number)
                return function(placed.part(batch), index * size, len(jax.tree.leaves(batch)[0]))

            branches = [partial(on, draw) for draw in task.buckets.draws]
            return jax.lax.switch(task.buckets.choose(data, rng, number), branches)
        if streamed:
            rows = jax.tree.map(lambda a: a[index], data.batches)
            return function(placed.rows(task.of_stream(rows)), index * size, size)
        cut = partial(jax.lax.dynamic_slice_in_dim, start_index=index * size, slice_size=size)
        return function(placed.part(jax.tree.map(cut, drawn)), index * size, size)

    return on_batch


def summed(function: Callable[[Int[Array, ""] | int], PyTree], number: int) -> PyTree:
    """function(0) + ... + function(number - 1), one after the other."""
    if number == 1:
        return function(0)
    shapes = jax.eval_shape(function, 0)
    return jax.lax.fori_loop(
        0,
        number,
        lambda index, total: jax.tree.map(jnp.add, total, function(index)),
        jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes),
    )


def norms(
    gradient: PyTree, rate: Float[Array, ""], updates: PyTree, parameters: PyTree
) -> dict[str, Float[Array, ""]]:
    """Euclidean norms over all arrays: |g| before it is clipped, |theta| before the update u, and
    rate |u| / |theta|, the part of their length by which parameters move."""
    length = optax.tree.norm(parameters)
    return {
        "gradient_norm": optax.tree.norm(gradient),
        "parameter_norm": length,
        "update_ratio": rate * optax.tree.norm(updates) / length,
    }
