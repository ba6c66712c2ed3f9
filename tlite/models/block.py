"""The transformer block: attention and feed-forward layer, each with a residual and a norm."""

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

import tlite.functional as F
from tlite.models.components import Attention, FeedForward, Norm, NormFunction
from tlite.models.config import ATTENTION_FUNCTIONS
from tlite.models.custom import bind_attention, bind_params, call_layer
from tlite.models.inputs import BlockInputs

Aux = dict[str, Any]
"""Scalars by name that a layer adds to its output, as a load-balancing loss."""


class BlockParameters(NamedTuple):
    """Layers and norms of a block; a norm that is None is left out."""

    attention: Any
    attention_norm: Any
    feed_forward: Any
    feed_forward_norm: Any
    attention_output_norm: Any = None
    feed_forward_output_norm: Any = None
    cross_attention: Any = None
    cross_attention_norm: Any = None
    cross_attention_output_norm: Any = None


class DropoutStream(IntEnum):
    """Numbers that are folded into a block's key, one for each use of dropout."""

    ATTENTION = 0
    FEED_FORWARD = 1
    HIDDEN = 2
    CROSS_ATTENTION = 3
    ATTENTION_WEIGHTS = 4
    CROSS_ATTENTION_WEIGHTS = 5


def block(
    params,
    x: Float[Array, "*batch T D"],
    inputs: BlockInputs,
    *,
    config,
    cache: dict[str, Any] | None = None,
    rng: Key[Array, "..."] | None = None,
    tap: F.Tap = F.no_tap,
) -> tuple[Float[Array, "*batch T D"], dict[str, Any], Aux]:
    """Attention and feed-forward layer, each with a residual, and cross-attention in a decoder.

        post-norm: norm(x + layer(x))  ("Attention is all you need", section 3.1)
        pre-norm:  x + layer(norm(x))  (Xiong et al. 2020, figure 1b)

    `params` are `BlockParameters`, `config` is the block's, `cache` has entries by layer; without
    a key `rng` nothing is dropped. Returns x, new cache entries, and scalars for the loss.
    """
    pre_norm, norm, cache = config.block.pre_norm, partial(apply_norm, config.norm), cache or {}
    drop, caches = partial(dropout, config.dropout, rng), {}

    h = tap("attention_norm", norm(params.attention_norm, x)) if pre_norm else x
    y, caches["attention"], aux = layer_function(config.attention)(
        params.attention, h, inputs, config=config, cache=cache.get("attention"),
        rng=F.fold_in(rng, DropoutStream.ATTENTION_WEIGHTS), tap=F.scoped(tap, "attention"),
    )  # fmt: skip
    x = x + output_norm("attention", params, drop(DropoutStream.ATTENTION, y), config, tap)
    x = tap("attention_residual", x if pre_norm else norm(params.attention_norm, x))

    if params.cross_attention is not None:
        x, caches["cross_attention"], new = cross_attend(params, x, inputs, config, cache, rng, tap)
        aux = add_aux(aux, new)

    h = tap("feed_forward_norm", norm(params.feed_forward_norm, x)) if pre_norm else x
    y, caches["feed_forward"], new = layer_function(config.feed_forward)(
        params.feed_forward, h, inputs, config=config, cache=cache.get("feed_forward"),
        rng=F.fold_in(rng, DropoutStream.HIDDEN), tap=F.scoped(tap, "feed_forward"),
    )  # fmt: skip
    x = x + output_norm("feed_forward", params, drop(DropoutStream.FEED_FORWARD, y), config, tap)
    return x if pre_norm else norm(params.feed_forward_norm, x), caches, add_aux(aux, new)


def cross_attend(params, x, inputs: BlockInputs, config, cache: dict[str, Any], rng, tap: F.Tap):
    """Cross-attention of a decoder's block, with its residual."""
    if inputs.memory is None and "cross_attention" not in cache:
        raise ValueError("a block with cross-attention needs inputs.memory")
    pre_norm, norm = config.block.pre_norm, partial(apply_norm, config.norm)
    h = tap("cross_attention_norm", norm(params.cross_attention_norm, x)) if pre_norm else x
    y, entries, aux = layer_function(config.attention)(
        params.cross_attention, h, BlockInputs(inputs.memory_mask), config=config,
        memory=inputs.memory, cache=cache.get("cross_attention"),
        rng=F.fold_in(rng, DropoutStream.CROSS_ATTENTION_WEIGHTS),
        tap=F.scoped(tap, "cross_attention"),
    )  # fmt: skip
    y = dropout(config.dropout, rng, DropoutStream.CROSS_ATTENTION, y)
    x = x + output_norm("cross_attention", params, y, config, tap)
    x = tap("cross_attention_residual", x if pre_norm else norm(params.cross_attention_norm, x))
    return x, entries, aux


