"""Layers other than attention: functions of (params, x), with x (..., D).

A function reads the fields of `params` by name, so any object with these fields will do: a tuple of
this module in a notebook, or the parameters of a Flax model. A bias that is None is left out.

A function with the argument `tap` calls it as `x = tap("name", x)` on its intermediate values, so
that these can be captured or edited. `no_tap` compiles to nothing.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Integer, Key

from tlite.functional.kernels.matmul import matmul
from tlite.functional.random import dropout_mask

Tap = Callable[[str, Array], Array]
"""Called as tap(name, value) on every intermediate; its return value replaces the intermediate."""


class LinearParameters(NamedTuple):
    """Weights of `linear`."""

    kernel: ArrayLike
    """W (D_in, D_out)"""
    bias: ArrayLike | None = None
    """b (D_out,)"""


class NormParameters(NamedTuple):
    """Weights of `layer_norm` and `rms_norm`."""

    scale: ArrayLike
    """(D,)"""
    bias: ArrayLike | None = None
    """(D,); None for `rms_norm`"""


class FeedForwardParameters(NamedTuple):
    """Weights of `feed_forward`."""

    hidden: LinearParameters
    """D to F"""
    output: LinearParameters
    """F to D"""
    gate: LinearParameters | None = None
    """D to F"""
    custom: Any = None
    """Parameters of a user's activation."""


def no_tap(name: str, value: Array) -> Array:
    """Return the value unchanged."""
    return value


def scoped(tap: Tap, scope: str) -> Tap:
    """Return `tap` for a component: "weights" in "attention" is "attention.weights".

    Raises:
        TypeError: the tap returns None.
    """
    if tap is no_tap:
        return no_tap

    def scoped_tap(name: str, value: Array) -> Array:
        name = f"{scope}.{name}" if scope else name
        if (tapped := tap(name, value)) is None:
            raise TypeError(f"tap returned None for {name}: return the value, changed or not")
        return tapped

    return scoped_tap


def bind_supported_kwargs(
    function: Callable, required: Mapping[str, Any] | None = None, **optional
) -> partial:
    """Bind the keyword arguments that `function` accepts; optional ones are otherwise left out.

    Args:
        required: arguments that change the result: one that is not None must be accepted.

    Raises:
        ValueError: `function` does not accept a required argument; it is named.
    """
    required = dict(required or {})
    if lost := [n for n in unsupported_kwargs(function, required) if required[n] is not None]:
        name = getattr(function, "__name__", repr(function))
        raise ValueError(f"{name} does not accept the keyword argument {lost[0]!r}")
    kwargs = required | optional
    dropped = unsupported_kwargs(function, kwargs)
    return partial(function, **{n: v for n, v in kwargs.items() if n not in dropped})


