"""Attention with bfloat16 operands: its backward pass written out, or as one kernel of a GPU's.

A model takes them where its config says so (`attention="mixed"`, `attention="fused"`). They compute
what `scaled_dot_product_attention` defines, up to rounding, and are tested against it.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from tlite.functional.attention import scaled_dot_product_attention
from tlite.functional.matmul import transposed
from tlite.functional.observe import Observe, unobserved


def mixed_attention(
    query: Float[Array, "*batch T K"],
    key: Float[Array, "*batch S K"],
    value: Float[Array, "*batch S Kv"],
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
    mask = jnp.ones((1, 1), bool) if mask is None else mask
    if mask.ndim > 2:
        mask = jnp.broadcast_to(mask, (*batch, *mask.shape[-2:])).reshape(-1, *mask.shape[-2:])
    # One axis for batch and heads: XLA's batched product is slower with two.
    flat = (x.reshape(-1, *x.shape[-2:]) for x in (query / math.sqrt(width), key, value))
    return _attention(*flat, mask).reshape(*batch, length, value.shape[-1]), weights


def fused_attention(
    query: Float[Array, "*batch T K"],
    key: Float[Array, "*batch S K"],
    value: Float[Array, "*batch S K"],
    mask: Bool[Array, "..."] | None = None,
    *,
    observe: Observe = unobserved,
) -> tuple[Float[Array, "*batch T K"], Float[Array, "*batch T S"]]:
    """The same by `jax.nn.dot_product_attention`: on a GPU one kernel of cuDNN's, which never has
    all T S weights in memory (Dao et al. 2022); elsewhere XLA's products.

    `weights` and what is observed are the definition's, of operands that are rounded.
    """
    looked_at, weights = _definition(query, key, value, mask, observe)
    if observe is not unobserved:
        return looked_at, weights
    *batch, length, width = query.shape
    heads = batch[-1] if batch else 1

    def by_place(x):  # (..., H, T, K) to (B, T, H, K)
        return jnp.swapaxes(x.reshape(-1, heads, *x.shape[-2:]), 1, 2).astype(jnp.bfloat16)

    seen = None
    if mask is not None:
        whole = jnp.broadcast_to(mask, (*batch, *mask.shape[-2:]))
        mask = whole.reshape(-1, heads, *mask.shape[-2:]) if mask.ndim > 2 else mask[None, None]
        mask = jnp.broadcast_to(mask, (*mask.shape[:2], length, key.shape[-2]))
        seen = mask.any(-1, keepdims=True)  # theirs gives the mean of all values for a row of False
    kernel = "cudnn" if jax.default_backend() == "gpu" else "xla"
    places = map(by_place, (query, key, value))
    output = jax.nn.dot_product_attention(*places, mask=mask, implementation=kernel)
    output = jnp.swapaxes(output, 1, 2).astype(query.dtype)
    output = output if seen is None else jnp.where(seen, output, 0)
    return output.reshape(*batch, length, width), weights


def _definition(query, key, value, mask, observe):
    """The definition's output and weights, of operands that are rounded to bfloat16."""
    rounded = (x.astype(jnp.bfloat16).astype(x.dtype) for x in (query, key, value))
    return scaled_dot_product_attention(*rounded, mask, observe=observe)


@jax.custom_vjp
def _attention(query, key, value, mask):
    return _forward(query, key, value, mask)[0]


def _forward(query, key, value, mask):
    """O = E V / z,  E = exp(S - max S) where the mask allows,  S = Q K^T,  z = the rows' sums.

    Dividing the output costs less than dividing the weights W = E / z. Where nothing is allowed
    E is 0, and so is O.
    """
    query, key, value = (x.astype(jnp.bfloat16) for x in (query, key, value))
    scores = jnp.where(mask, _dot(query, key, over=-1), -1e30)
    exponentials = jnp.where(mask, jnp.exp(scores - scores.max(-1, keepdims=True)), 0)
    scale = 1 / jnp.maximum(exponentials.sum(-1, keepdims=True), 1e-30)
    exponentials = exponentials.astype(jnp.bfloat16)
    output = scale * _dot(exponentials, value, over=-2)
    return output, (query, key, value, exponentials, scale, output)


def _backward(saved, gradient):
    """With dO the gradient of O, dW = dO V^T and dS = W * (dW - rowsum(dO * O)):

    dV = W^T dO,  dQ = dS K,  dK = dS^T Q.
    """
    query, key, value, exponentials, scale, output = saved
    by_row = (gradient * output).sum(-1, keepdims=True)
    scaled = (scale * gradient).astype(jnp.bfloat16)
    by_weights = _dot(scaled, value, over=-1)
    by_scores = (exponentials * (by_weights - scale * by_row)).astype(jnp.bfloat16)
    return (
        _dot(by_scores, key, over=-2),
        _dot(transposed(by_scores), query, over=-2),
        _dot(transposed(exponentials), scaled, over=-2),
        None,
    )


_attention.defvjp(_forward, _backward)


def _dot(x: Float[Array, "B N I"], y: Float[Array, "B M J"], *, over: int) -> Array:
    """x times y or y^T for each element of the batch: the last axis of x with axis `over` of y."""
    contracted = ((2,), (y.ndim + over,))
    return jax.lax.dot_general(x, y, (contracted, ((0,), (0,))), preferred_element_type=jnp.float32)
