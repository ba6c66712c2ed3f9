"""`scaled_dot_product_attention` with bfloat16 operands and a float32 softmax."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from tlite.functional.attention import repeat_kv, scaled_dot_product_attention
from tlite.functional.kernels.matmul import product, transpose
from tlite.functional.layers import Tap, no_tap, widen


def mixed_attention(
    query: Float[Array, "*batch T K"],
    key: Float[Array, "*keys S K"],
    value: Float[Array, "*keys S Kv"],
    mask: Bool[Array, "..."] | None = None,
    *,
    tap: Tap = no_tap,
) -> tuple[Float[Array, "*batch T Kv"], Float[Array, "*batch T S"]]:
    """softmax(Q K^T / sqrt(K)) V: bfloat16 operands, softmax and sums in float32.

    The weights are computed by `rounded_attention`, under `jit` only if they are used. With `tap`
    the output is computed by it, too.
    """
    reference, weights = rounded_attention(query, key, value, mask, tap)
    if tap is not no_tap:
        return reference, weights
    mask = jnp.ones((1, 1), bool) if mask is None else mask
    if mask.ndim > 2:
        mask = jnp.broadcast_to(mask, (*query.shape[:-2], *mask.shape[-2:]))
        mask = mask.reshape(-1, *mask.shape[-2:])
    query = widen(query) / math.sqrt(query.shape[-1])
    output = _attention(*flatten_heads(query, widen(key), widen(value)), mask)
    return output.astype(value.dtype).reshape(reference.shape), weights


def rounded_attention(query, key, value, mask, tap):
    """Call `scaled_dot_product_attention` on inputs rounded to bfloat16."""
    query, key, value = (x.astype(jnp.bfloat16).astype(x.dtype) for x in (query, key, value))
    return scaled_dot_product_attention(query, key, value, mask, tap=tap)


def flatten_heads(query, key, value) -> tuple[Array, Array, Array]:
    """Reshape (..., H, T, K) to (N, T, K), keys repeated: XLA multiplies one batch axis faster."""
    key, value = repeat_kv(query, key, value)
    query, key, value = (x.reshape(-1, *x.shape[-2:]) for x in (query, key, value))
    return query, key, value


def _forward(query, key, value, mask: Bool[Array, "*N T S"]):
    """O = E V / z,  E = exp(S - max S) where the mask allows,  S = Q K^T,  z = row sums of E.

    Dividing the output costs less than dividing the weights W = E / z. A query whose mask is False
    for all keys has E = 0 and O = 0.
    """
    query, key, value = (x.astype(jnp.bfloat16) for x in (query, key, value))
    scores = jnp.where(mask, product("ntk,nsk->nts", query, key), -1e30)
    exponentials = jnp.where(mask, jnp.exp(scores - scores.max(-1, keepdims=True)), 0)
    inverse_sum = 1 / jnp.maximum(exponentials.sum(-1, keepdims=True), 1e-30)
    exponentials = exponentials.astype(jnp.bfloat16)
    output = inverse_sum * product("nts,nsv->ntv", exponentials, value)
    return output, (query, key, value, exponentials, inverse_sum, output)


def _backward(residuals, d_output):
    """dW = dO V^T,  dS = W * (dW - rowsum(dO * O)),  dQ = dS K,  dK = dS^T Q,  dV = W^T dO."""
    query, key, value, exponentials, inverse_sum, output = residuals
    output_dot = (d_output * output).sum(-1, keepdims=True)
    scaled_d_output = (inverse_sum * d_output).astype(jnp.bfloat16)
    d_weights = product("ntv,nsv->nts", scaled_d_output, value)
    d_scores = (exponentials * (d_weights - inverse_sum * output_dot)).astype(jnp.bfloat16)
    d_query = product("nts,nsk->ntk", d_scores, key)
    d_key = product("nst,ntk->nsk", transpose(d_scores), query)
    d_value = product("nst,ntv->nsv", transpose(exponentials), scaled_d_output)
    return d_query, d_key, d_value, None


_attention = jax.custom_vjp(lambda *inputs: _forward(*inputs)[0])
_attention.defvjp(_forward, _backward)
