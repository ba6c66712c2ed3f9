"""A run that is given another number of steps, and goes on as if it had always been so."""

import dataclasses

from tlite import processes
from tlite.errors import UserError
from tlite.training.checkpoints import Checkpoints
from tlite.training.metrics import MetricsFile
from tlite.training.runs import Run, rewrite_config


def with_steps(run: Run, steps: int) -> Run:
    """The run with so many steps in all; its folder is not touched yet. All processes call it.

    Raises:
        UserError: they can't be: the steps before would have been others, or more are done.
    """
    if reason := processes.told(_reason_against(run, steps) if processes.is_first() else None):
        raise UserError(reason)
    training = dataclasses.replace(run.experiment.training, steps=steps)
    return dataclasses.replace(
        run, experiment=dataclasses.replace(run.experiment, training=training)
    )


def save_steps(run: Run) -> None:
    """Write the steps of `with_steps` to config.json, at once or not at all.

    Raises:
        UserError: the run is being trained by another process, or can't be written.
    """
    if not processes.is_first():
        return
    if run.metrics.exists():
        with MetricsFile(run.metrics):  # while this one has it, no other trains
            rewrite_config(run)
    else:
        rewrite_config(run)


def _reason_against(run: Run, steps: int) -> str | None:
    training = run.experiment.training
    if steps == training.steps:
        return None
    if training.schedule == "cosine":
        return (
            f"--steps can't be {steps:,} where a run has {training.steps:,} with a cosine: that "
            "would have had another learning rate at every step before; only a constant or an "
            "inverse_sqrt schedule can go on"
        )
    try:
        dataclasses.replace(training, steps=steps)
    except ValueError as error:
        return f"--{error}"
    done = max(Checkpoints(run.checkpoints).steps(), default=0)
    if steps < done:
        return f"--steps must be at least {done:,}: {run.folder} has done as many"
    return None