def attend(
    attention: Attention,
    params,
    x: Float[Array, "*batch T D"],
    inputs: BlockInputs,
    *,
    config,
    memory: Float[Array, "*batch M D"] | None = None,
    cache: F.KeyValues | None = None,
    rng: Key[Array, "..."] | None = None,
    tap: F.Tap = F.no_tap,
) -> tuple[Float[Array, "*batch T D"], F.KeyValues, Aux]:
    """Concat(head_1, ..., head_H) W_O, head_i = attention(x W_Q, x W_K, x W_V) (section 3.2.2).

    In cross-attention keys and values are those of `memory`; or they are in the cache already, if
    there is no `memory`. Returns the output and the keys and values (..., G, S, K) attended to.
    """
    query = split_and_rotate(params.query, params.query_norm, x, config.num_heads, inputs, config)
    query = tap("query", query)
    if memory is None and cache is not None and inputs.start is None:
        keys = cache
    else:
        source = x if memory is None else memory
        kv_heads = config.num_heads * params.key.kernel.shape[-1] // params.query.kernel.shape[-1]
        key = split_and_rotate(params.key, params.key_norm, source, kv_heads, inputs, config)
        value = F.split_heads(F.linear(params.value, source), kv_heads)
        keys = F.KeyValues(tap("key", key), tap("value", value))
        keys = F.update_cache(cache, keys, inputs.start)
    function = attention_function(attention, params.custom, inputs, rng, tap)
    heads, _ = function(query, keys.key, keys.value, inputs.mask)
    return tap("output", F.linear(params.output, F.merge_heads(tap("heads", heads)))), keys, {}


def split_and_rotate(params, norm_params, x, num_heads: int, inputs: BlockInputs, config):
    """Return queries or keys by head, normed (QK-norm) and rotated by their positions if so."""
    heads = F.split_heads(F.linear(params, x), num_heads)
    heads = apply_norm(config.norm, norm_params, heads)
    if inputs.angles is None:
        return heads
    return F.rotate(heads, inputs.angles, inputs.attention_factor)


def feed_forward(
    mlp: FeedForward,
    params,
    x: Float[Array, "*batch T D"],
    inputs: BlockInputs,
    *,
    config,
    rng: Key[Array, "..."] | None = None,
    tap: F.Tap = F.no_tap,
    **_,
) -> tuple[Float[Array, "*batch T D"], None, Aux]:
    """`functional.feed_forward` with the activation and dropout of `mlp`; nothing is cached."""
    activation = bind_params(mlp.activation, params.custom)
    rate = 0.0 if rng is None else mlp.dropout
    return F.feed_forward(params, x, activation, dropout_rate=rate, rng=rng, tap=tap), None, {}


def apply_layer(component, params, x, inputs: BlockInputs, *, config, **kwargs):
    """Call an attention or feed-forward layer, the library's or a user's.

    Args:
        kwargs: `memory`, `cache`, `rng` and `tap` as in `attend`.

    Returns:
        y (..., T, D), the cache entries or None, and the scalars for the loss by name.
    """
    return layer_function(component)(params, x, inputs, config=config, **kwargs)


@lru_cache(maxsize=256)
def layer_function(component) -> Callable:
    """Return the call of a layer: the library's for `Attention` and `FeedForward`, or a user's."""
    if callable(component) or not isinstance(component, Attention | FeedForward):
        return partial(call_layer, component)
    return partial(attend if isinstance(component, Attention) else feed_forward, component)


@lru_cache(maxsize=256)
def chunked_attention(name: str, size: int) -> Callable:
    """Return causal attention by chunks of `size` queries."""
    operands = jnp.bfloat16 if name == "mixed" else None
    return F.chunked_causal_attention(ATTENTION_FUNCTIONS[name], size, operands)


def attention_function(
    attention: Attention, custom, inputs: BlockInputs, rng, tap: F.Tap
) -> Callable:
    """Return the attention of (query, key, value, mask) with all other arguments bound."""
    kwargs = {"bias": inputs.bias, "scale": attention.scale, "softcap": attention.softcap}
    if rng is not None and attention.dropout:
        kwargs |= {"dropout_rate": attention.dropout, "rng": rng}
    if not isinstance(attention.function, str):
        return bind_attention(attention.function, custom, kwargs, inputs, rng, tap)
    function = ATTENTION_FUNCTIONS[attention.function]
    if attention.query_chunk_size:
        function = chunked_attention(attention.function, attention.query_chunk_size)
    optional = {"is_causal": inputs.is_causal, "window": inputs.window, "tap": tap}
    return F.bind_supported_kwargs(function, kwargs, **optional)


def output_norm(layer: str, params, y: Float[Array, "*batch T D"], config, tap: F.Tap):
    """The norm of a layer's output in blocks that have one (Gemma 2), else y."""
    if (norm_params := getattr(params, f"{layer}_output_norm")) is None:
        return y
    return tap(f"{layer}_output_norm", apply_norm(config.norm, norm_params, y))


def apply_norm(norm: Any, params, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
    """Layer norm, RMS norm or a user's; without parameters (None) x itself."""
    if params is None:
        return x
    if isinstance(norm, NormFunction):
        return norm.function(params, x)
    if not isinstance(norm, Norm) or callable(norm):
        return norm(params, x)
    if norm.method == "layer":
        return F.layer_norm(params, x, norm.epsilon)
    return F.rms_norm(params, x, norm.epsilon, norm.offset)


def dropout(rate: float, rng, stream: int, x: Array) -> Array:
    """`functional.dropout` with the key of a stream; without a key x itself."""
    return x if rng is None else F.dropout(F.fold_in(rng, stream), x, rate)


def add_aux(first: Aux, second: Aux) -> Aux:
    """Return the sums of the scalars with equal names, and the others."""
    return first | {name: first[name] + v if name in first else v for name, v in second.items()}
