"""Products whose operands are bfloat16 while their sums are float32, and their backward passes.

The type of a matrix decides: with float32 `matmul` is a plain `@`; a bfloat16 one makes the other
operand bfloat16 too. The backward passes are written out because XLA's CPU compiler has a fast
bfloat16 product only for a left operand that is not transposed, and the gradient of x W with
respect to W is x^T g. So `jax.grad` and `jax.vjp` take these, `jax.jvp` does not.
"""

from collections.abc import Callable
from functools import wraps

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def float32_products(function: Callable) -> Callable:
    """`function` with products of float32 arrays in full float32; a GPU's default is TF32.

    It changes the program that is traced; on a CPU neither numbers nor time.
    """

    @wraps(function)
    def call(*args, **kwargs):
        with jax.default_matmul_precision("float32"):
            return function(*args, **kwargs)

    return call


def product(form: str, x: Array, y: Array) -> Array:
    """The einsum of x and y, summed in float32 at least."""
    sums = jnp.promote_types(jnp.result_type(x, y), jnp.float32)
    return jnp.einsum(form, x, y, preferred_element_type=sums)


def matmul(x: Float[Array, "*batch I"], matrix: Float[Array, "I O"]) -> Float[Array, "*batch O"]:
    """x W in float32; where W is bfloat16, of x rounded to bfloat16."""
    if matrix.dtype != jnp.bfloat16:
        return x @ matrix
    return _mixed(x.reshape(-1, x.shape[-1]), matrix).reshape(*x.shape[:-1], matrix.shape[1])


def _mixed_forward(x: Float[Array, "N I"], matrix: Float[Array, "I O"]):
    x = x.astype(jnp.bfloat16)
    return product("ni,io->no", x, matrix), (x, matrix)


def _mixed_backward(saved, gradient):
    """d x = g W^T,  d W = x^T g."""
    x, matrix = saved
    gradient = gradient.astype(jnp.bfloat16)
    by_matrix = product("in,no->io", transposed(x), gradient)
    return product("no,io->ni", gradient, matrix), by_matrix.astype(matrix.dtype)


_mixed = jax.custom_vjp(lambda x, matrix: _mixed_forward(x, matrix)[0])
_mixed.defvjp(_mixed_forward, _mixed_backward)


def transposed(x: Float[Array, "*batch N I"]) -> Float[Array, "*batch I N"]:
    """x^T; on a CPU moved in memory, by a permutation of four axes that XLA does not fold away."""
    if jax.default_backend() != "cpu":
        return jnp.swapaxes(x, -1, -2)
    *batch, rows, columns = x.shape
    a, b = (next(d for d in (16, 8, 4, 2, 1) if n % d == 0) for n in (rows, columns))
    blocks = x.reshape(*batch, rows // a, a, columns // b, b)
    return jnp.moveaxis(blocks, (-2, -1), (-4, -3)).reshape(*batch, columns, rows)
