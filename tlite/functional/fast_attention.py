"""Attention with bfloat16 operands, or as one kernel of a GPU's.

A model takes them where its config says so (`attention="mixed"`, `"fused"`).
They compute what `scaled_dot_product_attention` defines, up to rounding, and are tested against it.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from tlite.functional.attention import scaled_dot_product_attention
from tlite.functional.layers import Observe, unobserved
from tlite.functional.mixed import attention_products


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


def _definition(query, key, value, mask, observe):
    """The definition's output and weights, of operands that are rounded to bfloat16."""
    rounded = (x.astype(jnp.bfloat16).astype(x.dtype) for x in (query, key, value))
    return scaled_dot_product_attention(*rounded, mask=mask, observe=observe)
