"""Scaled dot-product and multi-head attention ("Attention is all you need", section 3.2)."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from tlite.functional.layers import linear
from tlite.functional.positions import rotate


def scaled_dot_product_attention(
    query: Float[Array, "*batch T K"],
    key: Float[Array, "*batch S K"],
    value: Float[Array, "*batch S Kv"],
    mask: Bool[Array, "..."] | None = None,
) -> tuple[Float[Array, "*batch T Kv"], Float[Array, "*batch T S"]]:
    """softmax(Q K^T / sqrt(K)) V (eq. 1); returns the output and the softmax's weights.

    Where `mask` (broadcastable to (..., T, S)) is False the weight is 0. A query that may attend
    to nothing gets weights and output 0, with finite gradients.
    """
    scores = jnp.einsum("...tk,...sk->...ts", query, key) / math.sqrt(query.shape[-1])
    weights = jax.nn.softmax(scores, axis=-1, where=mask)
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
) -> tuple[Float[Array, "*batch T D"], Float[Array, "*batch H T S"]]:
    """Concat(head_1, ..., head_H) W_O with head_h = attention(q W_Q, k W_K, v W_V) (section 3.2.2).

    `params` has the linear layers `query`, `key`, `value` (D, H*K) and `output` (H*K, D); the
    head width K is theirs to choose. `mask` broadcasts to (..., H, T, S). `angles` from
    `rotary_angles` turns queries and keys by their positions. Returns the output and the weights.

    Raises:
        ValueError: the layers' width is not divisible by `num_heads`.
    """
    query_BxHxTxK = split_heads(linear(params.query, query), num_heads)
    key_BxHxSxK = split_heads(linear(params.key, key), num_heads)
    value_BxHxSxK = split_heads(linear(params.value, value), num_heads)
    if angles is not None:
        query_BxHxTxK, key_BxHxSxK = rotate(query_BxHxTxK, angles), rotate(key_BxHxSxK, angles)
    output_BxHxTxK, weights = scaled_dot_product_attention(
        query_BxHxTxK, key_BxHxSxK, value_BxHxSxK, mask
    )
    return linear(params.output, merge_heads(output_BxHxTxK)), weights


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
