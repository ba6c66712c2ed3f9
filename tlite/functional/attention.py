"""Scaled dot-product and multi-head attention ("Attention is all you need", section 3.2)."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from tlite.functional.fast_attention import mixed_attention
from tlite.functional.layers import linear
from tlite.functional.observe import Observe, unobserved
from tlite.functional.positions import positions_from, rotate

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


def multi_head_attention(
    params,
    query: Float[Array, "*batch T D"],
    key: Float[Array, "*batch S D"],
    value: Float[Array, "*batch S D"],
    mask: Bool[Array, "..."] | None = None,
    *,
    num_heads: int,
    angles: Float[Array, "L half_K"] | None = None,
    observe: Observe = unobserved,
) -> tuple[Float[Array, "*batch T D"], Float[Array, "*batch H T S"]]:
    """Concat(head_1, ..., head_H) W_O with head_h = attention(q W_Q, k W_K, v W_V) (section 3.2.2).

    `params` has the linear layers `query`, `key`, `value` (D, H*K) and `output` (H*K, D); the
    head width K is theirs to choose. `mask` broadcasts to (..., H, T, S). `angles` from
    `rotary_angles` turns queries and keys by their positions. Returns the output and the weights.
    Observed are `query`, `key`, `value`, `weights`, `heads` (each head's output) and `output`.

    Raises:
        ValueError: the layers' width is not divisible by `num_heads`.
    """
    heads = _project(params, query, key, value, num_heads, angles)
    heads = [observe(n, x) for n, x in zip(("query", "key", "value"), heads, strict=True)]
    output_BxHxTxK, weights = scaled_dot_product_attention(*heads, mask, observe=observe)
    mixed = jnp.asarray(params.query.kernel).dtype == jnp.bfloat16
    if mixed and observe is unobserved and key.shape[-2] >= MIXED_FROM_LENGTH:
        # Nobody who asks only for the output pays for the weights: the compiler drops them.
        output_BxHxTxK = mixed_attention(*heads, mask)
    output_BxHxTxK = observe("heads", output_BxHxTxK)
    return observe("output", linear(params.output, merge_heads(output_BxHxTxK))), weights


class KeyValueCache(NamedTuple):
    """The keys and values of what was seen, by position, ready for attention."""

    key: Float[Array, "*batch H C K"]
    value: Float[Array, "*batch H C K"]


def cached_self_attention(
    params,
    x: Float[Array, "*batch T D"],
    cache: KeyValueCache,
    start: Int[Array, "*#batch"],
    mask: Bool[Array, "..."] | None = None,
    *,
    num_heads: int,
    angles: Float[Array, "*#batch 1 T half_K"] | None = None,
) -> tuple[Float[Array, "*batch T D"], KeyValueCache]:
    """Self-attention of T tokens, which go to the places start, start + 1, ... of the cache.

    With no mask it is causal: equal to `multi_head_attention` over the whole sequence with a causal
    mask, at these T rows. What lies in the cache at and after `start` is overwritten or not looked
    at, so samples of a batch may be of different lengths. Else `mask` (..., T, C) says which places
    each of the T sees. `angles` are those of the T positions. The cache must have room for
    start + T places: under `jit` that can't be checked, and the last would be lost.
    """
    query_BxHxTxK, key_BxHxTxK, value_BxHxTxK = _project(params, x, x, x, num_heads, angles)
    cache = KeyValueCache(
        _write(cache.key, key_BxHxTxK, start), _write(cache.value, value_BxHxTxK, start)
    )
    if mask is None:
        places = positions_from(start, x.shape[-2])
        mask = jnp.arange(cache.key.shape[-2]) <= places[..., None, :, None]
    output_BxHxTxK, _ = scaled_dot_product_attention(query_BxHxTxK, *cache, mask)
    return linear(params.output, merge_heads(output_BxHxTxK)), cache


def project_memory(params, memory: Float[Array, "*batch S D"], *, num_heads: int) -> KeyValueCache:
    """Keys and values of what a decoder looks at, made once for all of its steps."""
    key, value = (linear(layer, memory) for layer in (params.key, params.value))
    return KeyValueCache(split_heads(key, num_heads), split_heads(value, num_heads))


def cached_cross_attention(
    params,
    x: Float[Array, "*batch T D"],
    memory: KeyValueCache,
    mask: Bool[Array, "..."] | None = None,
    *,
    num_heads: int,
) -> Float[Array, "*batch T D"]:
    """`multi_head_attention` of x on a memory that `project_memory` has made."""
    query = split_heads(linear(params.query, x), num_heads)
    output_BxHxTxK, _ = scaled_dot_product_attention(query, *memory, mask)
    return linear(params.output, merge_heads(output_BxHxTxK))


def _project(params, query, key, value, num_heads, angles):
    """Queries, keys and values by head (..., H, T, K), turned if there are angles."""
    query_BxHxTxK = split_heads(linear(params.query, query), num_heads)
    key_BxHxSxK = split_heads(linear(params.key, key), num_heads)
    value_BxHxSxK = split_heads(linear(params.value, value), num_heads)
    if angles is not None:
        query_BxHxTxK, key_BxHxSxK = rotate(query_BxHxTxK, angles), rotate(key_BxHxSxK, angles)
    return query_BxHxTxK, key_BxHxSxK, value_BxHxSxK


def _write(
    cache: Float[Array, "*batch H C K"],
    new: Float[Array, "*batch H T K"],
    start: Int[Array, "*#batch"],
) -> Float[Array, "*batch H C K"]:
    def write(cache, new, start):
        return jax.lax.dynamic_update_slice(cache, new, (0,) * (cache.ndim - 2) + (start, 0))

    for _ in range(start.ndim):
        write = jax.vmap(write)
    return write(cache, new, start)


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
