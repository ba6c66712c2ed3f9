"""Scaled dot-product and multi-head attention ("Attention is all you need", section 3.2).

Masks are boolean, True = may attend, broadcastable to (..., H, T, S).
"""

import dataclasses
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Key

from tlite.functional.kernels.matmul import product
from tlite.functional.layers import (
    LinearParameters,
    NormParameters,
    Tap,
    bind_supported_kwargs,
    layer_norm,
    linear,
    no_tap,
    scoped,
    soft_cap,
)
from tlite.functional.positions import rotate


class AttentionParameters(NamedTuple):
    """The four linear layers of attention, and the norms of each head's queries and keys."""

    query: LinearParameters  # (D, H*K)
    key: LinearParameters  # (D, G*K), G = H unless heads share keys
    value: LinearParameters  # (D, G*K)
    output: LinearParameters  # (H*K, D)
    query_norm: NormParameters | None = None  # (K,)
    key_norm: NormParameters | None = None  # (K,)
    own: Any = None  # what a function that computes attention has of its own


class KeyValues(NamedTuple):
    """What attention looks at, by head: a sequence's own, a cache's, or an encoder's output's.

    With fewer heads G than the queries' H, each is for H / G of them.
    """

    key: Float[Array, "*batch G S K"]
    value: Float[Array, "*batch G S K"]


def scaled_dot_product_attention(
    query: Float[Array, "*batch T K"],
    key: Float[Array, "*keys S K"],
    value: Float[Array, "*keys S Kv"],
    mask: Bool[Array, "..."] | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Float[Array, "..."] | None = None,
    tap: Tap = no_tap,
) -> tuple[Float[Array, "*batch T Kv"], Float[Array, "*batch T S"]]:
    """softmax(Q K^T / sqrt(K)) V (eq. 1); returns the output and the softmax's weights.

    Where `mask` (broadcastable to (..., T, S)) is False the weight is 0. A query that may attend
    to nothing gets weights and output 0, with finite gradients. `scale` takes the place of
    1 / sqrt(K); the scores are then bounded by `softcap`, and `bias` (..., T, S) is added. Keys
    and values may have fewer heads than queries (..., H, T, K): see `grouped_einsum`. With 16-bit
    inputs scores and weights are float32, and the output has the value's type.
    """
    divisor = math.sqrt(query.shape[-1]) if scale is None else 1 / scale
    scores = grouped_einsum("...tk,...sk->...ts", query, key) / divisor
    scores = scores if softcap is None else soft_cap(scores, softcap)
    scores = scores if bias is None else scores + bias
    weights = tap("weights", jax.nn.softmax(scores, axis=-1, where=mask))
    return grouped_einsum("...ts,...sv->...tv", weights, value).astype(value.dtype), weights


def grouped_einsum(
    form: str, x: Float[Array, "*batch T N"], y: Float[Array, "*keys S M"]
) -> Float[Array, "*batch T J"]:
    """The einsum of x and y, each of whose heads is for H / G of x's (Ainslie et al. 2023)."""
    if x.shape[:-2] == y.shape[:-2]:
        return product(form, x, y)
    *batch, heads, rows, columns = x.shape
    x = x.reshape(*batch, y.shape[-3], -1, rows, columns)
    return product(form, x, y[..., None, :, :]).reshape(*batch, heads, rows, -1)


