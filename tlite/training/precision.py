"""Which numbers are bfloat16: the matrices of linear layers, and so the operands of products."""

import dataclasses
import time
from typing import Literal

import jax
import jax.numpy as jnp

from tlite.errors import UserError
from tlite.functional import causal_mask, fused_attention, matmul, mixed_attention
from tlite.models import Attention
from tlite.models.config import MIXED_FROM_LENGTH

Precision = Literal["float32", "mixed", "auto"]


def choose_precision(asked: Precision) -> tuple[Precision, str]:
    """What a run uses, and why: "auto" is "mixed" where that works and is faster than float32.

    Not every machine multiplies bfloat16 fast (it takes AMX or AVX512-BF16 on a CPU), and some
    versions of XLA refuse such products inside a loop. So both are tried on a product with its
    gradients, in a loop, before the run begins.

    Raises:
        UserError: "mixed" is asked for, and XLA refuses it.
    """
    if asked == "float32":
        return "float32", "float32"
    try:
        mixed = _seconds(jnp.bfloat16)
        _try_attention()
    except Exception as error:  # XLA's own, of no documented type
        refused = f"XLA refuses bfloat16 products here ({type(error).__name__})"
        if asked == "mixed":
            raise UserError(f"mixed precision can't be: {refused}; take float32 or auto") from error
        return "float32", f"float32, as {refused}"
    plain = _seconds(jnp.float32)
    if mixed > plain:
        said = f"bfloat16 products are {mixed / plain:.1f} x slower here"
        return (
            ("mixed", f"mixed, as asked, but {said}")
            if asked == "mixed"
            else ("float32", f"float32, as {said}")
        )
    return "mixed", f"mixed precision (bfloat16 products are {plain / mixed:.1f} x faster here)"


def choose_products(model, precision: Precision):
    """A model's config whose "auto" products are decided: attention's, and a tied head's."""
    head = getattr(model, "head", None)
    if getattr(head, "product", None) == "auto":
        product = "mixed" if precision == "mixed" else "exact"
        model = dataclasses.replace(model, head=dataclasses.replace(head, product=product))
    part = getattr(model, "attention", None)
    if not isinstance(part, Attention) or part.function != "auto":
        return model
    fast = precision == "mixed" and model.context >= MIXED_FROM_LENGTH
    fast = fast and not part.asked(model)
    name = "exact" if not fast else "fused" if _has_fused(model) else "mixed"
    return dataclasses.replace(model, attention=dataclasses.replace(part, function=name))


def _has_fused(model) -> bool:
    """Whether this is a GPU whose cuDNN has a kernel for heads of this width."""
    if jax.default_backend() != "gpu":
        return False
    try:
        _try_attention(fused_attention, model.width_of_heads)
    except Exception:  # cuDNN's own, of no documented type
        return False
    return True


def _try_attention(attention=mixed_attention, width: int = 16) -> None:
    """Products of a batch of matrices, as attention has them: raises where XLA refuses them."""
    mask = causal_mask(128)

    def body(_, x):
        return x - jax.grad(lambda x: attention(x, x, x, mask)[0].sum())(x)

    jax.block_until_ready(
        jax.jit(lambda x: jax.lax.fori_loop(0, 2, body, x))(jnp.ones((2, 2, 128, width)))
    )


def _seconds(dtype) -> float:
    """The least time of a few products with their gradients, inside a loop."""
    x = jnp.ones((1024, 256))
    matrix = jnp.ones((256, 1024), dtype)

    @jax.jit
    def run(x, matrix):
        def body(_, carry):
            gradients = jax.grad(lambda x, m: matmul(x, m).sum(), argnums=(0, 1))(*carry)
            return jax.tree.map(lambda a, g: (a + 1e-9 * g).astype(a.dtype), carry, gradients)

        return jax.lax.fori_loop(0, 10, body, (x, matrix))

    jax.block_until_ready(run(x, matrix))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        jax.block_until_ready(run(x, matrix))
        times.append(time.perf_counter() - began)
    return min(times)


def with_precision(model, precision: Precision):
    """The model, or its arrays by name, with the kernels of linear layers in bfloat16 or float32.

    `functional.matmul` then computes with bfloat16 operands and sums in float32. Embeddings,
    norms, softmax and loss stay in float32, and so do the parameters that an optimizer updates:
    the cast is part of each step, and gradients are cast back.
    """
    dtype = jnp.bfloat16 if precision == "mixed" else jnp.float32

    def cast(path, leaf):
        names = [str(getattr(key, "name", getattr(key, "key", ""))) for key in path]
        is_kernel = any("kernel" in name.split(".") for name in names)
        return leaf.astype(dtype) if is_kernel else leaf

    return jax.tree_util.tree_map_with_path(cast, model)
