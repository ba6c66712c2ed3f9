"""Scaled dot-product and multi-head attention ("Attention is all you need", section 3.2).

Masks are boolean, True = may attend, broadcastable to (..., H, T, S).
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from tlite.functional.kernels.matmul import product
from tlite.functional.layers import (
    LinearParameters,
    NormParameters,
    Tap,
    dropout,
    layer_norm,
    linear,
    no_tap,
    soft_cap,
)
from tlite.functional.positions import rotate


class AttentionParameters(NamedTuple):
    """Weights of `multi_head_attention` with H heads of width K, and G heads of keys and values."""

    query: LinearParameters
    """D to H * K"""
    key: LinearParameters
    """D to G * K; G = H unless several heads of queries share a head of keys and values."""
    value: LinearParameters
    """D to G * K"""
    output: LinearParameters
    """H * K to D"""
    query_norm: NormParameters | None = None
    """Norm of each head's queries, over K."""
    key_norm: NormParameters | None = None
    """Norm of each head's keys, over K."""
    custom: Any = None
    """Parameters of a user's attention function."""


class KeyValues(NamedTuple):
    """Keys and values of G heads; each serves H / G of the H heads of queries."""

    key: Float[Array, "*batch G S K"]
    value: Float[Array, "*batch G S K"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """A cache entry of fixed size, without an axis of positions: the state of a recurrent layer."""

    value: Any


def scaled_dot_product_attention(
    query: Float[Array, "*batch T K"],
    key: Float[Array, "*keys S K"],
    value: Float[Array, "*keys S Kv"],
    mask: Bool[Array, "..."] | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Float[Array, "..."] | None = None,
    dropout_rate: float = 0.0,
    rng: Key[Array, "..."] | None = None,
    tap: Tap = no_tap,
) -> tuple[Float[Array, "*batch T Kv"], Float[Array, "*batch T S"]]:
    """softmax(Q K^T / sqrt(K)) V (eq. 1); returns the output and the softmax's weights.

    A query that may attend to nothing gets weights and output 0, with finite gradients. Keys and
    values may have fewer heads than queries (..., H, T, K): see `grouped_einsum`. With 16-bit
    inputs scores and weights are float32, and the output has the value's type. Tapped are `scores`
    (before the mask) and `weights`.

    Args:
        mask: True = may attend, broadcastable to (..., T, S).
        scale: factor of the scores in place of 1 / sqrt(K).
        softcap: bound the scaled scores by c tanh(score / c).
        bias: (..., T, S), added to the scores.
        dropout_rate: of the weights, with the key `rng`.
    """
    if mask is not None and mask.shape[-1:] not in ((), (1,), (key.shape[-2],)):
        raise ValueError(f"the mask is for {mask.shape[-1]} keys, but there are {key.shape[-2]}")
    divisor = math.sqrt(query.shape[-1]) if scale is None else 1 / scale
    scores = grouped_einsum("...tk,...sk->...ts", query, key) / divisor
    scores = scores if softcap is None else soft_cap(scores, softcap)
    scores = tap("scores", scores if bias is None else scores + bias)
    weights = tap("weights", jax.nn.softmax(scores, axis=-1, where=mask))
    dropped = dropout(rng, weights, dropout_rate)
    return grouped_einsum("...ts,...sv->...tv", dropped, value).astype(value.dtype), weights


def grouped_einsum(
    form: str, x: Float[Array, "*batch T N"], y: Float[Array, "*keys S M"]
) -> Float[Array, "*batch T J"]:
    """Einsum of x and y, each of whose heads serves H / G heads of x (Ainslie et al. 2023)."""
    if x.shape[:-2] == y.shape[:-2]:
        return product(form, x, y)
    *batch, heads, rows, columns = x.shape
    x = x.reshape(*batch, y.shape[-3], -1, rows, columns)
    return product(form, x, y[..., None, :, :]).reshape(*batch, heads, rows, -1)


def repeat_kv(query, key, value) -> tuple[Array, Array]:
    """Return keys and values repeated to the heads of the queries."""
    if query.shape[:-2] == key.shape[:-2]:
        return key, value
    key, value = (jnp.repeat(x, query.shape[-3] // x.shape[-3], axis=-3) for x in (key, value))
    return key, value


def multi_head_attention(
    params,
    query: Float[Array, "*batch T D"],
    key: Float[Array, "*batch S D"],
    value: Float[Array, "*batch S D"],
    mask: Bool[Array, "..."] | None = None,
    *,
    num_heads: int,
    angles: Float[Array, "... L half_K"] | None = None,
    norm: Callable = layer_norm,
    tap: Tap = no_tap,
) -> tuple[Float[Array, "*batch T D"], Float[Array, "*batch H T S"]]:
    """Concat(head_1, ..., head_H) W_O with head_i = attention(q W_Q, k W_K, v W_V) (section 3.2.2).

    `models.block.attend` is the same for a model, with caches and cross-attention. Tapped are
    `query`, `key`, `value`, `scores`, `weights`, `heads` (each head's output) and `output`.

    Args:
        params: `AttentionParameters`.
        mask: broadcastable to (..., H, T, S).
        angles: rotary angles (`rotary_angles`) of queries and keys.
        norm: of queries and keys, if `params` has their norms.

    Returns:
        The output and the weights.

    Raises:
        ValueError: the layers' width is not divisible by `num_heads`.
    """
    num_kv_heads = num_heads * params.key.kernel.shape[-1] // params.query.kernel.shape[-1]
    query = split_heads(linear(params.query, query), num_heads)
    key = split_heads(linear(params.key, key), num_kv_heads)
    value = split_heads(linear(params.value, value), num_kv_heads)
    if params.query_norm is not None:
        query, key = norm(params.query_norm, query), norm(params.key_norm, key)
    if angles is not None:
        query, key = rotate(query, angles), rotate(key, angles)
    query, key, value = tap("query", query), tap("key", key), tap("value", value)
    heads, weights = scaled_dot_product_attention(query, key, value, mask, tap=tap)
    return tap("output", linear(params.output, merge_heads(tap("heads", heads)))), weights


def update_cache(cache, new, start: Int[Array, "*#batch"] | None):
    """Return the cache with new entries at positions start, start + 1, ... of each sample.

    Without a cache these are the new entries; without a start the cache, which is complete. Both
    are trees of arrays, (..., C, N) and (..., T, N). Entries past the end are dropped.
    """
    if cache is None:
        return new
    if start is None:
        return cache

    def write(cache, new, start):
        positions = start + jnp.arange(new.shape[-2])
        return cache.at[..., positions, :].set(new, mode="drop")

    for _ in range(start.ndim):
        write = jax.vmap(write)
    return jax.tree.map(lambda cache, new: write(cache, new, start), cache, new)


def split_heads(x: Float[Array, "*batch T HK"], num_heads: int) -> Float[Array, "*batch H T K"]:
    """(..., T, H*K) to (..., H, T, K)."""
    *batch, length, width = x.shape
    if width % num_heads:
        raise ValueError(f"a width of {width} is not divisible by {num_heads} heads")
    return jnp.swapaxes(x.reshape(*batch, length, num_heads, width // num_heads), -2, -3)


def merge_heads(x: Float[Array, "*batch H T K"]) -> Float[Array, "*batch T HK"]:
    """(..., H, T, K) to (..., T, H*K): the inverse of `split_heads`."""
    *batch, num_heads, length, head_dim = x.shape
    return jnp.swapaxes(x, -2, -3).reshape(*batch, length, num_heads * head_dim)


# Masks


def causal_mask(length: int) -> Bool[Array, "T T"]:
    """mask[t, s] = s <= t: a position sees itself and earlier ones."""
    return jnp.tril(jnp.ones((length, length), bool))


def cache_mask(
    positions: Int[Array, "*batch T"], capacity: int
) -> Bool[Array, "*batch 1 T capacity"]:
    """Causal mask of tokens at `positions` over the positions 0, 1, ... of a cache."""
    return jnp.arange(capacity) <= positions[..., None, :, None]


def window_mask(
    positions: Int[Array, "*batch T"], key_positions: Int[Array, "*#batch S"], window: int
) -> Bool[Array, "*batch 1 T S"]:
    """|t - s| < window: a sliding window ("Longformer", Beltagy et al. 2020)."""
    distances = positions[..., None, :, None] - key_positions[..., None, None, :]
    return jnp.abs(distances) < window


def padding_mask(tokens: Int[Array, "*batch S"], pad_id: int) -> Bool[Array, "*batch 1 1 S"]:
    """True where a key is a real token; the axes for heads and queries have length 1."""
    return (tokens != pad_id)[..., None, None, :]


def segment_ids(tokens: Int[Array, "*batch T"], end_id: int) -> Int[Array, "*batch T"]:
    """Number of the document of each token.

    The end-of-document token belongs to the next document, because generation starts from it.
    """
    return jnp.cumsum(tokens == end_id, axis=-1)


def segment_mask(segment_ids: Int[Array, "*batch T"]) -> Bool[Array, "*batch 1 T T"]:
    """Causal attention within documents that are packed into one sequence.

    Positions are not reset between documents; relative encodings are unaffected.
    """
    same = segment_ids[..., :, None] == segment_ids[..., None, :]
    return same[..., None, :, :] & causal_mask(segment_ids.shape[-1])


def combine_masks(*masks: Bool[Array, "..."] | None) -> Bool[Array, "..."] | None:
    """Return the conjunction of masks; None allows everything."""
    arrays = [mask for mask in masks if mask is not None]
    return reduce(operator.and_, arrays) if arrays else None
