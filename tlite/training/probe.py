"""Trial calls of a user's functions before a run: do they keep their contract?"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from tlite.errors import UserError
from tlite.models.parameters import shape_in_block
from tlite.training.config import user_functions
from tlite.training.optimizers import find_inits

CONTRACTS = {
    "optimizer": "a function of the learning rate that returns an optax GradientTransformation",
    "schedule": "a function of the step that returns a factor of the learning rate",
    "loss": "a function of logits (..., V) and targets (...) that returns a value for each target",
    "init": "a function of (key, shape, dtype) that returns an array of this shape and type",
}
SCHEDULE_FREE = optax.contrib.ScheduleFreeState
PARAMETERS = {
    "embedding.table": (5, 4),
    "blocks.0.attention.query.kernel": (4, 4),
    "blocks.0.attention_norm.scale": (4,),
    "head.bias": (5,),
}
"""Shapes on which an optimizer is tried."""


def probe_training(config: Any) -> None:
    """Try the user-defined optimizers and schedule of a `TrainingConfig`.

    Raises:
        UserError: one does not do what training needs; it is named with what it should be.
    """
    for field, value in user_functions(config).items():
        kind = field.rpartition(".")[2]
        if kind == "schedule":
            _check(field, value, partial(_find_schedule_fault, config))
        elif kind == "optimizer":
            _check(field, value, partial(_find_optimizer_fault, value))


def probe_loss(config: Any, num_classes: int) -> None:
    """Try the user-defined loss of a `TrainingConfig` on logits of this many classes or tokens.

    Raises:
        UserError: it does not do what training needs; it is named with what it should be.
    """
    if loss := user_functions(config).get("loss"):
        _check("loss", loss, partial(_find_loss_fault, loss, num_classes))


def probe_init(config: Any, arrays: Mapping[str, Any]) -> None:
    """Try the user-defined initializers of a `TrainingConfig`.

    Args:
        arrays: all parameters by name, or their shapes; each initializer is tried on its smallest.

    Raises:
        UserError: one does not do what training needs; it is named with what it should be.
    """
    inits = find_inits(config, arrays)
    for field, value in user_functions(config).items():
        if by_array := inits.get(field):
            name = min(by_array, key=lambda name: arrays[name].size)
            shape, dtype = shape_in_block(name, arrays[name]), arrays[name].dtype
            may_be_constant = field != "init"  # one group of arrays may begin at 0, say
            _check(field, value, partial(_find_init_fault, value, shape, dtype, may_be_constant))


def _check(field: str, value: Any, find_fault: Callable[[], str]) -> None:
    """Raise a `UserError` that names the function if it has a fault or raises an exception."""
    function = getattr(value, "func", value)
    name = getattr(function, "__name__", type(function).__name__)
    contract = f"it must be {CONTRACTS[field.rpartition('.')[2]]}"
    try:
        fault = find_fault()
    except jax.errors.ConcretizationTypeError as error:
        raise UserError(
            f"{field} {name} is traced by jax.jit, where arrays have no values: use jnp.where in "
            "place of if, and jnp in place of float, int and math"
        ) from error
    except Exception as error:  # the user's code may raise any type
        message = (str(error).splitlines() or [""])[0]
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
        raise UserError(f"{field} {name} fails: {message}: {contract}") from error
    if fault:
        raise UserError(f"{field} {name} {fault}: {contract}")


def _find_optimizer_fault(optimizer: Callable) -> str:
    """Return the first fault of an optimizer in four steps on a small problem; "": none."""
    result = optimizer(jnp.float32(1e-2))
    if not isinstance(result, optax.GradientTransformation):
        return f"returns a {type(result).__name__}"
    rng = np.random.default_rng(0)
    parameters, *gradients = (
        {n: np.float32(rng.normal(size=s)) for n, s in PARAMETERS.items()} for _ in range(5)
    )

    def step(parameters, state, gradient, rate):
        updates, state = optimizer(rate).update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), updates, state

    leaves = jax.tree.leaves(result.init(parameters))
    if wrong := [a for a in leaves if not isinstance(a, jax.Array | np.ndarray | float | int)]:
        return f"has a {type(wrong[0]).__name__} in its state, which may hold arrays only"
    state = jax.jit(lambda p: optimizer(jnp.float32(1e-2)).init(p))(parameters)
    nodes = jax.tree.leaves(state, is_leaf=lambda a: isinstance(a, SCHEDULE_FREE))
    if any(isinstance(node, SCHEDULE_FREE) for node in nodes):
        return "would not be evaluated at its averaged parameters: set optimizer='schedule_free'"
    shapes = jax.tree.map(lambda a: (jnp.shape(a), jnp.result_type(a)), state)
    compiled, plain, first = jax.jit(step), (parameters, state), parameters
    for gradient in gradients:
        parameters, updates, state = compiled(parameters, state, gradient, jnp.float32(1e-2))
        plain = step(*plain, gradient, jnp.float32(1e-2))[::2]
        if {n: jnp.shape(u) for n, u in updates.items()} != PARAMETERS:
            return "returns updates of other names or shapes than the parameters"
        if jax.tree.map(lambda a: (jnp.shape(a), jnp.result_type(a)), state) != shapes:
            return "returns a state of another structure than its init"
        if not all(np.isfinite(a).all() for a in jax.tree.leaves((parameters, state))):
            return "gives numbers that are not finite"
        # What a checkpoint keeps must be all that the next step needs.
        state = jax.tree.map(np.asarray, state)
    if not all(np.allclose(parameters[n], plain[0][n], rtol=1e-3, atol=1e-5) for n in PARAMETERS):
        return "gives other numbers when it is compiled, or from a restored state"
    if all(np.array_equal(parameters[n], first[n]) for n in PARAMETERS):
        return "changes no parameter"
    return _find_rate_fault(compiled, parameters, state, gradients[0])


def _find_rate_fault(step: Callable, parameters: dict, state: Any, gradient: dict) -> str:
    """Return a fault at a learning rate of 0 or in the direction of updates; "": none."""
    _, updates, _ = step(parameters, state, gradient, jnp.float32(0))
    if any(np.asarray(u).any() for u in updates.values()):
        return "does not use the learning rate: at a rate of 0 it changes parameters"
    for _ in range(20):
        parameters, moved, state = step(parameters, state, gradient, jnp.float32(0.01))
    if sum(float((u * gradient[n]).sum()) for n, u in moved.items()) >= 0:
        return "does not descend: its updates point along a constant gradient, not against it"
    return ""


def _find_schedule_fault(config: Any) -> str:
    """Return the first fault of a schedule at up to 1,000 steps of a run; "": none."""
    last = max(config.steps - config.warmup_steps, 1) - 1  # it counts from the warm-up's end
    steps = np.unique(np.linspace(0, last, min(last + 1, 1000)).astype(np.int32))
    if isinstance(value := config.schedule(steps[0]), str):
        return f"returns the text {value!r}, not a number"
    factors = np.asarray(jax.jit(jax.vmap(config.schedule))(steps), np.float32)
    if factors.shape != steps.shape:
        return f"returns an array of shape {factors.shape[1:]}"
    if not np.isfinite(factors).all():
        return f"is not finite at step {steps[~np.isfinite(factors)][0]:,}"
    if factors.min() < 0:
        return f"is negative at step {steps[factors < 0][0]:,}"
    peak = float(factors.max())
    if config.learning_rate != 1 and not 0.1 <= peak <= 10:
        return (
            f"has the largest value {peak:g}, which multiplies learning_rate={config.learning_rate}"
            ": let it be 1, or set learning_rate=1"
        )
    return ""


def _find_loss_fault(loss: Callable, num_classes: int) -> str:
    """Return the first fault of a loss; "": none."""
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(2, 3, num_classes)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, num_classes, (2, 3)), jnp.int32)
    # jit keeps what it has compiled by function: a lambda reads the values of globals again.
    values = jax.jit(lambda *args: loss(*args))(logits, targets)
    if jnp.shape(values) != targets.shape:
        return f"returns the shape {jnp.shape(values)} for targets of shape {targets.shape}"
    gradient = jax.jit(jax.grad(lambda z: loss(z, targets).sum()))(logits)
    if not (np.isfinite(values).all() and np.isfinite(gradient).all()):
        return "gives values or gradients that are not finite"
    if not np.asarray(gradient).any():
        return "has no gradient: it must be differentiable in the logits"
    if not np.allclose(values, loss(logits, targets), rtol=1e-4, atol=1e-5):
        return "gives other numbers when it is compiled"
    better = logits + 4 * jax.nn.one_hot(targets, num_classes)
    if not float(jnp.mean(loss(better, targets))) < float(jnp.mean(values)):
        return "does not fall when the targets are predicted better"
    return ""


def _find_init_fault(init: Callable, shape: tuple, dtype: Any, may_be_constant: bool) -> str:
    """Return the first fault of an initializer on an array; "": none."""
    key, other_key = jax.random.split(jax.random.key(0))
    values, again, other = (np.asarray(init(k, shape, dtype)) for k in (key, key, other_key))
    if values.shape != shape:
        return f"returns the shape {values.shape} for {shape}"
    if values.dtype != dtype:
        return f"returns {values.dtype} in place of {dtype}"
    if not np.isfinite(values).all():
        return "gives values that are not finite"
    compiled = jax.jit(lambda key: init(key, shape, dtype))(key)
    if not (np.array_equal(values, again) and np.allclose(values, compiled, rtol=1e-4, atol=1e-6)):
        return "gives other values for the same key, or when it is compiled"
    if np.array_equal(values, other) and not may_be_constant:
        return "gives the same values for each key, so that all seeds start alike"
    return ""