def repeat_kv(query, key, value) -> tuple[Array, Array]:
    """Keys and values that are shared, once for each query's head."""
    if query.shape[:-2] == key.shape[:-2]:
        return key, value
    key, value = (jnp.repeat(x, query.shape[-3] // x.shape[-3], axis=-3) for x in (key, value))
    return key, value


def with_repeated_kv(attention: Callable) -> Callable:
    """The attention, handed `repeat_kv` keys and values: it may look at the number of heads."""

    @wraps(attention)
    def call(query, key, value, *others, **settings):
        return attention(query, *repeat_kv(query, key, value), *others, **settings)

    return call


STATIC = {"static": True}  # to `jit`: no array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Look:
    """What a block, and each of its layers, looks at beside its parameters and x."""

    num_heads: int = field(metadata=STATIC)
    mask: Bool[Array, "..."] | None = None
    """Broadcastable to (..., H, T, S): which keys a query may attend to."""
    bias: Float[Array, "..."] | None = None
    """(..., H, T, S), added to scores."""
    angles: Float[Array, "... L half_K"] | None = None
    """What queries and keys are turned by."""
    positions: Int[Array, "*#batch T"] | None = None
    """Where x stands in its sequence."""
    key_positions: Int[Array, "*#batch S"] | None = None
    """Where the keys stand: those of x, or all that a cache has room for."""
    memory: Any = None
    """Keys and values of an encoder's output; or what a layer's `key_values` gives in place."""
    memory_mask: Bool[Array, "..."] | None = None
    """Which of them a query may attend to."""
    cache: Any = None
    """Rows (..., C, N) of a longer sequence, by layer, if x is what comes at `start` of it."""
    start: Int[Array, "*#batch"] | None = None
    rng: Key[Array, "..."] | None = None
    """Key of dropout; None is an error where a rate is above 0, unless `deterministic`."""
    deterministic: bool = field(default=False, metadata=STATIC)
    """Evaluation: every dropout rate counts as 0."""
    magnitude: float = field(default=1.0, metadata=STATIC)
    """What rotated queries and keys are multiplied by."""
    causal: bool = field(default=False, metadata=STATIC)
    """Whether the mask says just what is causal, and within the window."""
    window: int = field(default=0, metadata=STATIC)
    """How far the block sees; 0: everything."""
    norm: Callable = field(default=layer_norm, metadata=STATIC)
    """Of the layers, and of each head's queries and keys where these are normed."""
    tap: Tap = field(default=no_tap, metadata=STATIC)

    def at(self, layer: str) -> "Look":
        """For one layer of the block: across to the memory there are no positions."""
        look = dataclasses.replace(self, tap=scoped(self.tap, layer))
        if layer == "cross_attention":
            nothing: dict[str, Any] = {"causal": False, "window": 0, "magnitude": 1.0}
            nothing |= dict.fromkeys(("bias", "angles", "positions", "key_positions", "cache"))
            return dataclasses.replace(look, mask=self.memory_mask, **nothing)
        cache = None if self.cache is None else self.cache[layer]
        return dataclasses.replace(look, memory=None, cache=cache)

    def remember(self, rows):
        """The cache with the rows of x; these alone where there is no cache."""
        if self.cache is None or self.start is None:
            return rows
        return update_cache(self.cache, rows, self.start)

    def turned(self, x: Float[Array, "*batch N K"], of_norm) -> Float[Array, "*batch N K"]:
        """Each head's queries or keys: normed, where there is a norm, and turned by the angles."""
        x = x if of_norm is None else self.norm(of_norm, x)
        return x if self.angles is None else rotate(x, self.angles, self.magnitude)

    @property
    def distances(self) -> Int[Array, "*#batch 1 T S"] | None:
        """How far each key is ahead of each query; across to a memory all are 0."""
        if self.memory is not None:
            return jnp.zeros((1, 1, 1), int)
        if self.positions is None or self.key_positions is None:
            return None
        distances = self.key_positions[..., None, :] - self.positions[..., :, None]
        return distances[..., None, :, :]


def equal(x: Array, y: Array) -> bool:
    """True if both are concrete (not traced by `jit`) and equal."""
    return not any(isinstance(a, Tracer) for a in (x, y)) and np.array_equal(x, y)


def key_values(
    params,
    x: Float[Array, "*batch S D"],
    look: Look,
    value: Float[Array, "*batch S D"] | None = None,
) -> KeyValues:
    """x W_K and x W_V by head (section 3.2.2), keys turned by their positions.

    `params` are `AttentionParameters`, of which `query` only tells K. With `value` it is value W_V.
    Where there is a `params.key_norm`, keys are normed first. Observed are `key` and `value`.
    """
    head_dim = params.query.kernel.shape[-1] // look.num_heads
    num_kv_heads = params.key.kernel.shape[-1] // head_dim
    key_BxGxSxK = split_heads(linear(params.key, x), num_kv_heads)
    value_BxGxSxK = split_heads(linear(params.value, x if value is None else value), num_kv_heads)
    key_BxGxSxK = look.turned(key_BxGxSxK, params.key_norm)
    return KeyValues(look.tap("key", key_BxGxSxK), look.tap("value", value_BxGxSxK))


def attend(
    params,
    x: Float[Array, "*batch T D"],
    keys: KeyValues,
    look: Look,
    attention: Callable = scaled_dot_product_attention,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[Float[Array, "*batch T D"], Float[Array, "*batch H T S"]]:
    """Concat(head_1, ..., head_H) W_O of queries x W_Q on keys and values (section 3.2.2).

    `params` are `AttentionParameters`. Returns the output and the weights. Observed are `query`,
    `weights`, `heads` (each head's output), `output`.

    `attention` maps (query, key, value, mask) to (output, weights). It must accept `scale`,
    `softcap` and the look's `bias` as keyword arguments where these are not None; the look's
    `distances`, `is_causal`, `window` and `tap` are passed if it accepts them. Without `tap`
    its weights can be seen, but not changed.

    Raises:
        ValueError: `attention` does not accept what it must.
    """
    query_BxHxTxK = split_heads(linear(params.query, x), look.num_heads)
    query_BxHxTxK = look.tap("query", look.turned(query_BxHxTxK, params.query_norm))
    call = bind_supported_kwargs(
        attention,
        {"bias": look.bias, "scale": scale, "softcap": softcap},
        distances=look.distances,
        is_causal=look.causal,
        window=look.window,
        tap=look.tap,
    )
    output_BxHxTxK, weights = call(query_BxHxTxK, keys.key, keys.value, look.mask)
    if "tap" not in call.keywords:
        observed = look.tap("weights", weights)
        if observed is not weights and not equal(observed, weights):
            raise ValueError("this attention takes no `tap`: its weights can't be changed")
    output_BxHxTxK = look.tap("heads", output_BxHxTxK)
    return look.tap("output", linear(params.output, merge_heads(output_BxHxTxK))), weights


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
    """Concat(head_1, ..., head_H) W_O with head_h = attention(q W_Q, k W_K, v W_V) (section 3.2.2).

    `params` are `AttentionParameters`; the head width K is theirs to choose. `mask` broadcasts to
    (..., H, T, S). `angles` from `rotary_angles` turns queries and keys by their positions. `norm`
    is that of queries and keys whose norms are among `params`. Returns the output and the weights.

    Raises:
        ValueError: the layers' width is not divisible by `num_heads`.
    """
    look = Look(num_heads, mask, angles=angles, norm=norm, tap=tap)
    return attend(params, query, key_values(params, key, look, value), look)


def update_cache(cache, new, start: Int[Array, "*#batch"]):
    """The cache with new rows at the places start, start + 1, ... of each sample.

    Both are trees of arrays, (..., C, N) and (..., T, N): `KeyValues`, or other rows. What would
    come after the last place is lost.
    """

    def put(cache, new, start):
        places = start + jnp.arange(new.shape[-2])
        return cache.at[..., places, :].set(new, mode="drop")

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
    *batch, num_heads, length, head_dim = x.shape
    return jnp.swapaxes(x, -2, -3).reshape(*batch, length, num_heads * head_dim)


# Masks


def causal_mask(length: int) -> Bool[Array, "T T"]:
    """mask[t, s] = s <= t: a position sees itself and what came before."""
    return jnp.tril(jnp.ones((length, length), bool))


def cache_mask(
    positions: Int[Array, "*batch T"], capacity: int
) -> Bool[Array, "*batch 1 T capacity"]:
    """Causal attention on a cache: what is at a position sees that place and those before it."""
    return jnp.arange(capacity) <= positions[..., None, :, None]


def window_mask(
    positions: Int[Array, "*batch T"], key_positions: Int[Array, "*#batch S"], window: int
) -> Bool[Array, "*batch 1 T S"]:
    """|t - s| < window: a position sees only what is near ("Longformer", Beltagy et al. 2020)."""
    distances = positions[..., None, :, None] - key_positions[..., None, None, :]
    return jnp.abs(distances) < window


def padding_mask(tokens: Int[Array, "*batch S"], pad_id: int) -> Bool[Array, "*batch 1 1 S"]:
    """True where a key is a real token; the axes for heads and queries are of length 1."""
    return (tokens != pad_id)[..., None, None, :]


def segment_ids(tokens: Int[Array, "*batch T"], end_id: int) -> Int[Array, "*batch T"]:
    """The number of the document that each token belongs to.

    The token that ends a document is the first that the next one sees, as a text that is generated
    begins with it too.
    """
    return jnp.cumsum(tokens == end_id, axis=-1)


def segment_mask(segment_ids: Int[Array, "*batch T"]) -> Bool[Array, "*batch 1 T T"]:
    """Causal attention within documents that are packed into one sequence, by their numbers.

    Positions count on from one document to the next: rotary ones and distances do not mind.
    """
    same = segment_ids[..., :, None] == segment_ids[..., None, :]
    return same[..., None, :, :] & causal_mask(segment_ids.shape[-1])


def combine_masks(*masks: Bool[Array, "..."] | None) -> Bool[Array, "..."] | None:
    """What every mask allows; None allows everything."""
    given = [mask for mask in masks if mask is not None]
    return reduce(operator.and_, given) if given else None