def unsupported_kwargs(function: Callable, names: Iterable[str]) -> list[str]:
    """Return the names that `function` does not accept as keyword arguments."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return []
    return [name for name in names if name not in parameters]


def linear(params, x: Float[Array, "*batch D_in"]) -> Float[Array, "*batch D_out"]:
    """x W + b, with `params.kernel` W (D_in, D_out) and `params.bias` b (D_out,) or None."""
    y = matmul(x, jnp.asarray(params.kernel))
    return y if params.bias is None else y + params.bias


def embed(table: Float[Array, "V D"], tokens: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
    """Row `tokens[...]` of the table for each token.

    Raises:
        ValueError: a token is not in [0, V). Under `jit` its row is NaN.
    """
    check_tokens(tokens, len(table))
    table = jnp.asarray(table)  # `take` would count a token below 0 from the end
    return jnp.take(table, jnp.where(tokens < 0, len(table), tokens.astype(int)), axis=0)


def check_tokens(
    tokens: Integer[Array | np.ndarray, "*batch"], size: int, *, padding: bool = False
) -> None:
    """Raise if a token is outside [0, size); with `padding`, negative ones are allowed.

    Under `jit` or `vmap`, where tokens have no values yet, nothing is checked.

    Raises:
        ValueError: the first such token is named.
        TypeError: the tokens are not integers.
    """
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise TypeError(f"tokens must be integers, not {tokens.dtype}")
    if isinstance(tokens, Tracer) or not getattr(tokens, "is_fully_addressable", True):
        return
    ids = np.asarray(tokens)
    invalid = ids[(ids >= size) | ((ids < 0) & (not padding))]
    if invalid.size:
        negative = "; below 0 is padding" if padding else ""
        raise ValueError(
            f"there is no token {invalid[0]}: the vocabulary has 0 to {size - 1:,}{negative}"
        )


def unembed(
    table: Float[Array, "V D"], x: Float[Array, "*batch D"], bias: Float[Array, "V"] | None = None
) -> Float[Array, "*batch V"]:
    """x E^T + b: the embedding as the output layer (Press and Wolf 2017)."""
    logits = matmul(x, table.T)
    return logits if bias is None else logits + bias


def widen(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Cast 16-bit x to float32, in which sums neither overflow nor lose digits."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def layer_norm(params, x: Float[Array, "*batch D"], eps: float = 1e-5) -> Float[Array, "*batch D"]:
    """(x - mean) / sqrt(variance + eps) * scale + bias over the last axis (Ba et al. 2016).

    With `params.scale` (D,) and `params.bias` (D,) or None. 16-bit x is normed in float32.
    """
    wide = widen(x)
    centred = wide - wide.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    y = centred * jax.lax.rsqrt(variance + eps) * params.scale
    return (y if params.bias is None else y + params.bias).astype(x.dtype)


def rms_norm(
    params, x: Float[Array, "*batch D"], eps: float = 1e-5, offset: float = 0.0
) -> Float[Array, "*batch D"]:
    """x / sqrt(mean(x^2) + eps) * (offset + params.scale), scale (D,), over the last axis.

    (Zhang and Sennrich 2019, eq. 4.) With offset 1, weight decay pulls to no scaling (Gemma).
    16-bit x is normed in float32.
    """
    scale, wide = offset + params.scale if offset else params.scale, widen(x)
    y = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + eps) * scale
    return y.astype(x.dtype)


def squared_relu(x: Float[Array, "*batch F"]) -> Float[Array, "*batch F"]:
    """max(x, 0)^2 ("Primer", So et al. 2021, section 4.1)."""
    return jnp.square(jax.nn.relu(x))


ACTIVATIONS: dict[str, Callable] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "gelu_exact": partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "squared_relu": squared_relu,
    "tanh": jnp.tanh,
}


def soft_cap(x: Float[Array, "*batch"], cap: float) -> Float[Array, "*batch"]:
    """cap tanh(x / cap): between -cap and cap (Gemma 2, 2024, section 2)."""
    return cap * jnp.tanh(x / cap)


def dropout(
    rng: Key[Array, "..."] | None, x: Float[Array, "*batch D"], rate: float
) -> Float[Array, "*batch D"]:
    """Zero each element with probability `rate`, divide the others by 1 - rate.

    `rng` may be one key, or an array of keys whose shape begins x's shape: one for each sample, so
    that its noise does not depend on the batch or the device. With rate 0 (evaluation) it is the
    identity and needs no key.

    Raises:
        ValueError: the rate is not in [0, 1), or is above 0 without a key.
        TypeError: the key is not typed (`jax.random.key`).
    """
    if not 0 <= rate < 1:
        raise ValueError(f"the dropout rate must be in [0, 1), not {rate}")
    if rate == 0:
        return x
    if rng is None:
        raise ValueError(f"dropout with rate {rate} needs a key `rng`; pass rate 0 to evaluate")
    return jnp.where(dropout_mask(rng, x.shape, rate), x / (1 - rate), 0)


def feed_forward(
    params,
    x: Float[Array, "*batch D"],
    activation: Callable = jax.nn.relu,
    *,
    dropout_rate: float = 0.0,
    rng: Key[Array, "..."] | None = None,
    tap: Tap = no_tap,
) -> Float[Array, "*batch D"]:
    """activation(x W1 + b1) W2 + b2 ("Attention is all you need", eq. 2).

    `params.hidden` is the linear layer (D, F), `params.output` the one back (F, D); dropout is
    between them, and needs a key. With `params.gate` (D, F) it is (activation(x Wg) * x W1) W2:
    SwiGLU, GeGLU (Shazeer 2020, eq. 6). Tapped are `pre_activation`, `gate`
    (its activation), `hidden` (the input of W2) and `output`.
    """
    hidden = linear(params.hidden, x)
    if params.gate is None:
        hidden = activation(tap("pre_activation", hidden))
    else:
        hidden = tap("gate", activation(tap("pre_activation", linear(params.gate, x)))) * hidden
    hidden = tap("hidden", hidden)
    return tap("output", linear(params.output, dropout(rng, hidden, dropout_rate)))
