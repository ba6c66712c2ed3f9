"""Scaled dot-product and multi-head attention ("Attention is all you need", section 3.2)."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from tlite.functional.fast_attention import mixed_attention
from tlite.functional.layers import linear
from tlite.functional.observe import Observe, unobserved
from tlite.functional.positions import rotate

MIXED_FROM_LENGTH = 128  # below, casting costs more than bfloat16 products save (LOG, 2026-11-21)


def scaled_dot_product_attention(
    query: Float[Array, "*batch T K"],
    key: Float[Array, "*batch S K"],
    value: Float[Array, "*batch S Kv"],
    mask: Bool[Array, "..."] | None = None,
    *,
    observe: Observe = unobserved,
) -> tuple[Float[Array, "*batch T Kv"], Float[Array, "*batch T S"]]:
    """softmax(Q K^T / sqrt(K)) V (eq. 1); returns the output and the softmax's weights.

    Where `mask` (broadcastable to (..., T, S)) is False the weight is 0. A query that may attend
    to nothing gets weights and output 0, with finite gradients.
    """
    scores = jnp.einsum("...tk,...sk->...ts", query, key) / math.sqrt(query.shape[-1])
    weights = observe("weights", jax.nn.softmax(scores, axis=-1, where=mask))
    return jnp.einsum("...ts,...sv->...tv", weights, value), weights


class KeyValues(NamedTuple):
    """What attention looks at, by head: a sequence's own, a cache's, or an encoder's output's."""

    key: Float[Array, "*batch H S K"]
    value: Float[Array, "*batch H S K"]


def key_values(
    params,
    x: Float[Array, "*batch S D"],
    value: Float[Array, "*batch S D"] | None = None,
    *,
    num_heads: int,
    angles: Float[Array, "... L half_K"] | None = None,
    observe: Observe = unobserved,
) -> KeyValues:
    """x W_K and x W_V by head (section 3.2.2); `angles` turn the keys by their positions.

    With `value` it is value W_V. Observed are `key` and `value`.
    """
    key_BxHxSxK = split_heads(linear(params.key, x), num_heads)
    value_BxHxSxK = split_heads(linear(params.value, x if value is None else value), num_heads)
    if angles is not None:
        key_BxHxSxK = rotate(key_BxHxSxK, angles)
    return KeyValues(observe("key", key_BxHxSxK), observe("value", value_BxHxSxK))


def attend(
    params,
    x: Float[Array, "*batch T D"],
    seen: KeyValues,
    mask: Bool[Array, "..."] | None = None,
    *,
    num_heads: int,
    angles: Float[Array, "... L half_K"] | None = None,
    observe: Observe = unobserved,
) -> tuple[Float[Array, "*batch T D"], Float[Array, "*batch H T S"]]:
    """Concat(head_1, ..., head_H) W_O of queries x W_Q on keys and values (section 3.2.2).

    `angles` turn the queries by their positions. `mask` broadcasts to (..., H, T, S). Returns the
    output and the weights. Observed are `query`, `weights`, `heads` (each head's output), `output`.
    """
    query_BxHxTxK = split_heads(linear(params.query, x), num_heads)
    if angles is not None:
        query_BxHxTxK = rotate(query_BxHxTxK, angles)
    query_BxHxTxK = observe("query", query_BxHxTxK)
    output_BxHxTxK, weights = scaled_dot_product_attention(
        query_BxHxTxK, *seen, mask, observe=observe
    )
    mixed = jnp.asarray(params.query.kernel).dtype == jnp.bfloat16
    if mixed and observe is unobserved and seen.key.shape[-2] >= MIXED_FROM_LENGTH:
        # Nobody who asks only for the output pays for the weights: the compiler drops them.
        output_BxHxTxK = mixed_attention(query_BxHxTxK, *seen, mask)
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


def write(cache: KeyValues, new: KeyValues, start: Int[Array, "*#batch"]) -> KeyValues:
    """The cache with new keys and values at the places start, start + 1, ... of each sample.

    It must have room for them: under `jit` that can't be checked, and the last would be lost.
    """

    def put(cache, new, start):
        return jax.lax.dynamic_update_slice(cache, new, (0,) * (cache.ndim - 2) + (start, 0))

    for _ in range(start.ndim):
        put = jax.vmap(put)
    return KeyValues(put(cache.key, new.key, start), put(cache.value, new.value, start))


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
