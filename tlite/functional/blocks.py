"""The transformer block: attention and feed-forward, each with a residual and a norm."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from tlite.functional.attention import (
    Cache,
    ConvolvedKeyValues,
    KeyValues,
    attend,
    key_values,
    scaled_dot_product_attention,
    write,
)
from tlite.functional.convolution import causal_convolution, rows_before
from tlite.functional.layers import dropout, feed_forward, layer_norm
from tlite.functional.observe import Observe, taking, unobserved, within
from tlite.functional.random import fold_in


def residual(
    layer: Callable,
    norm: Callable,
    x: Float[Array, "*batch T D"],
    *,
    pre_norm: bool,
    output_norm: Callable = lambda x: x,
) -> Float[Array, "*batch T D"]:
    """A layer with its residual connection and norm.

    post-norm: norm(x + layer(x))  ("Attention is all you need", section 3.1)
    pre-norm:  x + layer(norm(x))  (Xiong et al. 2020, figure 1b)

    The layer's output can have a norm of its own (Gemma 2, 2024, section 2).
    """
    if pre_norm:
        return x + output_norm(layer(norm(x)))
    return norm(x + output_norm(layer(x)))


def block(
    params,
    x: Float[Array, "*batch T D"],
    mask: Bool[Array, "..."] | None = None,
    memory: KeyValues | None = None,
    memory_mask: Bool[Array, "..."] | None = None,
    *,
    num_heads: int,
    pre_norm: bool = False,
    activation: Callable = jax.nn.relu,
    norm: Callable = layer_norm,
    attention: Callable = scaled_dot_product_attention,
    feed_forward: Callable = feed_forward,
    angles: Float[Array, "... L half_K"] | None = None,
    bias: Float[Array, "..."] | None = None,
    cache: Cache | None = None,
    start: Int[Array, "*#batch"] | None = None,
    first: Cache | None = None,
    dropout_rate: float = 0.0,
    hidden_dropout_rate: float = 0.0,
    key: Key[Array, "..."] | None = None,
    observe: Observe = unobserved,
) -> tuple[Float[Array, "*batch T D"], Cache]:
    """Self-attention, attention on a memory if there is one, feed-forward: each a `residual`.

    ("Attention is all you need", section 3.1, with dropout on each layer's output.) `params` has
    the fields `attention`, `attention_norm`, `feed_forward`, `feed_forward_norm`, and for a memory
    `cross_attention` and `cross_attention_norm`, whose `key_values` the memory is. A norm that is
    None is left out; `attention_output_norm` and `feed_forward_output_norm` are of layers' outputs.

    With a `cache` x is what comes at `start` of a longer sequence: its keys and values are written
    there, and `mask` (..., T, C) says which places of the cache each of the T sees. `angles` and
    `bias` (..., H, T, S) are those of self-attention.

    With `params.attention_convolution` or `params.feed_forward_convolution` (N, D) the layer gets
    the `causal_convolution` of what it would get. With `params.value_mix` (2,) attention looks at
    a mix of its own values and of the `first` block's ("Value residual", Zhou et al. 2024).

    Observed are `attention_residual`, `cross_attention_residual`, `residual` (what comes out) and,
    by their places, what attention and `feed_forward` offer.

    Returns:
        x, and what its self-attention looked at: the cache, or the keys and values of x.
    """
    keys = [None if key is None else fold_in(key, place) for place in range(4)]
    own, inputs = None, {}

    def convolved(name, x):
        taps = getattr(params, f"{name}_convolution", None)
        if taps is None:
            return x
        inputs[name] = x
        taps, before = jnp.asarray(taps), None
        if cache is not None:
            before = rows_before(cache.inputs[name], start, taps.shape[0] - 1)
        return causal_convolution(taps, x, before)

    def self_attention(x):
        nonlocal own
        x = convolved("attention", x)
        settings = {"angles": angles, "num_heads": num_heads, "norm": norm}
        settings["observe"] = within(observe, "attention")
        own = key_values(params.attention, x, **settings)
        own = own if cache is None else write(KeyValues(cache.key, cache.value), own, start)
        seen, mix = own, getattr(params, "value_mix", None)
        if mix is not None:
            mix = jnp.asarray(mix)
            seen = own._replace(value=mix[0] * own.value + mix[1] * first.value)
        settings |= {"attention": attention, "bias": bias}
        output, _ = attend(params.attention, x, seen, mask, **settings)
        return dropout(keys[0], output, dropout_rate)

    def cross_attention(x):
        settings = {"num_heads": num_heads, "norm": norm, "attention": attention}
        settings["observe"] = within(observe, "cross_attention")
        output, _ = attend(params.cross_attention, x, memory, memory_mask, **settings)
        return dropout(keys[3], output, dropout_rate)

    def feed(x):
        x = convolved("feed_forward", x)
        inside = {"dropout_rate": hidden_dropout_rate, "key": keys[2], "activation": activation}
        inside["observe"] = within(observe, "feed_forward")
        return dropout(
            keys[1], taking(feed_forward, **inside)(params.feed_forward, x), dropout_rate
        )

    def norm_of(name):
        parameters = getattr(params, name, None)
        return (lambda x: x) if parameters is None else partial(norm, parameters)

    def layer(function, x, name):
        norms = {"norm": norm_of(f"{name}_norm"), "output_norm": norm_of(f"{name}_output_norm")}
        return residual(function, x=x, pre_norm=pre_norm, **norms)

    x = observe("attention_residual", layer(self_attention, x, "attention"))
    if memory is not None:
        x = observe("cross_attention_residual", layer(cross_attention, x, "cross_attention"))
    x = observe("residual", layer(feed, x, "feed_forward"))
    if inputs:
        inputs = inputs if cache is None else write(cache.inputs, inputs, start)
        own = ConvolvedKeyValues(*own, inputs)
    return x, own


def encoder_block(
    params,
    x: Float[Array, "*batch T D"],
    mask: Bool[Array, "..."] | None = None,
    **settings,
) -> Float[Array, "*batch T D"]:
    """The `block` without a memory. With a causal mask it is that of a generator."""
    return block(params, x, mask, **settings)[0]


def decoder_block(
    params,
    x: Float[Array, "*batch T D"],
    memory: Float[Array, "*batch S D"],
    mask: Bool[Array, "..."] | None = None,
    memory_mask: Bool[Array, "..."] | None = None,
    *,
    num_heads: int,
    norm: Callable = layer_norm,
    observe: Observe = unobserved,
    **settings,
) -> Float[Array, "*batch T D"]:
    """The `block` on an encoder's output; `mask` (causal, and padding) is for the target."""
    shared = {"num_heads": num_heads, "norm": norm}
    across = shared | {"observe": within(observe, "cross_attention")}
    memory = key_values(params.cross_attention, memory, **across)
    settings |= shared | {"observe": observe}
    return block(params, x, mask, memory, memory_mask, **settings)[0]
