"""The transformer block: attention and feed-forward, each with a residual and a norm."""

import dataclasses
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Bool, Float

from tlite.functional.attention import (
    AttentionParameters,
    KeyValues,
    Look,
    attend,
    key_values,
    scaled_dot_product_attention,
)
from tlite.functional.layers import (
    FeedForwardParameters,
    NormParameters,
    Tap,
    dropout,
    feed_forward,
    layer_norm,
    no_tap,
    scoped,
)
from tlite.functional.random import fold_in

PLACES = {"attention": 0, "feed_forward": 1, "cross_attention": 3}  # of their dropout; hidden is 2
HIDDEN = 2


class BlockParameters(NamedTuple):
    """A norm that is None is left out; attention on an encoder's output is a decoder's alone."""

    attention: AttentionParameters
    attention_norm: NormParameters | None
    feed_forward: FeedForwardParameters
    feed_forward_norm: NormParameters | None
    attention_output_norm: NormParameters | None = None
    feed_forward_output_norm: NormParameters | None = None
    cross_attention: AttentionParameters | None = None
    cross_attention_norm: NormParameters | None = None
    cross_attention_output_norm: NormParameters | None = None


def block(
    params,
    x: Float[Array, "*batch T D"],
    look: Look,
    attention: Callable,
    feed_forward: Callable,
    pre_norm: bool = False,
    dropout_rate: float = 0.0,
) -> tuple[Float[Array, "*batch T D"], dict[str, Any]]:
    """Attention, attention on a memory if there is one, feed-forward: each a `residual`.

    ("Attention is all you need", section 3.1.) `params` are `BlockParameters`. A layer maps
    (params, x, look) to its output and the rows that a cache keeps of it, or None. Returns x and
    these rows, by layer.
    """
    x, own = residual("attention", attention, params, x, look, pre_norm, dropout_rate)
    if look.memory is not None:
        x, _ = residual("cross_attention", attention, params, x, look, pre_norm, dropout_rate)
    x, fed = residual("feed_forward", feed_forward, params, x, look, pre_norm, dropout_rate)
    return x, {"attention": own, "feed_forward": fed}


def residual(
    name: str,
    layer: Callable,
    params,
    x: Array,
    look: Look,
    pre_norm: bool,
    dropout_rate: float,
    repeat: int = 0,
) -> tuple[Float[Array, "*batch T D"], Any]:
    """A layer with dropout, its residual connection and norm; and what a cache keeps of it.

        post-norm: norm(x + layer(x))  ("Attention is all you need", section 3.1)
        pre-norm:  x + layer(norm(x))  (Xiong et al. 2020, figure 1b)

    `params` are the block's; a norm that is None is x. The layer's output can have a norm too
    (Gemma 2, 2024, section 2). Observed is `attention_residual`, `cross_attention_residual`.

    Every name has dropout masks of its own. A block that uses one name several times counts these
    uses, 0, 1, ..., in `repeat`, so that each has its own masks too.
    """
    if name not in PLACES or repeat:
        number = zlib.crc32(f"{name} {repeat}".encode()) % 2**31
        look = dataclasses.replace(look, rng=fold_in(look.rng, number))

    def norm(kind: str, x):
        of_norm = getattr(params, f"{name}_{kind}")
        return x if of_norm is None else look.norm(of_norm, x)

    y, rows = layer(getattr(params, name), norm("norm", x) if pre_norm else x, look.at(name))
    rate = 0.0 if look.deterministic else dropout_rate
    y = norm("output_norm", dropout(fold_in(look.rng, PLACES.get(name, 0)), y, rate))
    x = x + y if pre_norm else norm("norm", x + y)
    return x if name == "feed_forward" else look.tap(f"{name}_residual", x), rows


def attention_layer(
    params,
    x: Float[Array, "*batch T D"],
    look: Look,
    *,
    attention: Callable = scaled_dot_product_attention,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[Float[Array, "*batch T D"], KeyValues | None]:
    """Attention of x on itself and what came before it, or on a memory; and its keys and values.

    `params` are `AttentionParameters`; `attention`, `scale` and `softcap` are those of `attend`.
    """
    memory = look.memory
    keys = look.remember(key_values(params, x, look)) if memory is None else memory
    y, _ = attend(params, x, keys, look, attention, scale=scale, softcap=softcap)
    return y, keys if memory is None else None


def feed_forward_layer(
    params,
    x: Float[Array, "*batch T D"],
    look: Look,
    *,
    activation: Callable = jax.nn.relu,
    dropout_rate: float = 0.0,
) -> tuple[Float[Array, "*batch T D"], None]:
    """`feed_forward` with the block's noise; there is nothing to cache.

    `params` are `FeedForwardParameters`.
    """
    rate, rng = 0.0 if look.deterministic else dropout_rate, fold_in(look.rng, HIDDEN)
    settings = {"dropout_rate": rate, "rng": rng, "tap": look.tap}
    return feed_forward(params, x, activation, **settings), None


def encoder_block(
    params,
    x: Float[Array, "*batch T D"],
    mask: Bool[Array, "..."] | None = None,
    *,
    num_heads: int,
    norm: Callable = layer_norm,
    pre_norm: bool = False,
    activation: Callable = jax.nn.relu,
    dropout_rate: float = 0.0,
    **look,
) -> Float[Array, "*batch T D"]:
    """The `block` of the library's own layers. With a causal mask it is that of a generator.

    `params` are `BlockParameters`; `look` are more fields of `Look`: `rng`, the key of
    dropout, `tap`, `angles`, `bias`.
    """
    feed = partial(feed_forward_layer, activation=activation)
    looked = Look(num_heads, mask, norm=norm, **look)
    return block(params, x, looked, attention_layer, feed, pre_norm, dropout_rate)[0]


def decoder_block(
    params,
    x: Float[Array, "*batch T D"],
    memory: Float[Array, "*batch S D"],
    mask: Bool[Array, "..."] | None = None,
    memory_mask: Bool[Array, "..."] | None = None,
    *,
    num_heads: int,
    norm: Callable = layer_norm,
    tap: Tap = no_tap,
    **settings,
) -> Float[Array, "*batch T D"]:
    """The `block` on an encoder's output; `mask` (causal, and padding) is for the target.

    `params` are `BlockParameters` with `cross_attention`.
    """
    across = Look(num_heads, norm=norm, tap=scoped(tap, "cross_attention"))
    keys = key_values(params.cross_attention, memory, across)
    look = {"memory": keys, "memory_mask": memory_mask, "tap": tap}
    return encoder_block(params, x, mask, num_heads=num_heads, norm=norm, **look, **settings)
