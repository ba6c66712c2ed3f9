"""Parameters by name: as training holds them, and as checkpoints keep them."""

import re
from collections.abc import Callable
from typing import Any

import jax

from tlite.training.step import TrainState

Trees = dict[str, dict[str, Any]]


def parameter_names(model) -> list[str]:
    """`blocks.0.attention.query.kernel`, ...: the arrays in the order of the tree's leaves."""
    paths = [
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(model)[0]
    ]
    return [re.sub(r"\[(\w+)\]", r".\1", path).removesuffix(".value").lstrip(".") for path in paths]


def by_name(model) -> dict[str, Any]:
    """A model's arrays by name."""
    return dict(zip(parameter_names(model), jax.tree.leaves(model), strict=True))


def model_maker(model) -> Callable[[dict[str, Any]], Any]:
    """The inverse of `by_name` for models like this one (shapes are enough)."""
    names, structure = parameter_names(model), jax.tree.structure(model)
    return lambda arrays: jax.tree.unflatten(structure, [arrays[name] for name in names])


def to_named(members: TrainState) -> Trees:
    """{"parameters": {name: (M, ...)}, "optimizer": {...}}.

    Each array of the optimizer is under its number, those that it has for every parameter under
    number.name.
    """
    optimizer = {}
    for index, part in enumerate(_parts(members)[0]):
        if _is_table(part):
            optimizer |= {f"{index}.{name}": array for name, array in part.items()}
        else:
            optimizer[str(index)] = part
    return {
        "parameters": dict(members.parameters),
        "optimizer": {name: a for name, a in optimizer.items() if jax.tree.leaves(a)},
    }


def from_named(members: TrainState, trees: Trees) -> TrainState:
    """The inverse: `members`, of which shapes are enough, with the arrays of `trees`."""
    parts, structure = _parts(members)
    saved = trees["optimizer"]
    optimizer = [
        {name: saved.get(f"{index}.{name}", none) for name, none in part.items()}
        if _is_table(part)
        else saved[str(index)]
        for index, part in enumerate(parts)
    ]
    return members._replace(
        parameters={name: trees["parameters"][name] for name in members.parameters},
        optimizer=jax.tree.unflatten(structure, optimizer),
    )


def _parts(members: TrainState) -> tuple[list, Any]:
    """The optimizer's arrays, those that it has by parameter as one dictionary."""
    names = members.parameters.keys()
    of_parameters = lambda part: _is_table(part) and part.keys() == names  # noqa: E731
    return jax.tree.flatten(members.optimizer, is_leaf=of_parameters)


def _is_table(part) -> bool:
    return isinstance(part, dict)
