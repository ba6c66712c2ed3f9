"""Which checkpoints a name stands for, and what is restored of them."""

from collections.abc import Callable

import numpy as np

from tlite.errors import UserError
from tlite.training import Trainer, TrainState
from tlite.training.checkpoints import Checkpoints
from tlite.training.loop import restore
from tlite.training.runs import Run


def open_checkpoints(run: Run) -> Checkpoints:
    """A run's checkpoints, to read."""
    training = run.experiment.training
    return Checkpoints(run.checkpoints, every=training.evaluate_every, end=training.steps)


def checkpoint_steps(run: Run, checkpoints: Checkpoints, checkpoint: str) -> list[int]:
    """The step that "best", "last" or a number names; for "average" the last that are kept.

    Raises:
        UserError: the run has no such checkpoint.
    """
    steps = {str(step): step for step in checkpoints.steps()}
    if not steps:
        raise UserError(f"{run.folder} has no checkpoint yet")
    if checkpoint == "average":
        return checkpoints.regular_steps()[-run.experiment.training.keep :]
    known = steps | {"best": checkpoints.best_step(), "last": max(steps.values())}
    if checkpoint not in known:
        raise UserError(
            f"there is no checkpoint {checkpoint}: choose best, last, average or one of "
            f"{', '.join(steps)}"
        )
    return [known[checkpoint]]


def restore_checkpoint(run: Run, trainer: Trainer, checkpoint: str) -> tuple[TrainState, int]:
    """The members at a checkpoint of a run: "best", "last" or a step; or the last ones' "average".

    Raises:
        UserError: the run has no such checkpoint.
    """
    with open_checkpoints(run) as checkpoints:
        steps = checkpoint_steps(run, checkpoints, checkpoint)
        if len(steps) == 1:
            return restore(trainer, checkpoints, steps[0])
        members = None

        def read(step: int) -> tuple[int, dict]:
            nonlocal members
            members, found = restore(trainer, checkpoints, step)
            return found, members.parameters

        mean = mean_parameters(steps, read)
    return trainer.place(members._replace(parameters=mean)), steps[-1]


def mean_parameters(
    steps: list[int], read: Callable[[int], tuple[int, dict]]
) -> dict[str, np.ndarray]:
    """The mean of arrays by name over checkpoints, in float32.

    Args:
        read: from a step to the one that was found whole, and its arrays.

    Raises:
        UserError: one of several is damaged.
    """
    totals: dict[str, np.ndarray] = {}
    for step in steps:
        found, arrays = read(step)
        if found != step and len(steps) > 1:
            raise UserError(f"checkpoint {step} is damaged: there is no average without it")
        for name, array in arrays.items():
            totals[name] = totals.get(name, 0.0) + np.asarray(array, np.float64)
    return {name: (total / len(steps)).astype(np.float32) for name, total in totals.items()}


def check_member(member: int, number: int) -> None:
    """Raises a `UserError` where a run of `number` models has no such member."""
    if not 0 <= member < number:
        raise UserError(f"there is no member {member}: the run has {number}, counted from 0")
