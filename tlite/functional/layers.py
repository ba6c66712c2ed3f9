"""The layers between attention: each one a function of (parameters, x), with x (..., D)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from tlite.functional.matmul import matmul
from tlite.functional.observe import Observe, unobserved
from tlite.functional.parameters import bind
from tlite.functional.random import random_bits


def linear(params, x: Float[Array, "*batch D_in"]) -> Float[Array, "*batch D_out"]:
    """x W + b, with `params.kernel` W (D_in, D_out) and `params.bias` b (D_out,) or None."""
    y = matmul(x, jnp.asarray(params.kernel))
    return y if params.bias is None else y + params.bias


def embed(table: Float[Array, "V D"], tokens: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
    """Row `tokens[...]` of the table for each token.

    Raises:
        ValueError: a token is not in [0, V); see `check_tokens`.
    """
    check_tokens(tokens, len(table))
    return jnp.take(table, tokens, axis=0)


def check_tokens(tokens: Int[Array, "*batch"], size: int, *, padding: bool = False) -> None:
    """Look whether all tokens are in a vocabulary of this size; with `padding` also below 0.

    Under `jit` or `vmap` tokens have no values yet, so nothing is looked at there, and nothing is
    computed: a token that is too large then gives NaN.

    Raises:
        ValueError: one is not; the first is named.
    """
    if isinstance(tokens, jax.core.Tracer) or not getattr(tokens, "is_fully_addressable", True):
        return
    ids = np.asarray(tokens)
    wrong = ids[(ids >= size) | ((ids < 0) & (not padding))]
    if wrong.size:
        least = "; below 0 is padding" if padding else ""
        raise ValueError(
            f"there is no token {wrong[0]}: the vocabulary has 0 to {size - 1:,}{least}"
        )


def unembed(
    table: Float[Array, "V D"], x: Float[Array, "*batch D"], bias: Float[Array, "V"] | None = None
) -> Float[Array, "*batch V"]:
    """x E^T + b: the embedding as the output layer (Press and Wolf 2017)."""
    logits = matmul(x, table.T)
    return logits if bias is None else logits + bias


def layer_norm(params, x: Float[Array, "*batch D"], eps: float = 1e-5) -> Float[Array, "*batch D"]:
    """(x - mean) / sqrt(variance + eps) * scale + bias over the last axis (Ba et al. 2016)."""
    centred = x - x.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    y = centred * jax.lax.rsqrt(variance + eps) * params.scale
    return y if params.bias is None else y + params.bias


def rms_norm(params, x: Float[Array, "*batch D"], eps: float = 1e-5) -> Float[Array, "*batch D"]:
    """x / sqrt(mean(x^2) + eps) * scale over the last axis (Zhang and Sennrich 2019, eq. 4)."""
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps) * params.scale


def zero_centred_rms_norm(
    params, x: Float[Array, "*batch D"], eps: float = 1e-5
) -> Float[Array, "*batch D"]:
    """x / sqrt(mean(x^2) + eps) * (1 + scale): weight decay pulls it to no scaling (Gemma)."""
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps) * (1 + params.scale)


def squared_relu(x: Float[Array, "*batch F"]) -> Float[Array, "*batch F"]:
    """max(x, 0)^2 ("Primer", So et al. 2021, section 4.1)."""
    return jnp.square(jax.nn.relu(x))


def soft_cap(x: Float[Array, "*batch"], cap: float) -> Float[Array, "*batch"]:
    """cap tanh(x / cap): between -cap and cap (Gemma 2, 2024, section 2)."""
    return cap * jnp.tanh(x / cap)


def dropout(
    key: Key[Array, "..."] | None, x: Float[Array, "*batch D"], rate: float
) -> Float[Array, "*batch D"]:
    """Zero each element with probability `rate`, divide the others by 1 - rate.

    `key` may be one key, or an array of keys whose shape begins x's shape: one for each sample,
    so that a sample meets the same noise in whatever batch, or on whatever device, it is.
    Without a key (evaluation) or with rate 0 it is the identity.

    Raises:
        ValueError: the rate is not in [0, 1).
    """
    if not 0 <= rate < 1:
        raise ValueError(f"the dropout rate must be in [0, 1), not {rate}")
    if key is None or rate == 0:
        return x
    keep = random_bits(key, x.shape[key.ndim :]) >= jnp.uint32(rate * 2**32)
    return jnp.where(keep, x / (1 - rate), 0)


def feed_forward(
    params,
    x: Float[Array, "*batch D"],
    activation: Callable = jax.nn.relu,
    *,
    dropout_rate: float = 0.0,
    key: Key[Array, "..."] | None = None,
    observe: Observe = unobserved,
) -> Float[Array, "*batch D"]:
    """activation(x W1 + b1) W2 + b2 ("Attention is all you need", eq. 2).

    `params.hidden` is the linear layer (D, F), `params.output` the one back (F, D); dropout, with
    a key, is between them. With `params.gate` (D, F) it is (activation(x Wg) * x W1) W2: SwiGLU,
    GeGLU (Shazeer 2020, eq. 6). Observed are `hidden`, what goes into W2, and `output`.
    """
    activation = bind(activation, params)
    hidden = linear(params.hidden, x)
    gate = getattr(params, "gate", None)
    hidden = activation(hidden) if gate is None else activation(linear(gate, x)) * hidden
    hidden = observe("hidden", hidden)
    return observe("output", linear(params.output, dropout(key, hidden, dropout_rate)))
