"""Matrix products whose operands may be bfloat16 while their sums are float32.

The type of the operands decides: with float32 these are plain `@`; a bfloat16 matrix makes the
other operand bfloat16 too. The backward passes are written out because XLA's CPU compiler has a
fast bfloat16 product only for a left operand that is not transposed, and the gradient of x W with
respect to W is x^T g.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def matmul(x: Float[Array, "*batch I"], matrix: Float[Array, "I O"]) -> Float[Array, "*batch O"]:
    """x W, in float32 whatever the operands."""
    if matrix.dtype != jnp.bfloat16:
        return x @ matrix
    rows = x.reshape(-1, x.shape[-1])
    return _mixed(rows, matrix).reshape(*x.shape[:-1], matrix.shape[1])


@jax.custom_vjp
def _mixed(x: Float[Array, "N I"], matrix: Float[Array, "I O"]) -> Float[Array, "N O"]:
    return _dot(x, matrix)


def _mixed_forward(x, matrix):
    x = x.astype(jnp.bfloat16)
    return _dot(x, matrix), (x, matrix)


def _mixed_backward(saved, gradient):
    """d x = g W^T,  d W = x^T g."""
    x, matrix = saved
    gradient = gradient.astype(jnp.bfloat16)
    by_x = jax.lax.dot_general(
        gradient, matrix, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
    return by_x, _dot(transposed(x), gradient).astype(matrix.dtype)


_mixed.defvjp(_mixed_forward, _mixed_backward)


def _dot(x: Float[Array, "N I"], y: Float[Array, "I O"]) -> Float[Array, "N O"]:
    return jax.lax.dot(
        x.astype(jnp.bfloat16), y.astype(jnp.bfloat16), preferred_element_type=jnp.float32
    )


def transposed(x: Float[Array, "*batch N I"]) -> Float[Array, "*batch I N"]:
    """x^T, moved in memory: as a permutation of four axes the compiler does not fold it away."""
    *batch, rows, columns = x.shape
    a, b = (next(d for d in (16, 8, 4, 2, 1) if n % d == 0) for n in (rows, columns))
    blocks = x.reshape(*batch, rows // a, a, columns // b, b)
    axes = tuple(range(len(batch)))
    first = len(batch)
    permuted = blocks.transpose(*axes, first + 2, first + 3, first, first + 1)
    return permuted.reshape(*batch, columns, rows)
