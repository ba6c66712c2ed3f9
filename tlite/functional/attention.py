"""Scaled dot-product and multi-head attention ("Attention is all you need", section 3.2)."""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from tlite.functional.layers import linear, rms_norm, soft_cap
from tlite.functional.observe import Observe, unobserved
from tlite.functional.parameters import bind
from tlite.functional.positions import rotate


def scaled_dot_product_attention(
    query: Float[Array, "*batch T K"],
    key: Float[Array, "*batch S K"],
    value: Float[Array, "*batch S Kv"],
    mask: Bool[Array, "..."] | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Float[Array, "..."] | None = None,
    observe: Observe = unobserved,
) -> tuple[Float[Array, "*batch T Kv"], Float[Array, "*batch T S"]]:
    """softmax(Q K^T / sqrt(K)) V (eq. 1); returns the output and the softmax's weights.

    Where `mask` (broadcastable to (..., T, S)) is False the weight is 0. A query that may attend
    to nothing gets weights and output 0, with finite gradients. `scale` takes the place of
    1 / sqrt(K); the scores are then bounded by `softcap`, and `bias` (..., T, S) is added.
    """
    divisor = math.sqrt(query.shape[-1]) if scale is None else 1 / scale
    scores = jnp.einsum("...tk,...sk->...ts", query, key) / divisor
    scores = scores if softcap is None else soft_cap(scores, softcap)
    scores = scores if bias is None else scores + bias
    weights = observe("weights", jax.nn.softmax(scores, axis=-1, where=mask))
    return jnp.einsum("...ts,...sv->...tv", weights, value), weights


class KeyValues(NamedTuple):
    """What attention looks at, by head: a sequence's own, a cache's, or an encoder's output's.

    With fewer heads G than the queries' H, each is for H / G of them.
    """

    key: Float[Array, "*batch G S K"]
    value: Float[Array, "*batch G S K"]


class ConvolvedKeyValues(NamedTuple):
    """The same of a block with convolutions, and what these looked at."""

    key: Float[Array, "*batch G S K"]
    value: Float[Array, "*batch G S K"]
    inputs: dict[str, Float[Array, "*batch S D"]]
    """What came in, by the name of the layer."""


Cache = KeyValues | ConvolvedKeyValues


def key_values(
    params,
    x: Float[Array, "*batch S D"],
    value: Float[Array, "*batch S D"] | None = None,
    *,
    num_heads: int,
    angles: Float[Array, "... L half_K"] | None = None,
    norm: Callable = rms_norm,
    observe: Observe = unobserved,
) -> KeyValues:
    """x W_K and x W_V by head (section 3.2.2); `angles` turn the keys by their positions.

    With `value` it is value W_V. Where there is a `params.key_norm`, keys are normed first.
    Observed are `key` and `value`.
    """
    head_width = params.query.kernel.shape[-1] // num_heads
    key_heads = params.key.kernel.shape[-1] // head_width
    key_BxGxSxK = split_heads(linear(params.key, x), key_heads)
    value_BxGxSxK = split_heads(linear(params.value, x if value is None else value), key_heads)
    if (scale := getattr(params, "key_norm", None)) is not None:
        key_BxGxSxK = norm(scale, key_BxGxSxK)
    if angles is not None:
        key_BxGxSxK = rotate(key_BxGxSxK, angles)
    return KeyValues(observe("key", key_BxGxSxK), observe("value", value_BxGxSxK))


