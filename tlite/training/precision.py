"""Which numbers are bfloat16: the matrices of linear layers, and so the operands of products."""

from typing import Literal

import jax
import jax.numpy as jnp

Precision = Literal["float32", "mixed"]


def with_precision(model, precision: Precision):
    """The model with the kernels of its linear layers in bfloat16 ("mixed") or float32.

    `functional.product` then computes with bfloat16 operands and sums in float32. Embeddings,
    norms, softmax and loss stay in float32, and so do the parameters that an optimizer updates:
    the cast is part of each step, and gradients are cast back.
    """
    dtype = jnp.bfloat16 if precision == "mixed" else jnp.float32

    def cast(path, leaf):
        is_kernel = any(getattr(key, "name", None) == "kernel" for key in path)
        return leaf.astype(dtype) if is_kernel else leaf

    return jax.tree_util.tree_map_with_path(cast, model)
