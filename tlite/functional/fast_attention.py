"""Attention with bfloat16 operands, as one kernel of a GPU's, or so many queries at a time.

A model takes them where its config says so (`attention="mixed"`, `"fused"`, `Attention(rows=128)`).
They compute what `scaled_dot_product_attention` defines, up to rounding, and are tested against it.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from tlite.functional.attention import scaled_dot_product_attention
from tlite.functional.layers import Observe, taking, unobserved
from tlite.functional.mixed import attention_products

SPANS = 8  # each is compiled by itself; of T^2 products (1 + 1 / SPANS) / 2 remain


def mixed_attention(
    query: Float[Array, "*batch T K"],
    key: Float[Array, "*keys S K"],
    value: Float[Array, "*keys S Kv"],
    mask: Bool[Array, "..."] | None = None,
    *,
    observe: Observe = unobserved,
) -> tuple[Float[Array, "*batch T Kv"], Float[Array, "*batch T S"]]:
    """softmax(Q K^T / sqrt(K)) V: softmax and sums in float32, operands in bfloat16.

    Nobody who asks only for the output pays for the weights: the compiler drops them. To somebody
    who observes them the definition offers its own, of operands that are rounded in the same way.
    """
    looked_at, weights = _definition(query, key, value, mask, observe)
    if observe is not unobserved:
        return looked_at, weights
    *batch, length, width = query.shape
    if key.shape[:-2] != query.shape[:-2]:
        key, value = (jnp.repeat(x, batch[-1] // x.shape[-3], axis=-3) for x in (key, value))
    mask = jnp.ones((1, 1), bool) if mask is None else mask
    if mask.ndim > 2:
        mask = jnp.broadcast_to(mask, (*batch, *mask.shape[-2:])).reshape(-1, *mask.shape[-2:])
    # One axis for batch and heads: XLA's batched product is slower with two.
    flat = (x.reshape(-1, *x.shape[-2:]) for x in (query / math.sqrt(width), key, value))
    return attention_products(*flat, mask).reshape(*batch, length, value.shape[-1]), weights


def fused_attention(
    query: Float[Array, "*batch T K"],
    key: Float[Array, "*keys S K"],
    value: Float[Array, "*keys S K"],
    mask: Bool[Array, "..."] | None = None,
    *,
    causal: bool = False,
    window: int = 0,
    observe: Observe = unobserved,
) -> tuple[Float[Array, "*batch T K"], Float[Array, "*batch T S"]]:
    """The same by `jax.nn.dot_product_attention`: on a GPU one kernel of cuDNN's, which never has
    all T S weights in memory (Dao et al. 2022); elsewhere XLA's products.

    If the mask is just that of causal attention and of a window (0: none), `causal` and `window`
    say so, and the kernel reads no mask. `weights` and what is observed are the definition's, of
    operands that are rounded.
    """
    looked_at, weights = _definition(query, key, value, mask, observe)
    if observe is not unobserved:
        return looked_at, weights
    *batch, length, width = query.shape
    on_gpu, sees = jax.default_backend() == "gpu", None
    settings: dict[str, Any] = {"implementation": "cudnn" if on_gpu else "xla"}
    if causal:
        settings |= {"is_causal": True, "local_window_size": (window - 1, 0) if window else None}
    elif mask is not None:
        mask = jnp.broadcast_to(mask, (*mask.shape[:-2], length, key.shape[-2]))
        sees = mask.any(-1, keepdims=True)  # theirs gives the mean of all values for a row of False
        mask = mask.reshape((1,) * (max(len(batch), 1) + 2 - mask.ndim) + mask.shape)
        mask = jnp.broadcast_to(mask, (*batch[:-1], *mask.shape[-3:]))  # heads may share one
        settings["mask"] = mask.reshape(-1, *mask.shape[-3:])

    def by_place(x):  # (..., H, T, K) to (B, T, H, K)
        x = x.reshape(-1, x.shape[-3] if batch else 1, *x.shape[-2:])
        return jnp.swapaxes(x, 1, 2).astype(jnp.bfloat16)

    output = jax.nn.dot_product_attention(*map(by_place, (query, key, value)), **settings)
    output = jnp.swapaxes(output, 1, 2).astype(query.dtype).reshape(*batch, length, width)
    return output if sees is None else jnp.where(sees, output, 0), weights


def by_rows(attention: Callable, rows: int) -> Callable:
    """Causal `attention` of so many queries at a time, each with only the keys that it may see.

    Queries come in at most `SPANS` spans, whose keys end where they end and begin where a window
    W does; so nearly half of all products are left out, with a window all but about W / T +
    1 / SPANS. Within a span parts of `rows` queries follow each other, and the backward pass
    computes their weights again (Dao et al. 2022, section 3.1): memory grows with rows T, not T^2.

    `causal` and `window` say so if the mask is just theirs; where it is another, or somebody
    observes, this is `attention` itself. A `bias` is of all scores, (..., T, S).
    """

    def call(
        query: Float[Array, "*batch T K"],
        key: Float[Array, "*keys S K"],
        value: Float[Array, "*keys S Kv"],
        mask: Bool[Array, "..."] | None = None,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        bias: Float[Array, "..."] | None = None,
        causal: bool = False,
        window: int = 0,
        observe: Observe = unobserved,
    ) -> tuple[Float[Array, "*batch T Kv"], Float[Array, "*batch T S"]]:
        scaled = taking(attention, scale=scale, softcap=softcap)
        output, weights = taking(scaled, bias=bias, observe=observe)(query, key, value, mask)
        if not causal or observe is not unobserved:
            return output, weights
        length, outputs = query.shape[-2], []
        size = rows * math.ceil(length / (SPANS * rows))
        for first in range(0, length, size):
            span = slice(first, min(first + size, length))
            seen = slice(max(first - window + 1, 0) if window else 0, span.stop)
            keys = key[..., seen, :], value[..., seen, :]
            biases = None if bias is None else bias[..., span, seen]
            start = first - seen.start
            outputs.append(_span(scaled, rows, window, start, query[..., span, :], *keys, biases))
        return jnp.concatenate(outputs, axis=-2), weights

    return call


def _span(attention, rows, window, start, query, key, value, bias):
    """The output of queries at the keys' places start, start + 1, ..., `rows` at a time."""
    length = query.shape[-2]
    rows = min(rows, length)

    def parts(x):  # (..., T, N) to (P, ..., rows, N), filled up with zeros
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, -length % rows), (0, 0)])
        return jnp.moveaxis(x.reshape(*x.shape[:-2], -1, rows, x.shape[-1]), -3, 0)

    @jax.checkpoint
    def output(part):
        first, query, bias = part
        ahead = first + jnp.arange(rows)[:, None] - jnp.arange(key.shape[-2])
        mask = (ahead >= 0) & (ahead < (window or key.shape[-2]))
        return taking(attention, bias=bias)(query, key, value, mask)[0]

    places = start + jnp.arange(0, length, rows)
    outputs = jax.lax.map(output, (places, *jax.tree.map(parts, (query, bias))))
    outputs = jnp.moveaxis(outputs, 0, -3)
    return outputs.reshape(*outputs.shape[:-3], -1, outputs.shape[-1])[..., :length, :]


def _definition(query, key, value, mask, observe):
    """The definition's output and weights, of operands that are rounded to bfloat16."""
    rounded = (x.astype(jnp.bfloat16).astype(x.dtype) for x in (query, key, value))
    return scaled_dot_product_attention(*rounded, mask=mask, observe=observe)
