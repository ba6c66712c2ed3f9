"""Products whose operands are bfloat16 while their sums are float32, and their backward passes.

The type of a matrix decides: with float32 `matmul` is a plain `@`; a bfloat16 one makes the other
operand bfloat16 too. The backward passes are written out because XLA's CPU compiler has a fast
bfloat16 product only for a left operand that is not transposed, and the gradient of x W with
respect to W is x^T g. So `jax.grad` and `jax.vjp` take these, `jax.jvp` does not.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

_product = partial(jnp.einsum, preferred_element_type=jnp.float32)


def matmul(x: Float[Array, "*batch I"], matrix: Float[Array, "I O"]) -> Float[Array, "*batch O"]:
    """x W in float32; where W is bfloat16, of x rounded to bfloat16."""
    if matrix.dtype != jnp.bfloat16:
        return x @ matrix
    return _mixed(x.reshape(-1, x.shape[-1]), matrix).reshape(*x.shape[:-1], matrix.shape[1])


@jax.custom_vjp
def _mixed(x: Float[Array, "N I"], matrix: Float[Array, "I O"]) -> Float[Array, "N O"]:
    return _mixed_forward(x, matrix)[0]


def _mixed_forward(x, matrix):
    x = x.astype(jnp.bfloat16)
    return _product("ni,io->no", x, matrix), (x, matrix)


def _mixed_backward(saved, gradient):
    """d x = g W^T,  d W = x^T g."""
    x, matrix = saved
    gradient = gradient.astype(jnp.bfloat16)
    by_matrix = _product("in,no->io", transposed(x), gradient)
    return _product("no,io->ni", gradient, matrix), by_matrix.astype(matrix.dtype)


_mixed.defvjp(_mixed_forward, _mixed_backward)


def transposed(x: Float[Array, "*batch N I"]) -> Float[Array, "*batch I N"]:
    """x^T; on a CPU moved in memory, by a permutation of four axes that XLA does not fold away."""
    if jax.default_backend() != "cpu":
        return jnp.swapaxes(x, -1, -2)
    *batch, rows, columns = x.shape
    a, b = (next(d for d in (16, 8, 4, 2, 1) if n % d == 0) for n in (rows, columns))
    blocks = x.reshape(*batch, rows // a, a, columns // b, b)
    return jnp.moveaxis(blocks, (-2, -1), (-4, -3)).reshape(*batch, columns, rows)


@jax.custom_vjp
def attention_products(
    query: Float[Array, "B T K"],
    key: Float[Array, "B S K"],
    value: Float[Array, "B S Kv"],
    mask: Bool[Array, "..."],
) -> Float[Array, "B T Kv"]:
    """softmax(Q K^T) V where `mask` (T, S) or (B, T, S) allows; 0 where it allows nothing."""
    return _forward(query, key, value, mask)[0]


def _forward(query, key, value, mask):
    """O = E V / z,  E = exp(S - max S) where the mask allows,  S = Q K^T,  z = the rows' sums.

    Dividing the output costs less than dividing the weights W = E / z. Where nothing is allowed
    E is 0, and so is O.
    """
    query, key, value = (x.astype(jnp.bfloat16) for x in (query, key, value))
    scores = jnp.where(mask, _product("btk,bsk->bts", query, key), -1e30)
    exponentials = jnp.where(mask, jnp.exp(scores - scores.max(-1, keepdims=True)), 0)
    scale = 1 / jnp.maximum(exponentials.sum(-1, keepdims=True), 1e-30)
    exponentials = exponentials.astype(jnp.bfloat16)
    output = scale * _product("bts,bsv->btv", exponentials, value)
    return output, (query, key, value, exponentials, scale, output)


def _backward(saved, gradient):
    """With dO the gradient of O, dW = dO V^T and dS = W * (dW - rowsum(dO * O)):

    dV = W^T dO,  dQ = dS K,  dK = dS^T Q.
    """
    query, key, value, exponentials, scale, output = saved
    by_row = (gradient * output).sum(-1, keepdims=True)
    scaled = (scale * gradient).astype(jnp.bfloat16)
    by_weights = _product("btv,bsv->bts", scaled, value)
    by_scores = (exponentials * (by_weights - scale * by_row)).astype(jnp.bfloat16)
    return (
        _product("bts,bsk->btk", by_scores, key),
        _product("bst,btk->bsk", transposed(by_scores), query),
        _product("bst,btv->bsv", transposed(exponentials), scaled),
        None,
    )


attention_products.defvjp(_forward, _backward)
