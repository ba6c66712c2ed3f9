"""What training has cost: parameters, and FLOPs by the usual count."""

import math
from dataclasses import dataclass

from tlite.comparison.entries import Entry
from tlite.comparison.flops import TRANSLATOR, flops_per_token, parameter_sizes
from tlite.config import from_dict
from tlite.errors import UserError
from tlite.experiment import Experiment
from tlite.training.checkpoints import Checkpoints, saved_arrays


@dataclass(frozen=True)
class Cost:
    """Of one model."""

    parameters: int | None
    """None: not known."""
    tokens_per_step: int
    """Positions that an update is computed of, padding among them."""
    flops_per_step: float | None
    """None: not known, or nothing that is counted."""


def cost(entry: Entry) -> Cost:
    """What a model costs, without running anything of it."""
    model, training = entry.experiment["model"], entry.training
    sizes = sizes_of(entry)
    examples = training.batch_size * training.accumulate
    sentences = max(entry.experiment.get("sentences", 0), 1)
    if entry.experiment["kind"] == TRANSLATOR:
        tokens = examples  # whose batches are counted so
    else:
        tokens = examples * model["context"] * sentences
    if sizes is None:
        return Cost(None, tokens, None)
    flops = flops_per_token(model, sizes, entry.experiment["kind"])
    return Cost(sum(sizes.values()), tokens, flops * tokens if flops else None)


def sizes_of(entry: Entry) -> dict[str, int] | None:
    """Parameters of each array: by the config; with functions of the user's by a checkpoint.

    None where there is none yet.
    """
    try:
        return parameter_sizes(from_dict(Experiment, entry.content["experiment"]).model)
    except (ValueError, UserError):
        return _saved_sizes(entry)


def _saved_sizes(entry: Entry) -> dict[str, int] | None:
    """Of the arrays of the last checkpoint, whose first axis is of the run's models."""
    folder = entry.folder / "checkpoints"
    if not folder.is_dir():
        return None
    with Checkpoints(folder) as checkpoints:
        steps = checkpoints.steps()
    if not steps:
        return None
    try:
        found = saved_arrays(folder.absolute() / str(steps[-1]), ["parameters"])
        return {name: math.prod(leaf.shape[1:]) for name, leaf in found["parameters"].items()}
    except Exception:  # of Orbax's, of many types: a damaged checkpoint is not counted
        return None
