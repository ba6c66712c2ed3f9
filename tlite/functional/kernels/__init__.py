"""Fast versions of attention and of matrix products, each equal to its definition up to rounding.

The config selects attention (`Attention(function="mixed")`, "fused"; `query_chunk_size`). All
support `jax.grad` and `jax.vjp`; `jax.jvp` works for `fused_attention` and float32 `matmul` only.
`tlite.functional` exports the kernels; `attention` and `layers` import `kernels.matmul`, so this
file imports nothing.
"""
