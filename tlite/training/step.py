"""One update of one model: a pure function of parameters, data, key and step number.

The optimizer acts on parameters by name; the learning rate is a function of the step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jaxtyping import Array, Float, Int, Key, PyTree

from tlite.functional import fold_in
from tlite.models.parameters import is_matrix, shape_in_block
from tlite.training.config import TrainingConfig
from tlite.training.precision import with_precision
from tlite.training.sharding import ShardingStrategy

INIT, BATCH, DROPOUT = range(3)  # folded into a seed's key, one for each use


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
    """model, batch, a key for each example -> {"loss": (sum, count), ...}"""
    evaluate: Callable[[Any, Any], PyTree[Array]]
    """model, batch -> sums of each example: arrays whose first axis is B"""
    perplexity: bool = False
    """True if exp(loss) is a perplexity: the loss is a mean over tokens."""
    buckets: Buckets | None = None
    """Replaces `draw` if batches have different shapes."""
    unpack_rows: Callable[[Any], Any] = lambda rows: rows
    """rows of a prefetching loader -> batch"""
    label_smoothing: float = 0.0
    """Label smoothing in `loss`; a `Trainer` refuses a config with another one."""


class TrainState(NamedTuple):
    """State of one seed, or with a leading axis of all; parameters are arrays by name."""

    parameters: dict[str, Float[Array, "..."]]
    optimizer: PyTree[Array]
    key: Key[Array, "*replicas"]
    learning_rate: Float[Array, "*replicas"]
    """An array, so that runs that differ only in it share a compiled program."""


def train_step(
    task: Task,
    config: TrainingConfig,
    to_model: Callable[[dict[str, Array]], Any],
    strategy: ShardingStrategy,
    micro_batches: Callable[..., Callable],
    state: TrainState,
    data: Any,
    step: Int[Array, ""],
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """Update on the batch of (key, step); returns the new state and the means of the losses.

    Noise comes from an example's index in the update, and sums are divided once: the numbers do not
    depend on the number of devices and micro-batches.
    """
    noise = fold_in(fold_in(state.key, DROPOUT), step)

    def gradient_of(batch, first, size):
        """Return gradient and losses of this device's shard of `size` examples from `first` on."""
        keys = jax.vmap(partial(fold_in, noise))(strategy.shard_batch(first + jnp.arange(size)))

        def objective(parameters):
            sums = task.loss(to_model(parameters), batch, keys)
            return sums["loss"][0], sums

        parameters = strategy.gather_params(with_precision(state.parameters, config.precision))
        gradient, sums = jax.grad(objective, has_aux=True)(parameters)
        return strategy.reduce_scatter_grads(with_precision(gradient, "float32")), sums

    on_batch = micro_batches(task, config, strategy, data, fold_in(state.key, BATCH), step)
    accumulated = summed(partial(on_batch, gradient_of), config.gradient_accumulation_steps)
    gradient, sums = strategy.psum(accumulated)
    gradient = jax.tree.map(lambda a: a / sums["loss"][1], gradient)
    optimizer = make_optimizer(config)
    updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.parameters)
    rate = state.learning_rate * schedule(config, step)
    parameters = jax.tree.map(lambda a, by: a - rate * by, state.parameters, updates)
    means = {name: total / count for name, (total, count) in sums.items()}
    means |= norms(gradient, rate, updates, state.parameters) if config.log_norms else {}
    return state._replace(parameters=parameters, optimizer=optimizer_state), means


def summed(function: Callable[[Int[Array, ""] | int], PyTree], number: int) -> PyTree:
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


def norms(
    gradient: PyTree, rate: Float[Array, ""], updates: PyTree, parameters: PyTree
) -> dict[str, Float[Array, ""]]:
    """Return Euclidean norms over all arrays.

    |g| before clipping, |theta| before the update u, and the update ratio rate |u| / |theta|.
    """
    length = optax.tree.norm(parameters)
    return {
        "gradient_norm": optax.tree.norm(gradient),
        "parameter_norm": length,
        "update_ratio": rate * optax.tree.norm(updates) / length,
    }