def attend(
    params,
    x: Float[Array, "*batch T D"],
    seen: KeyValues,
    mask: Bool[Array, "..."] | None = None,
    *,
    num_heads: int,
    angles: Float[Array, "... L half_K"] | None = None,
    norm: Callable = rms_norm,
    attention: Callable = scaled_dot_product_attention,
    bias: Float[Array, "..."] | None = None,
    observe: Observe = unobserved,
) -> tuple[Float[Array, "*batch T D"], Float[Array, "*batch H T S"]]:
    """Concat(head_1, ..., head_H) W_O of queries x W_Q on keys and values (section 3.2.2).

    `angles` turn the queries by their positions. `mask` broadcasts to (..., H, T, S). Returns the
    output and the weights. Observed are `query`, `weights`, `heads` (each head's output), `output`.

    `attention` maps (query, key, value, mask) to (output, weights). If it takes `observe` it offers
    its `weights` itself; if not they can be seen, but not changed. It is handed a `bias`
    (..., H, T, S) if there is one.
    """
    query_BxHxTxK = split_heads(linear(params.query, x), num_heads)
    if (scale := getattr(params, "query_norm", None)) is not None:
        query_BxHxTxK = norm(scale, query_BxHxTxK)
    if angles is not None:
        query_BxHxTxK = rotate(query_BxHxTxK, angles)
    query_BxHxTxK = observe("query", query_BxHxTxK)
    attention, key_heads = bind(attention, params), seen.key.shape[-3]
    seen = seen.key, seen.value
    if key_heads == num_heads:
        attention = observed(attention, observe)
    elif getattr(attention, "func", attention) is scaled_dot_product_attention:
        attention = shared_keys(attention, observe, num_heads)
    else:  # another may look at the number of heads, or at the places of queries
        attention = observed(attention, observe)
        repeated = (jnp.repeat(x, num_heads // key_heads, axis=-3) for x in seen)
        seen = tuple(repeated)
    settings = {} if bias is None else {"bias": bias}
    output_BxHxTxK, weights = attention(query_BxHxTxK, *seen, mask, **settings)
    output_BxHxTxK = observe("heads", output_BxHxTxK)
    return observe("output", linear(params.output, merge_heads(output_BxHxTxK))), weights


def multi_head_attention(
    params,
    query: Float[Array, "*batch T D"],
    key: Float[Array, "*batch S D"],
    value: Float[Array, "*batch S D"],
    mask: Bool[Array, "..."] | None = None,
    *,
    num_heads: int,
    angles: Float[Array, "... L half_K"] | None = None,
    observe: Observe = unobserved,
) -> tuple[Float[Array, "*batch T D"], Float[Array, "*batch H T S"]]:
    """Concat(head_1, ..., head_H) W_O with head_h = attention(q W_Q, k W_K, v W_V) (section 3.2.2).

    `params` has the linear layers `query`, `key`, `value` (D, H*K) and `output` (H*K, D); the
    head width K is theirs to choose. `mask` broadcasts to (..., H, T, S). `angles` from
    `rotary_angles` turns queries and keys by their positions. Returns the output and the weights.

    Raises:
        ValueError: the layers' width is not divisible by `num_heads`.
    """
    settings = {"num_heads": num_heads, "angles": angles, "observe": observe}
    return attend(params, query, key_values(params, key, value, **settings), mask, **settings)


def observed(attention: Callable, observe: Observe) -> Callable:
    """An attention whose `weights` are offered to `observe`, whether it does so itself or not."""
    if "observe" in inspect.signature(attention).parameters:
        return partial(attention, observe=observe)

    def looked_at(query, key, value, mask, **settings):
        output, weights = attention(query, key, value, mask, **settings)
        if observe("weights", weights) is not weights:
            raise ValueError("this attention takes no `observe`: its weights can't be changed")
        return output, weights

    return looked_at


def shared_keys(attention: Callable, observe: Observe, num_heads: int) -> Callable:
    """Grouped queries (Ainslie et al. 2023): heads that share a key are further queries of it."""

    def shared(query, key, value, mask, *, bias=None):
        def join(x):  # (..., H, T, N) to (..., G, H/G*T, N)
            return x.reshape(*x.shape[:-3], key.shape[-3], -1, x.shape[-1])

        def split(x):
            return x.reshape(*x.shape[:-3], num_heads, -1, x.shape[-1])

        def by_head(x):
            shape = (*x.shape[:-3], num_heads, query.shape[-2], x.shape[-1])
            return join(jnp.broadcast_to(x, shape))

        def looked_at(name, weights):
            whole = split(weights)
            seen = observe(name, whole)
            return weights if seen is whole else join(seen)

        inner = observed(attention, unobserved if observe is unobserved else looked_at)
        settings = {} if bias is None else {"bias": by_head(bias)}
        mask = None if mask is None else by_head(mask)
        output, weights = inner(join(query), key, value, mask, **settings)
        return split(output), split(weights)

    return shared


def write(cache, new, start: Int[Array, "*#batch"]):
    """The cache with new keys and values at the places start, start + 1, ... of each sample.

    Both are trees of arrays, (..., C, N) and (..., T, N): `KeyValues`, or other rows. There must be
    room for them: under `jit` that can't be checked, and the last would be lost.
    """

    def put(cache, new, start):
        return jax.lax.dynamic_update_slice(cache, new, (0,) * (cache.ndim - 2) + (start, 0))

    for _ in range(start.ndim):
        put = jax.vmap(put)
    return jax.tree.map(lambda cache, new: put(cache, new, start), cache, new)


def split_heads(x: Float[Array, "*batch T HK"], num_heads: int) -> Float[Array, "*batch H T K"]:
    """(..., T, H*K) to (..., H, T, K)."""
    *batch, length, width = x.shape
    if width % num_heads:
        raise ValueError(f"a width of {width} is not divisible by {num_heads} heads")
    return jnp.swapaxes(x.reshape(*batch, length, num_heads, width // num_heads), -2, -3)


def merge_heads(x: Float[Array, "*batch H T K"]) -> Float[Array, "*batch T HK"]:
    """(..., H, T, K) to (..., T, H*K): the inverse of `split_heads`."""
    *batch, num_heads, length, head_width = x.shape
    return jnp.swapaxes(x, -2, -3).reshape(*batch, length, num_heads * head_width)
