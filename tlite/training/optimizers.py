"""Optimizers: what a word stands for, groups of parameters, clipping and weight decay.

An optimizer is a function of the learning rate that returns an optax `GradientTransformation` of a
dictionary of arrays by name: `optax.sgd`, `partial(optax.adamw, b2=0.95)`, or a user's own. The
dataclasses below are such functions, too; they apply the config's weight decay themselves.
"""

import abc
import fnmatch
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array, Float, PyTree

from tlite.config import Config, resolve_word
from tlite.models.init import has_initializer
from tlite.models.low_rank import is_low_rank_update
from tlite.models.parameters import is_matrix, is_stacked, shape_in_block
from tlite.user_code import name_of

Rate = float | Float[Array, ""]
Mask = Callable[[dict[str, Any]], dict[str, bool]]


class OptimizerConfig(Config, abc.ABC):
    """An optimizer of tlite, which applies weight decay itself."""

    @abc.abstractmethod
    def __call__(
        self, learning_rate: Rate, weight_decay: float = 0.0, mask: Mask | None = None
    ) -> optax.GradientTransformation:
        """Return the transformation whose updates are added to the parameters."""


class DecoupledOptimizer(OptimizerConfig):
    """A direction of descent, to which decoupled weight decay is added.

    update = -learning_rate * (direction + weight_decay * parameter) (Loshchilov and Hutter 2019).
    """

    @abc.abstractmethod
    def direction(self) -> optax.GradientTransformation:
        """Return the transformation of the gradient before the learning rate and its sign."""

    def __call__(
        self, learning_rate: Rate, weight_decay: float = 0.0, mask: Mask | None = None
    ) -> optax.GradientTransformation:
        decay = [optax.add_decayed_weights(weight_decay, mask)] if weight_decay else []
        rate = optax.scale_by_learning_rate(learning_rate)
        return optax.chain(self.direction(), *decay, rate)


@dataclass(frozen=True)
class AdamW(DecoupledOptimizer, rates="b1 b2", positive="eps"):
    """m / (sqrt(v) + eps), with bias-corrected means (Kingma and Ba 2015)."""

    b1: float = 0.9
    """Decay rate of the mean gradient m."""
    b2: float = 0.999
    """Decay rate of the mean squared gradient v."""
    eps: float = 1e-8
    """Added to the root of v."""

    def direction(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(self.b1, self.b2, self.eps)


@dataclass(frozen=True)
class Muon(AdamW, rates="momentum"):
    """Orthogonalised momentum of the matrices of blocks (Jordan et al. 2024); AdamW for the rest.

    Its updates are scaled by 0.2 sqrt(max(I, O)) for a matrix (I, O), to about the norm of Adam's:
    both share one learning rate and weight decay (Liu et al. 2025, "Muon is scalable for LLM
    training", eq. 4). Other axes of an array stack matrices.
    """

    momentum: float = 0.95
    """Decay rate of the mean gradient of matrices."""

    def direction(self) -> optax.GradientTransformation:
        def axes(updates):
            return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(-2, -1), updates)

        def scaled(updates, _):
            return jax.tree.map(lambda a: 0.2 * max(a.shape[-2:]) ** 0.5 * a, updates)

        def labels(arrays):
            return {n: "matrices" if is_muon_matrix(n, a) else "rest" for n, a in arrays.items()}

        orthogonal = optax.contrib.scale_by_muon(beta=self.momentum, weight_dimension_numbers=axes)
        matrices = optax.chain(orthogonal, optax.stateless(scaled))
        return optax.partition({"matrices": matrices, "rest": super().direction()}, labels)


def is_muon_matrix(name: str, array) -> bool:
    """True for the matrices of blocks; False for the embedding and the head."""
    return "blocks." in name and is_matrix(name, array)


@dataclass(frozen=True)
class Lion(DecoupledOptimizer, rates="b1 b2"):
    """Sign of a mean of gradients (Chen et al. 2023); a third of Adam's learning rate suits it."""

    b1: float = 0.9
    """Weight of the momentum in the sign."""
    b2: float = 0.99
    """Decay rate of the momentum."""

    def direction(self) -> optax.GradientTransformation:
        return optax.scale_by_lion(self.b1, self.b2)


@dataclass(frozen=True)
class SGD(DecoupledOptimizer, rates="momentum"):
    """The gradient, or m = momentum * m + gradient (Polyak 1964; Sutskever et al. 2013)."""

    momentum: float = 0.9
    """Decay rate of the sum of gradients; 0: none."""
    nesterov: bool = False
    """momentum * m + gradient in place of m."""

    def direction(self) -> optax.GradientTransformation:
        return optax.trace(self.momentum, self.nesterov) if self.momentum else optax.identity()


