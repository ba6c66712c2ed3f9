"""Parameters of models: arrays by dotted name, in Flax modules."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class ParamTree(nnx.Module):
    """A tree of arrays as a Flax module: a dictionary, or a tuple with named fields.

    Each array is an `nnx.Param`. A Flax module is a pytree: `jax.jit`, `jax.grad` and `jax.vmap`
    accept it, and functions read its fields by name.
    """

    def __init__(self, tree):
        set_params(self, tree if isinstance(tree, Mapping) else tree._asdict())


def as_params(tree) -> ParamTree | nnx.Param | None:
    """Return a tree as a module, an array as an `nnx.Param`, and None as it is."""
    if tree is None:
        return None
    if isinstance(tree, Mapping) or hasattr(tree, "_asdict"):
        return ParamTree(tree)
    return nnx.Param(jnp.asarray(tree))


def set_params(module: nnx.Module, trees: Mapping) -> None:
    """Set trees of arrays as fields of a module."""
    for name, tree in trees.items():
        setattr(module, name, as_params(tree))


def parameter_names(model) -> list[str]:
    """Return `blocks.0.attention.query.kernel`, ...: names in the order of the tree's leaves."""
    return [name_of_path(path) for path, _ in jax.tree_util.tree_flatten_with_path(model)[0]]


def name_of_path(path) -> str:
    """Return the dotted name of a leaf of a model, or of a dictionary of arrays by name."""
    keys = re.sub(r"\['?([\w.]+)'?\]", r".\1", jax.tree_util.keystr(path))
    return keys.removesuffix(".value").lstrip(".")


IN_BLOCK = re.compile(r"((?:[^.]+\.)?blocks\.)(?:(\d+)\.)?(.+)")  # prefix, index or None, rest


def is_stacked(name: str) -> bool:
    """True for an array (L, ...) of all blocks, as a model with `Loop(scan=True)` has them."""
    match = IN_BLOCK.fullmatch(name)
    return match is not None and not match[2]


def stack_blocks(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays by name with `blocks.0.x`, `blocks.1.x`, ... stacked to `blocks.x` (L, ...)."""
    stacked, by_block = {}, {}
    for name, array in arrays.items():
        match = IN_BLOCK.fullmatch(name)
        if match and match[2]:
            by_block.setdefault(match[1] + match[3], {})[int(match[2])] = array
        else:
            stacked[name] = array
    for name, blocks in by_block.items():
        stacked[name] = jnp.stack([blocks[index] for index in sorted(blocks)])
    return stacked


def unstack_blocks(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays by name with `blocks.x` (L, ...) as `blocks.0.x`, `blocks.1.x`, ..."""
    unstacked = {}
    for name, array in arrays.items():
        match = IN_BLOCK.fullmatch(name)
        if match and not match[2]:
            blocks = range(array.shape[0])
            unstacked |= {f"{match[1]}{i}.{match[3]}": array[i] for i in blocks}
        else:
            unstacked[name] = array
    return unstacked


def shape_in_block(name: str, array) -> tuple[int, ...]:
    """Return the shape of an array, or of one block's where blocks are stacked.

    Matrices, weight decay and sharding are rules of this shape.
    """
    return np.shape(array)[1 if is_stacked(name) else 0 :]


NOT_MATRICES = "bias", "scale", "taps", "table"


def is_matrix(name: str, array) -> bool:
    """True for an array that vectors are multiplied by: the one rule for what depends on it.

    It has at least two axes, not counting that of stacked blocks, and is called `kernel`, or lies
    in a block, in a user's layer too, under a name whose last word is not one of NOT_MATRICES:
    numbers per column, or rows looked up.
    """
    last = name.rpartition(".")[2]
    is_in_block = "blocks." in name and last not in NOT_MATRICES
    return len(shape_in_block(name, array)) > 1 and (last == "kernel" or is_in_block)


def named_arrays(model) -> dict[str, Any]:
    """Return a model's arrays by name."""
    return dict(zip(parameter_names(model), jax.tree.leaves(model), strict=True))


def from_named_arrays(model) -> Callable[[dict[str, Any]], Any]:
    """Return the inverse of `named_arrays` for models like this one (shapes suffice)."""
    names, structure = parameter_names(model), jax.tree.structure(model)
    return lambda arrays: jax.tree.unflatten(structure, [arrays[name] for name in names])


def count_parameters(model: nnx.Module) -> int:
    """Return the number of trained numbers."""
    return sum(leaf.size for leaf in jax.tree.leaves(model))
