"""Matrix products that may have bfloat16 operands, with float32 sums.

The backward pass with bfloat16 operands is written out: XLA's CPU compiler has a fast bfloat16
product only for a left operand that is not transposed, and the gradient of x W for W is x^T g.
"""

from collections.abc import Callable
from functools import wraps

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def float32_products(function: Callable) -> Callable:
    """Wrap `function`: a GPU computes float32 products in full float32, not in TF32."""

    @wraps(function)
    def call(*args, **kwargs):
        with jax.default_matmul_precision("float32"):
            return function(*args, **kwargs)

    return call


def product(subscripts: str, x: Array, y: Array) -> Array:
    """Return `jnp.einsum(subscripts, x, y)`, accumulated in float32 or wider."""
    dtype = jnp.promote_types(jnp.result_type(x, y), jnp.float32)
    return jnp.einsum(subscripts, x, y, preferred_element_type=dtype)


def matmul(x: Float[Array, "*batch I"], matrix: Float[Array, "I O"]) -> Float[Array, "*batch O"]:
    """Return x W; a bfloat16 W rounds x to bfloat16 as well, and the result is float32.

    With flat leading axes the gradient for W contracts one axis: on a CPU much faster than two.
    """
    flat = x.reshape(-1, x.shape[-1])
    y = _mixed_matmul(flat, matrix) if matrix.dtype == jnp.bfloat16 else flat @ matrix
    return y.reshape(*x.shape[:-1], matrix.shape[1])


def _mixed_forward(x: Float[Array, "N I"], matrix: Float[Array, "I O"]):
    x = x.astype(jnp.bfloat16)
    return product("ni,io->no", x, matrix), (x, matrix)


def _mixed_backward(residuals, d_output: Float[Array, "N O"]):
    """dx = g W^T,  dW = x^T g."""
    (x, matrix), d_output = residuals, d_output.astype(jnp.bfloat16)
    d_matrix = product("in,no->io", transpose(x), d_output)
    return product("no,io->ni", d_output, matrix), d_matrix.astype(matrix.dtype)


_mixed_matmul = jax.custom_vjp(lambda x, matrix: _mixed_forward(x, matrix)[0])
_mixed_matmul.defvjp(_mixed_forward, _mixed_backward)


def transpose(x: Float[Array, "*batch N I"]) -> Float[Array, "*batch I N"]:
    """Return x^T; bfloat16 on a CPU by a permutation of four axes that XLA does not fold away."""
    if jax.default_backend() != "cpu" or x.dtype != jnp.bfloat16:
        return jnp.swapaxes(x, -1, -2)
    *batch, rows, columns = x.shape
    a, b = (next(d for d in (16, 8, 4, 2, 1) if n % d == 0) for n in (rows, columns))
    blocks = x.reshape(*batch, rows // a, a, columns // b, b)
    return jnp.moveaxis(blocks, (-2, -1), (-4, -3)).reshape(*batch, columns, rows)
