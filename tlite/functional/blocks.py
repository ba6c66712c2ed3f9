"""Transformer blocks: attention and feed-forward, each with a residual and a norm."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Bool, Float, Key

from tlite.functional.attention import multi_head_attention
from tlite.functional.layers import dropout, feed_forward, layer_norm
from tlite.functional.random import fold_in


def encoder_block(
    params,
    x: Float[Array, "*batch T D"],
    mask: Bool[Array, "..."] | None = None,
    *,
    num_heads: int,
    pre_norm: bool = False,
    activation: Callable = jax.nn.relu,
    norm: Callable = layer_norm,
    angles: Float[Array, "L half_K"] | None = None,
    dropout_rate: float = 0.0,
    key: Key[Array, "..."] | None = None,
) -> Float[Array, "*batch T D"]:
    """Self-attention, then feed-forward; with a causal mask it is the block of a generator.

    post-norm ("Attention is all you need", 3.1):  x <- norm(x + f(x))
    pre-norm (Xiong et al. 2020, figure 1b):       x <- x + f(norm(x))

    for f in attention, feed-forward, each with dropout on its output. `params` has the fields
    `attention`, `attention_norm`, `feed_forward`, `feed_forward_norm`.
    """
    attention_key, feed_forward_key = (
        (None, None) if key is None else (fold_in(key, 0), fold_in(key, 1))
    )

    def attend(x):
        output, _ = multi_head_attention(
            params.attention, x, x, x, mask, num_heads=num_heads, angles=angles
        )
        return dropout(attention_key, output, dropout_rate)

    def feed(x):
        return dropout(
            feed_forward_key, feed_forward(params.feed_forward, x, activation), dropout_rate
        )

    if pre_norm:
        x = x + attend(norm(params.attention_norm, x))
        return x + feed(norm(params.feed_forward_norm, x))
    x = norm(params.attention_norm, x + attend(x))
    return norm(params.feed_forward_norm, x + feed(x))
