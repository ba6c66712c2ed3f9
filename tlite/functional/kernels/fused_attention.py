"""`scaled_dot_product_attention` with bfloat16 operands as one GPU kernel (cuDNN)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from tlite.functional.kernels.mixed_attention import rounded_attention
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

    On a GPU the T x S weights are never in memory (FlashAttention, Dao et al. 2022). The
    weights are computed by `rounded_attention`, under `jit` only if they are used; with `tap` the
    output is computed by it, too. If `is_causal`, `mask` must be exactly the causal mask within
    `window` keys (0: all).
    """
    reference, weights = rounded_attention(query, key, value, mask, tap)
    if tap is not no_tap:
        return reference, weights
    *batch, length, _ = query.shape
    mask = None if is_causal else mask
    if mask is not None:
        mask = jnp.broadcast_to(mask, (*mask.shape[:-2], length, key.shape[-2]))
        has_keys = mask.any(-1, keepdims=True)  # without keys the kernel averages all values
        mask = mask.reshape((1,) * (max(len(batch), 1) + 2 - mask.ndim) + mask.shape)
        mask = jnp.broadcast_to(mask, (*batch[:-1], *mask.shape[-3:]))  # heads may share one
        mask = mask.reshape(-1, *mask.shape[-3:])

    def to_kernel(x):  # (..., H, T, K) to (B, T, H, K)
        x = x.reshape(-1, x.shape[-3] if batch else 1, *x.shape[-2:])
        return jnp.swapaxes(x, 1, 2).astype(jnp.bfloat16)

    output = jax.nn.dot_product_attention(
        *map(to_kernel, (query, key, value)), mask=mask, is_causal=is_causal,
        local_window_size=(window - 1, 0) if is_causal and window else None,
        implementation="cudnn" if jax.default_backend() == "gpu" else "xla",
    )  # fmt: skip
    output = jnp.swapaxes(output, 1, 2).astype(query.dtype).reshape(reference.shape)
    return output if mask is None else jnp.where(has_keys, output, 0), weights