def schedule(config: TrainingConfig, step: Int[Array, ""] | np.integer) -> Float[Array, ""]:
    """Return the learning rate of update `step` (from 0) as a fraction of its peak."""
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
    # The first update has the rate 1 / warmup_steps, not 0.
    warmup = (step + 1) / config.warmup_steps
    return jnp.where(step < config.warmup_steps, warmup, decay(step - config.warmup_steps))


def learning_rates(config: TrainingConfig) -> dict[str, Float[np.ndarray, "steps"]]:
    """Return the learning rates of all updates by their label in a plot."""
    rates = config.learning_rate * jax.vmap(partial(schedule, config))(jnp.arange(config.steps))
    return {f"peak {config.learning_rate:g}": np.asarray(rates)}


def make_optimizer(config: TrainingConfig) -> optax.GradientTransformation:
    """Return clipping, `config.optimizer` and decoupled weight decay (Loshchilov and Hutter 2019).

    For arrays by name of one seed. The step subtracts the learning rate times its updates.
    """
    parts = []
    if config.clip_norm is not None:
        parts.append(optax.clip_by_global_norm(config.clip_norm))
    default = 0.99 if config.optimizer == "lion" else 0.999
    beta2 = default if config.beta2 is None else config.beta2
    adam = optax.scale_by_adam(config.beta1, beta2, config.adam_epsilon)
    if config.optimizer == "lion":
        parts.append(optax.scale_by_lion(config.beta1, beta2))
    elif config.optimizer == "muon":
        rules = {"matrices": muon(config.muon_momentum), "rest": adam}
        by_muon = lambda arrays: {n: _rule(n, a) for n, a in arrays.items()}  # noqa: E731
        parts.append(optax.partition(rules, by_muon))
    else:
        parts.append(adam)
    if config.weight_decay:
        mask = lambda arrays: {n: decays(n, a) for n, a in arrays.items()}  # noqa: E731
        parts.append(optax.add_decayed_weights(config.weight_decay, mask))
    return optax.chain(*parts)


def muon(momentum: float) -> optax.GradientTransformation:
    """Return Muon: orthogonalised momentum (Jordan et al. 2024) times 0.2 sqrt(max(I, O)).

    Matrices are the last two axes (I, O) of an array; other axes stack them. The factor gives an
    update about the norm of Adam's, so that both share one learning rate and weight decay (Liu et
    al. 2025, "Muon is scalable for LLM training", eq. 4).
    """

    def matrices(updates):
        return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(-2, -1), updates)

    def scaled(updates, _):
        return jax.tree.map(lambda a: 0.2 * max(a.shape[-2:]) ** 0.5 * a, updates)

    orthogonal = optax.contrib.scale_by_muon(beta=momentum, weight_dimension_numbers=matrices)
    return optax.chain(orthogonal, optax.stateless(scaled))


def _rule(name: str, array) -> str:
    """Muon updates the matrices of blocks, not the embedding and the head."""
    return "matrices" if "blocks." in name and is_matrix(name, array) else "rest"


def parameter_rules(config: TrainingConfig, arrays: dict[str, Any]) -> dict[str, str]:
    """Return each parameter's type in products, its optimizer and decay, by name and shape."""

    def rule(name: str, array) -> str:
        mixed = config.precision == "mixed" and is_matrix(name, array)
        is_muon = config.optimizer == "muon" and _rule(name, array) == "matrices"
        optimizer = "adamw" if config.optimizer == "muon" and not is_muon else config.optimizer
        decay = f"decay {config.weight_decay if decays(name, array) else 0:g}"
        return f"{'bfloat16' if mixed else 'float32'}, {optimizer}, {decay}"

    return {name: rule(name, array) for name, array in arrays.items()}


def decays(name: str, array) -> bool:
    """True for matrices and tables; biases, norm scales and fitted n-grams do not decay."""
    if name.startswith(("word_ngrams.", "character_ngrams.")):
        return False
    return name.rpartition(".")[2] not in ("bias", "scale") and len(shape_in_block(name, array)) > 1
