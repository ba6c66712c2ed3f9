"""Transformer blocks: attention and feed-forward, each with a residual and a norm."""

from collections.abc import Callable
from functools import partial

import jax
from jaxtyping import Array, Bool, Float, Int, Key

from tlite.functional.attention import (
    KeyValueCache,
    cached_cross_attention,
    cached_self_attention,
    multi_head_attention,
)
from tlite.functional.layers import dropout, feed_forward, layer_norm
from tlite.functional.observe import Observe, unobserved, within
from tlite.functional.random import fold_in


def residual(
    layer: Callable, norm: Callable, x: Float[Array, "*batch T D"], *, pre_norm: bool
) -> Float[Array, "*batch T D"]:
    """A layer with its residual connection and norm.

    post-norm: norm(x + layer(x))  ("Attention is all you need", section 3.1)
    pre-norm:  x + layer(norm(x))  (Xiong et al. 2020, figure 1b)
    """
    return x + layer(norm(x)) if pre_norm else norm(x + layer(x))


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
    hidden_dropout_rate: float = 0.0,
    key: Key[Array, "..."] | None = None,
    observe: Observe = unobserved,
) -> Float[Array, "*batch T D"]:
    """Self-attention, then feed-forward, each a `residual` with dropout on the layer's output.

    With a causal mask it is the block of a generator. `params` has the fields `attention`,
    `attention_norm`, `feed_forward`, `feed_forward_norm`; `hidden_dropout_rate` is that between
    the two layers of the feed-forward. Observed are `attention_residual`, `residual` (what comes
    out) and, by their places, what `multi_head_attention` and `feed_forward` offer.
    """
    keys = _keys(key, 3)

    def attend(x):
        settings = {"angles": angles, "observe": within(observe, "attention")}
        return _attend(params.attention, x, x, mask, num_heads, dropout_rate, keys[0], **settings)

    def feed(x):
        rates, seen = (dropout_rate, hidden_dropout_rate), within(observe, "feed_forward")
        return _feed(params.feed_forward, x, activation, rates, keys[1:3], seen)

    x = residual(attend, partial(norm, params.attention_norm), x, pre_norm=pre_norm)
    x = observe("attention_residual", x)
    x = residual(feed, partial(norm, params.feed_forward_norm), x, pre_norm=pre_norm)
    return observe("residual", x)


def decoder_block(
    params,
    x: Float[Array, "*batch T D"],
    memory: Float[Array, "*batch S D"],
    mask: Bool[Array, "..."] | None = None,
    memory_mask: Bool[Array, "..."] | None = None,
    *,
    num_heads: int,
    pre_norm: bool = False,
    activation: Callable = jax.nn.relu,
    norm: Callable = layer_norm,
    angles: Float[Array, "L half_K"] | None = None,
    dropout_rate: float = 0.0,
    hidden_dropout_rate: float = 0.0,
    key: Key[Array, "..."] | None = None,
    observe: Observe = unobserved,
) -> Float[Array, "*batch T D"]:
    """Self-attention, attention on the encoder's output, feed-forward, each a `residual`.

    ("Attention is all you need", section 3.1.) `mask` (causal, and padding) is for the first,
    `memory_mask` for the second. `params` has, beside the fields of an encoder block,
    `cross_attention` and `cross_attention_norm`.
    """
    keys = _keys(key, 4)

    def attend(x):
        settings = {"angles": angles, "observe": within(observe, "attention")}
        return _attend(params.attention, x, x, mask, num_heads, dropout_rate, keys[0], **settings)

    def look_across(x):
        inputs = x, memory, memory_mask, num_heads, dropout_rate, keys[3]
        seen = within(observe, "cross_attention")
        return _attend(params.cross_attention, *inputs, observe=seen)

    def feed(x):
        rates, seen = (dropout_rate, hidden_dropout_rate), within(observe, "feed_forward")
        return _feed(params.feed_forward, x, activation, rates, keys[1:3], seen)

    x = residual(attend, partial(norm, params.attention_norm), x, pre_norm=pre_norm)
    x = observe("attention_residual", x)
    x = residual(look_across, partial(norm, params.cross_attention_norm), x, pre_norm=pre_norm)
    x = observe("cross_attention_residual", x)
    x = residual(feed, partial(norm, params.feed_forward_norm), x, pre_norm=pre_norm)
    return observe("residual", x)


