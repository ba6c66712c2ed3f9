"""Parameters by name: as training holds them, and as checkpoints keep them."""

from typing import Any

import jax

from tlite.training.step import TrainState

Trees = dict[str, dict[str, Any]]


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