@dataclass(frozen=True)
class Adafactor(
    DecoupledOptimizer,
    sizes="min_dim_size_to_factor",
    rates="decay_rate",
    positive="clipping_threshold",
):
    """Adam's scaling from row and column means of squared gradients (Shazeer and Stern 2018)."""

    decay_rate: float = 0.8
    """The decay rate of the mean squared gradient after t steps is 1 - t^-decay_rate."""
    min_dim_size_to_factor: int = 128
    """Smaller arrays keep the squares of all elements."""
    clipping_threshold: float = 1.0
    """Largest root mean square of an array's update."""

    def direction(self) -> optax.GradientTransformation:
        return transform_by_block(
            optax.chain(
                optax.scale_by_factored_rms(
                    decay_rate=self.decay_rate, min_dim_size_to_factor=self.min_dim_size_to_factor
                ),
                optax.clip_by_block_rms(self.clipping_threshold),
            )
        )


def transform_by_block(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return a transformation that acts on each array, and each block of stacked ones, alone."""

    def over_blocks(name: str, function: Callable) -> Callable:
        return jax.vmap(function) if is_stacked(name) else function

    def init(parameters):
        arrays = {n: a for n, a in parameters.items() if not isinstance(a, optax.MaskedNode)}
        return {n: over_blocks(n, transform.init)({n: a}) for n, a in arrays.items()}

    def update(updates, state, parameters):
        updates, state = dict(updates), dict(state)
        for n, slots in state.items():
            arguments = {n: updates[n]}, slots, {n: parameters[n]}
            result, state[n] = over_blocks(n, transform.update)(*arguments)
            updates[n] = result[n]
        return updates, state

    return optax.GradientTransformation(init, update)


class ScheduleFreeState(NamedTuple):
    """State of `ScheduleFree`."""

    z: PyTree[Array]
    """Iterates of the base optimizer."""
    weight_sum: Float[Array, ""]
    """Sum of r^2."""
    max_rate: Float[Array, ""]
    """r, the largest learning rate so far."""
    base: PyTree[Array]
    """State of the base optimizer."""


@dataclass(frozen=True)
class ScheduleFree(OptimizerConfig, rates="b1 b2", positive="eps"):
    """AdamW without a schedule, by averaging (Defazio et al. 2024, "The Road Less Scheduled").

    The parameters x are a weighted mean of the iterates z, and the gradient is taken between both,
    at y = b1 x + (1 - b1) z (`gradient_parameters`):

        z <- z - learning_rate * (g / (sqrt(v) + eps) + weight_decay * y)
        x <- (1 - c) x + c z,   c = r^2 / sum of r^2 so far, r the largest learning rate so far.
    """

    b1: float = 0.9
    """Share of x in the point at which the gradient is taken."""
    b2: float = 0.999
    """Decay rate of the mean squared gradient v."""
    eps: float = 1e-8
    """Added to the root of v."""

    def __call__(
        self, learning_rate: Rate, weight_decay: float = 0.0, mask: Mask | None = None
    ) -> optax.GradientTransformation:
        base = AdamW(0.0, self.b2, self.eps)(learning_rate, weight_decay, mask)

        def init(parameters):
            zero = jnp.zeros(())
            return ScheduleFreeState(
                jax.tree.map(jnp.copy, parameters), zero, zero, base.init(parameters)
            )

        def update(gradient, state, parameters=None):
            y = self.between(parameters, state.z)
            steps, base_state = base.update(gradient, state.base, y)
            z = jax.tree.map(jnp.add, state.z, steps)
            max_rate = jnp.maximum(state.max_rate, learning_rate)
            weight_sum = state.weight_sum + max_rate**2
            c = jnp.where(weight_sum > 0, max_rate**2 / weight_sum, 0.0)
            updates = jax.tree.map(lambda x, z: c * (z - x), parameters, z)
            return updates, ScheduleFreeState(z, weight_sum, max_rate, base_state)

        return optax.GradientTransformation(init, update)

    def between(self, x: PyTree[Array], z: PyTree[Array]) -> PyTree[Array]:
        """Return y = b1 x + (1 - b1) z."""
        return jax.tree.map(lambda x, z: self.b1 * x + (1 - self.b1) * z, x, z)


OPTIMIZERS: dict[str, OptimizerConfig] = {
    "adamw": AdamW(),
    "muon": Muon(),
    "lion": Lion(),
    "sgd": SGD(),
    "adafactor": Adafactor(),
    "schedule_free": ScheduleFree(),
}
"""Optimizers by the words of `TrainingConfig.optimizer`."""


def resolve_optimizer(value: Any) -> Callable:
    """Return the optimizer for a word, or a function of the learning rate as it is."""
    if isinstance(value, optax.GradientTransformation):
        raise ValueError(
            "optimizer must be a function of the learning rate, such as optax.sgd or "
            "partial(optax.adamw, weight_decay=0.0): not what it returns"
        )
    return resolve_word("optimizer", OPTIMIZERS, "the learning rate", value)


def match(patterns: str, name: str) -> bool:
    """True if a dotted name matches one of several patterns, which spaces separate."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split())


def check_patterns(config: Any, arrays: Mapping[str, Any]) -> None:
    """Raise a `ValueError` for patterns and groups of the config that have no effect.

    Args:
        arrays: all parameters by name, or their shapes.
    """
    patterns = {} if config.trainable is None else {"trainable": config.trainable}
    for i, group in enumerate(config.groups):
        patterns[f"groups[{i}]"] = group.pattern
    for field, pattern in patterns.items():
        if not pattern.split():
            raise ValueError(f"{field}: the pattern is empty")
        for each in pattern.split():
            if not fnmatch.filter(arrays, each):
                known = ", ".join([*arrays][:8])
                raise ValueError(f"{field}: {each!r} matches no parameter among {known}, ...")
    trained = [n for n, a in arrays.items() if is_trainable(config, n, a)]
    if config.trainable and not any(match(config.trainable, name) for name in trained):
        reason = "matches only matrices with low-rank updates, which are frozen"
        raise ValueError(f"trainable: {config.trainable!r} {reason}")
    for i, group in enumerate(config.groups):
        _check_group(config, i, {n: a for n, a in arrays.items() if match(group.pattern, n)})
    for field, inits in find_inits(config, arrays).items():
        if not inits:
            pattern = patterns.get(field.removesuffix(".init"))
            outside = "none is outside of the groups" if config.groups else "there is none"
            where = f"{pattern!r} matches none" if pattern else outside
            raise ValueError(f"{field} is for matrices, and {where}")


def _check_group(config: Any, index: int, arrays: Mapping[str, Any]) -> None:
    """Raise a `ValueError` if a group has no effect on the arrays that it matches."""
    groups, pattern = config.groups, config.groups[index].pattern
    if all(any(match(g.pattern, name) for g in groups[:index]) for name in arrays):
        earlier = [g.pattern for g in groups[:index] if any(match(g.pattern, n) for n in arrays)]
        raise ValueError(
            f"groups[{index}]: the first group that matches a parameter decides, and all that "
            f"{pattern!r} matches are in {' or '.join(map(repr, earlier))}: put it before"
        )
    is_frozen = not any(is_trainable(config, name, array) for name, array in arrays.items())
    if is_frozen and groups[index].init is None:
        raise ValueError(f"groups[{index}]: all parameters that {pattern!r} matches are frozen")


def is_trainable(config: Any, name: str, array: Any) -> bool:
    """True if a parameter gets updates: it matches `trainable` and has no low-rank update."""
    if config.low_rank is None:
        return match(config.trainable or "*", name)
    if is_low_rank_update(name):
        return True
    is_selected = config.trainable is not None and match(config.trainable, name)
    return is_selected and not config.low_rank.matches(name, array)


def select_trainable(config: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays that get updates, by name."""
    if config.trainable is None and config.low_rank is None:
        return arrays
    return {name: a for name, a in arrays.items() if is_trainable(config, name, a)}


def find_group(config: Any, name: str) -> Any:
    """Return the first `ParameterGroup` that matches a name, or None."""
    return next((group for group in config.groups if match(group.pattern, name)), None)


def find_inits(config: Any, arrays: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return word or initializer of the arrays that `init`, and each group's, sets, by field."""
    inits = {} if config.init == "default" else {"init": {}}
    for i, group in enumerate(config.groups):
        if group.init not in (None, "default"):
            inits[f"groups[{i}].init"] = {}
    if not inits:
        return {}
    for name, array in arrays.items():
        group = find_group(config, name)
        is_group = group is not None and group.init is not None
        init = group.init if is_group else config.init
        field = f"groups[{config.groups.index(group)}].init" if is_group else "init"
        if not is_low_rank_update(name) and has_initializer(init, name, array, is_group=is_group):
            inits[field][name] = init
    return inits


def decays(name: str, array) -> bool:
    """True for matrices and tables; biases, norm scales and fitted n-grams do not decay."""
    if name.startswith(("word_ngrams.", "character_ngrams.")):
        return False
    return name.rpartition(".")[2] not in ("bias", "scale") and len(shape_in_block(name, array)) > 1


def decay_mask(arrays: dict[str, Any]) -> dict[str, bool]:
    return {name: decays(name, array) for name, array in arrays.items()}


def group_rule(config: Any, group: Any) -> tuple[Callable, float, Mask | None]:
    """Return the optimizer, the weight decay and its mask (None: all arrays) of a group.

    Group None stands for the arrays that no group matches.
    """
    optimizer = (group and group.optimizer) or config.optimizer
    if group is None or group.weight_decay is None:
        return optimizer, config.weight_decay, decay_mask
    return optimizer, group.weight_decay, None


def make_optimizer(config: Any, learning_rate: Rate) -> optax.GradientTransformation:
    """Return one transformation: clipping, each group's optimizer, and decoupled weight decay.

    It is for the trainable arrays by name of one seed. Its updates are added to the parameters.
    """
    rules: dict[str, optax.GradientTransformation] = {}
    for group in [None, *config.groups]:
        optimizer, decay, mask = group_rule(config, group)
        rate = learning_rate if group is None else group.learning_rate_factor * learning_rate
        if isinstance(optimizer, OptimizerConfig):
            rule = optimizer(rate, decay, mask)
        else:
            rule = optimizer(rate)
            if decay:
                rule = optax.chain(rule, optax.add_decayed_weights(-rate * decay, mask))
        rules.setdefault(group.pattern if group else "", rule)  # the first of equal ones decides

    def labels(arrays: dict[str, Any]) -> dict[str, str]:
        groups = {name: find_group(config, name) for name in arrays}
        return {name: group.pattern if group else "" for name, group in groups.items()}

    clip = [] if config.clip_norm is None else [optax.clip_by_global_norm(config.clip_norm)]
    return optax.chain(*clip, optax.partition(rules, labels) if config.groups else rules[""])


def own_weight_decay(optimizer: Any) -> float:
    """Return the weight decay that a function of the learning rate has by its signature."""
    if isinstance(optimizer, OptimizerConfig):
        return 0.0
    try:
        parameters = inspect.signature(optimizer).parameters
    except (TypeError, ValueError):  # a callable of another language
        return 0.0
    decay = parameters["weight_decay"].default if "weight_decay" in parameters else 0.0
    return float(decay) if isinstance(decay, int | float) else 0.0


def check_weight_decay(config: Any) -> None:
    """Raise a `ValueError` if an optimizer decays, and the config decays its parameters, too."""
    for i, group in enumerate([None, *config.groups]):
        optimizer, decay, _ = group_rule(config, group)
        if decay and (own := own_weight_decay(optimizer)):
            field = "optimizer" if group is None else f"groups[{i - 1}].optimizer"
            raise ValueError(
                f"{field} {name_of(optimizer)} has weight_decay={own:g}, and the config has "
                f"weight_decay={decay:g}: set one of them to 0, as in "
                "partial(optax.adamw, weight_decay=0.0)"
            )


def gradient_parameters(config: Any, parameters: dict[str, Array], state: PyTree) -> dict:
    """Return the point at which the gradient is taken: the parameters, but for `ScheduleFree`."""
    rule = config.optimizer
    if not isinstance(rule, ScheduleFree):
        return parameters
    z = optax.tree.get(state, "z")
    return parameters | {n: rule.between(parameters[n], a) for n, a in z.items()}


def parameter_rules(config: Any, arrays: dict[str, Any]) -> dict[str, str]:
    """Return each parameter's type in products, its optimizer and decay, by name and shape."""
    words = {type(value): word for word, value in OPTIMIZERS.items()}

    def rule(name: str, array: Any) -> str:
        mixed = config.precision == "mixed" and is_matrix(name, array)
        dtype = "bfloat16" if mixed else "float32"
        if not is_trainable(config, name, array):
            return f"{dtype}, frozen"
        group = find_group(config, name)
        optimizer, decay, mask = group_rule(config, group)
        if isinstance(optimizer, Muon):
            label = "muon" if is_muon_matrix(name, array) else "adamw"
        elif isinstance(optimizer, OptimizerConfig):
            label = words.get(type(optimizer), type(optimizer).__name__.lower())
        else:
            label = name_of(optimizer)
        decay = decay if mask is None or decays(name, array) else 0.0
        factor = 1.0 if group is None else group.learning_rate_factor
        rate = "" if factor == 1 else f", learning rate x {factor:g}"
        return f"{dtype}, {label}, decay {decay or own_weight_decay(optimizer):g}{rate}"

    return {name: rule(name, array) for name, array in arrays.items()}
