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


def as_params(tree) -> ParamTree | nnx.Param | None:
    """Return a tree as a module, an array as an `nnx.Param`, and None as it is."""
    if tree is None:
        return None
    tree = tree._asdict() if hasattr(tree, "_asdict") else tree
    if not isinstance(tree, Mapping):
        return nnx.Param(jnp.asarray(tree))
    set_params(module := ParamTree(), tree)
    return module


def set_params(module: nnx.Module, trees: Mapping) -> None:
    """Set trees of arrays as fields of a module."""
    for name, tree in trees.items():
        setattr(module, name, as_params(tree))


def name_of_path(path) -> str:
    """Return the dotted name of a leaf of a model, or of a dictionary of arrays by name."""
    keys = re.sub(r"\['?([\w.]+)'?\]", r".\1", jax.tree_util.keystr(path))
    return keys.removesuffix(".value").lstrip(".")


IN_BLOCK = re.compile(r"((?:[^.]+\.)?blocks\.)(?:(\d+)\.)?(.+)")
"""Prefix, index (None if blocks are stacked) and rest of the name of an array in a block."""


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
    """Return the shape of an array, without the axis of stacked blocks."""
    return np.shape(array)[1 if is_stacked(name) else 0 :]


NOT_MATRICES = "bias", "scale", "taps", "table"


def is_matrix(name: str, array) -> bool:
    """True for an array that multiplies vectors, which decides its precision and optimizer.

    It has at least two axes, without that of stacked blocks, and its last name is `kernel`, or,
    in a block, none of NOT_MATRICES.
    """
    last = name.rpartition(".")[2]
    is_in_block = "blocks." in name and last not in NOT_MATRICES
    return len(shape_in_block(name, array)) > 1 and (last == "kernel" or is_in_block)


def named_arrays(model) -> dict[str, Any]:
    """Return the arrays of a model by name (`blocks.0.attention.query.kernel`), in tree order."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(model)
    return {name_of_path(path): leaf for path, leaf in leaves}


def from_named_arrays(model) -> Callable[[dict[str, Any]], Any]:
    """Return the inverse of `named_arrays` for models like this one (shapes suffice)."""
    names, structure = [*named_arrays(model)], jax.tree.structure(model)
    return lambda arrays: jax.tree.unflatten(structure, [arrays[name] for name in names])


def count_parameters(model: nnx.Module) -> int:
    """Return the number of elements of all arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(model))
