"""Attention with bfloat16 operands as one GPU kernel (cuDNN); XLA's products elsewhere.

Definition: `scaled_dot_product_attention`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from tlite.functional.kernels.mixed_attention import rounded_reference
from tlite.functional.layers import Tap, no_tap


def fused_attention(
    query: Float[Array, "*batch T K"],
    key: Float[Array, "*keys S K"],
    value: Float[Array, "*keys S K"],
    mask: Bool[Array, "..."] | None = None,
    *,
    is_causal: bool = False,
    window: int = 0,
    tap: Tap = no_tap,
) -> tuple[Float[Array, "*batch T K"], Float[Array, "*batch T S"]]:
    """softmax(Q K^T / sqrt(K)) V by `jax.nn.dot_product_attention`, with bfloat16 operands.

    On a GPU the T S weights are never in memory (FlashAttention, Dao et al. 2022). Under `jit`,
    unused weights are eliminated. With `tap` the definition runs instead, on rounded inputs.

    Args:
        is_causal: `mask` is exactly the causal mask within `window`; the kernel does not read it.
        window: number of keys that a causal query attends to, itself included; 0: all.
    """
    output, weights = rounded_reference(query, key, value, mask, tap)
    if tap is not no_tap:
        return output, weights
    *batch, length, head_dim = query.shape
    implementation = "cudnn" if jax.default_backend() == "gpu" else "xla"
    kwargs: dict[str, Any] = {"implementation": implementation}
    has_keys = None
    if is_causal:
        kwargs |= {"is_causal": True, "local_window_size": (window - 1, 0) if window else None}
    elif mask is not None:
        mask = jnp.broadcast_to(mask, (*mask.shape[:-2], length, key.shape[-2]))
        has_keys = mask.any(-1, keepdims=True)  # the kernel averages all values for a row of False
        mask = mask.reshape((1,) * (max(len(batch), 1) + 2 - mask.ndim) + mask.shape)
        mask = jnp.broadcast_to(mask, (*batch[:-1], *mask.shape[-3:]))  # heads may share one
        kwargs["mask"] = mask.reshape(-1, *mask.shape[-3:])

    def heads_after_length(x):  # (..., H, T, K) to (B, T, H, K)
        x = x.reshape(-1, x.shape[-3] if batch else 1, *x.shape[-2:])
        return jnp.swapaxes(x, 1, 2).astype(jnp.bfloat16)

    inputs = (heads_after_length(x) for x in (query, key, value))
    output = jnp.swapaxes(jax.nn.dot_product_attention(*inputs, **kwargs), 1, 2)
    output = output.astype(query.dtype).reshape(*batch, length, head_dim)
    return output if has_keys is None else jnp.where(has_keys, output, 0), weights