def cached_encoder_block(
    params,
    x: Float[Array, "*batch T D"],
    cache: KeyValueCache,
    start: Int[Array, "*#batch"],
    *,
    num_heads: int,
    pre_norm: bool = False,
    activation: Callable = jax.nn.relu,
    norm: Callable = layer_norm,
    angles: Float[Array, "*#batch 1 T half_K"] | None = None,
) -> tuple[Float[Array, "*batch T D"], KeyValueCache]:
    """`encoder_block` with a causal mask, for T tokens at `start`, given the cache before them."""

    def attend(x):
        nonlocal cache
        output, cache = cached_self_attention(
            params.attention, x, cache, start, num_heads=num_heads, angles=angles
        )
        return output

    def feed(x):
        return feed_forward(params.feed_forward, x, activation)

    x = residual(attend, partial(norm, params.attention_norm), x, pre_norm=pre_norm)
    x = residual(feed, partial(norm, params.feed_forward_norm), x, pre_norm=pre_norm)
    return x, cache


def cached_decoder_block(
    params,
    x: Float[Array, "*batch T D"],
    cache: KeyValueCache,
    memory: KeyValueCache,
    start: Int[Array, "*#batch"],
    mask: Bool[Array, "..."] | None = None,
    memory_mask: Bool[Array, "..."] | None = None,
    *,
    num_heads: int,
    pre_norm: bool = False,
    activation: Callable = jax.nn.relu,
    norm: Callable = layer_norm,
    angles: Float[Array, "*#batch 1 T half_K"] | None = None,
) -> tuple[Float[Array, "*batch T D"], KeyValueCache]:
    """`decoder_block` for T tokens that go to `start` in the cache, given what is in it.

    With no `mask` (..., T, C) they see all up to themselves. `memory` is what `project_memory`
    makes of the encoder's output for the cross-attention.
    """

    def attend(x):
        nonlocal cache
        output, cache = cached_self_attention(
            params.attention, x, cache, start, mask, num_heads=num_heads, angles=angles
        )
        return output

    def look_across(x):
        return cached_cross_attention(
            params.cross_attention, x, memory, memory_mask, num_heads=num_heads
        )

    def feed(x):
        return feed_forward(params.feed_forward, x, activation)

    x = residual(attend, partial(norm, params.attention_norm), x, pre_norm=pre_norm)
    x = residual(look_across, partial(norm, params.cross_attention_norm), x, pre_norm=pre_norm)
    x = residual(feed, partial(norm, params.feed_forward_norm), x, pre_norm=pre_norm)
    return x, cache


def _attend(params, x, memory, mask, num_heads, rate, key, **settings):
    """Attention of x on a memory, and dropout."""
    settings["num_heads"] = num_heads
    output, _ = multi_head_attention(params, x, memory, memory, mask, **settings)
    return dropout(key, output, rate)


def _feed(params, x, activation, rates, keys, observe):
    """The feed-forward layer, with dropout on its output and inside, by these rates and keys."""
    inside = {"dropout_rate": rates[1], "key": keys[1]}
    output = feed_forward(params, x, activation, **inside, observe=observe)
    return dropout(keys[0], output, rates[0])


def _keys(key: Key[Array, "..."] | None, number: int) -> list[Key[Array, "..."] | None]:
    """A key for each place of noise; none without a key."""
    return [None if key is None else fold_in(key, place) for place in range(number)]
