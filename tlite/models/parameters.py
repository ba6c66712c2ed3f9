"""What a model holds: arrays by name, as one Flax module, which prints itself."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class ParamTree(nnx.Module):
    """A tree of arrays that a part has drawn: a dictionary, or a tuple with named fields.

    Its fields are those of the tree, each array an `nnx.Param`. A `flax.nnx.Module` is a pytree:
    `jax.jit`, `jax.grad` and `jax.vmap` take it as it is, and functions read its fields by name.
    """

    def __init__(self, tree):
        set_params(self, tree if isinstance(tree, Mapping) else tree._asdict())


def as_params(tree) -> ParamTree | nnx.Param | None:
    """A drawn tree, or an array of it, as a model holds it; None as it is."""
    if tree is None:
        return None
    if isinstance(tree, Mapping) or hasattr(tree, "_asdict"):
        return ParamTree(tree)
    return nnx.Param(jnp.asarray(tree))


def set_params(module: nnx.Module, trees: Mapping) -> None:
    """Give a module what was drawn, as fields of these names."""
    for name, tree in trees.items():
        setattr(module, name, as_params(tree))


def parameter_names(model) -> list[str]:
    """`blocks.0.attention.query.kernel`, ...: the arrays in the order of the tree's leaves."""
    return [name_of_path(path) for path, _ in jax.tree_util.tree_flatten_with_path(model)[0]]


def name_of_path(path) -> str:
    """The dotted name of a leaf of a model, or of a dictionary of arrays by name."""
    keys = re.sub(r"\['?([\w.]+)'?\]", r".\1", jax.tree_util.keystr(path))
    return keys.removesuffix(".value").lstrip(".")


NOT_MATRICES = "bias", "scale", "taps", "table"


def is_matrix(name: str, array) -> bool:
    """True for an array that vectors are multiplied by: the one rule for what depends on it.

    It has at least two axes and is called `kernel`, or lies in a block, a user's component among
    them, under a name whose last word is not one of NOT_MATRICES: numbers for each column, or rows
    that are looked up.
    """
    last = name.rpartition(".")[2]
    inside = "blocks." in name and last not in NOT_MATRICES
    return np.ndim(array) > 1 and (last == "kernel" or inside)


def named_arrays(model) -> dict[str, Any]:
    """A model's arrays by name."""
    return dict(zip(parameter_names(model), jax.tree.leaves(model), strict=True))


def from_named_arrays(model) -> Callable[[dict[str, Any]], Any]:
    """The inverse of `named_arrays` for models like this one (shapes are enough)."""
    names, structure = parameter_names(model), jax.tree.structure(model)
    return lambda arrays: jax.tree.unflatten(structure, [arrays[name] for name in names])


def count_parameters(model: nnx.Module) -> int:
    """How many numbers are trained."""
    return sum(leaf.size for leaf in jax.tree.leaves(model))
