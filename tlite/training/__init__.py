"""Training: compiled steps, the loop around them, checkpoints and run folders."""

import importlib
from typing import TYPE_CHECKING

from tlite.training.config import TrainingConfig

if TYPE_CHECKING:
    from tlite.training.step import Task, TrainState
    from tlite.training.tasks import classifier_task, generator_task, validation_batches
    from tlite.training.trainer import Trainer

FILES = {
    "classifier_task": "tasks",
    "generator_task": "tasks",
    "Task": "step",
    "Trainer": "trainer",
    "TrainState": "step",
    "validation_batches": "tasks",
}
"""Module of each public name, imported (and JAX with it) at the first use of the name."""
__all__ = [*FILES, "TrainingConfig"]


def __getattr__(name: str):
    if name in FILES:
        return getattr(importlib.import_module(f"tlite.training.{FILES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *FILES})
