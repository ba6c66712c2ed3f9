"""Fast attention and matrix products, one file each, equal to their definitions up to rounding.

`jax.grad` and `jax.vjp` work for all; `jax.jvp` for `fused_attention` and float32 `matmul` only.
This file imports nothing, as `attention` and `layers` import `kernels.matmul`.
"""
