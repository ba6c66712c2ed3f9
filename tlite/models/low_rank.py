"""Low-rank adaptation: W + (alpha / rank) A B for the matrices whose names match a pattern.

LoRA (Hu et al. 2022, "LoRA: Low-rank adaptation of large language models"). A and B are further
arrays beside a matrix `...kernel`, called `...lora_a` and `...lora_b`; the model computes with the
sum, so that it needs no layer of another kind, and a saved or exported model is an ordinary one
(`merge_low_rank`).
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Key

from tlite.config import Config
from tlite.models.init import draw_by_name
from tlite.models.parameters import is_matrix

A, B = "lora_a", "lora_b"


@dataclass(frozen=True)
class LowRank(Config, sizes="rank", positive="alpha"):
    """Low-rank updates of frozen matrices.

    >>> LowRank("*.query.* *.value.*", rank=4)  # all attention layers, as in the paper
    >>> LowRank("blocks.*", rank=16, alpha=32.0)  # all matrices of the blocks
    """

    pattern: str = "*.attention.*"
    """Dotted names of the matrices, with * and ?; several patterns are separated by spaces."""
    rank: int = 8
    """Rank of the update."""
    alpha: float = 16.0
    """The update is alpha / rank times A B."""

    def matches(self, name: str, array: Any) -> bool:
        """True if the array is a matrix with a low-rank update."""
        is_base = is_matrix(name, array) and not is_low_rank_update(name)
        return is_base and any(fnmatch.fnmatchcase(name, p) for p in self.pattern.split())


def is_low_rank_update(name: str) -> bool:
    """True for the names of A and B."""
    return name.endswith((f".{A}", f".{B}"))


def init_low_rank(
    low_rank: LowRank, arrays: Mapping[str, Array], key: Key[Array, ""]
) -> dict[str, Array]:
    """Return A (I, rank), drawn from N(0, 1 / I), and B (rank, O), 0, of each matrix (I, O).

    Raises:
        ValueError: a pattern matches no matrix, or the rank is above a side of a matrix.
    """
    matrices = [name for name, array in arrays.items() if is_matrix(name, array)]
    for pattern in low_rank.pattern.split() or [""]:
        if not fnmatch.filter(matrices, pattern):
            known = ", ".join(matrices[:8])
            raise ValueError(f"low_rank: {pattern!r} matches no matrix among {known}, ...")
    added = {}
    for name, array in arrays.items():
        if low_rank.matches(name, array):
            *stack, inputs, outputs = array.shape
            if low_rank.rank > (side := min(inputs, outputs)):
                raise ValueError(
                    f"low_rank: rank {low_rank.rank} is above {side}, the smaller side of {name}"
                )
            prefix = low_rank_prefix(name)
            normal = jax.nn.initializers.normal(inputs**-0.5)
            shape = jax.ShapeDtypeStruct((*stack, inputs, low_rank.rank), array.dtype)
            added[prefix + A] = draw_by_name(normal, prefix + A, shape, key)
            added[prefix + B] = jnp.zeros((*stack, low_rank.rank, outputs), array.dtype)
    return added


def low_rank_prefix(name: str) -> str:
    """Return the name of a matrix without `kernel`, to which the names of A and B are appended."""
    stem = name.removesuffix("kernel")
    return stem if stem.endswith(".") else f"{name}."


def merge_low_rank(low_rank: LowRank | None, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of the model: W + (alpha / rank) A B in place of W, A and B."""
    if low_rank is None:
        return dict(arrays)
    merged, scale = {}, low_rank.alpha / low_rank.rank
    for name, array in arrays.items():
        if is_low_rank_update(name):
            continue
        prefix = low_rank_prefix(name)
        if prefix + A in arrays:
            array = array + scale * _matmul(arrays[prefix + A], arrays[prefix + B])
        merged[name] = array
    return merged


def _matmul(a: ArrayLike, b: ArrayLike) -> ArrayLike:
    """Return a b in float32: a GPU's default would round float32 operands to TF32."""
    if isinstance(a, np.ndarray):  # arrays on the host stay there
        return a @ b
    return jnp.matmul(a, b, precision="highest")
