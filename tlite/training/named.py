"""Members' flat vectors as arrays with names, for checkpoints that outlive a change of layout."""

import re
from functools import partial

import jax
import numpy as np
from jaxtyping import Array

from tlite.training.step import Member


def parameter_names(model) -> list[str]:
    """`blocks.0.attention.query.kernel`, ...: the arrays in the order of the flat vector."""
    paths = [
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(model)[0]
    ]
    return [re.sub(r"\[(\w+)\]", r".\1", path).removesuffix(".value").lstrip(".") for path in paths]


def to_named(model, members: Member) -> dict[str, dict[str, Array | np.ndarray]]:
    """{"parameters": {name: (M, ...)}, "optimizer": {...}}."""
    num_parameters = members.parameters.shape[1]
    optimizer = {}
    for index, leaf in enumerate(jax.tree.leaves(members.optimizer)):
        if leaf.shape[1:] == (num_parameters,):
            named = _split(model, leaf)
            optimizer |= {f"{index}.{name}": array for name, array in named.items()}
        else:
            optimizer[str(index)] = leaf
    return {"parameters": _split(model, members.parameters), "optimizer": optimizer}


def named_shapes(model, members: Member) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    """Shapes and types of `to_named`'s arrays, to be restored on the host whatever saved them."""
    host = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    return jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=host),
        jax.eval_shape(partial(to_named, model), members),
    )


def from_named(model, members: Member, trees: dict[str, dict]) -> Member:
    """The inverse: `members`, of which shapes are enough, with the arrays of `trees`."""
    names = parameter_names(model)
    num_parameters = members.parameters.shape[1]

    def join(arrays: dict, prefix: str = "") -> np.ndarray:
        rows = [np.asarray(arrays[prefix + name]) for name in names]
        return np.concatenate([row.reshape(row.shape[0], -1) for row in rows], axis=1)

    leaves, structure = jax.tree.flatten(members.optimizer)
    optimizer = [
        join(trees["optimizer"], f"{index}.")
        if leaf.shape[1:] == (num_parameters,)
        else np.asarray(trees["optimizer"][str(index)])
        for index, leaf in enumerate(leaves)
    ]
    parameters = join(trees["parameters"])
    return members._replace(
        parameters=parameters, optimizer=jax.tree.unflatten(structure, optimizer)
    )


def _split(model, rows) -> dict[str, Array | np.ndarray]:
    arrays, start = {}, 0
    for name, leaf in zip(parameter_names(model), jax.tree.leaves(model), strict=True):
        arrays[name] = rows[:, start : start + leaf.size].reshape(rows.shape[0], *leaf.shape)
        start += leaf.size
    return arrays
