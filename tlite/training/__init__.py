"""Training: compiled steps, the loop around them, checkpoints and run folders."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlite.training.classifier import classifier_task, labelled_batches
    from tlite.training.config import TrainingConfig
    from tlite.training.generator import generator_task, sampled_batches, validation_batches
    from tlite.training.step import Task, TrainState
    from tlite.training.trainer import Trainer

FILES = {
    "classifier": ("classifier_task", "labelled_batches"),
    "config": ("TrainingConfig",),
    "generator": ("generator_task", "sampled_batches", "validation_batches"),
    "step": ("Task", "TrainState"),
    "trainer": ("Trainer",),
}
__all__ = [name for names in FILES.values() for name in names]


def __getattr__(name: str):
    """They are imported, and JAX with them, when they are asked for."""
    for file, names in FILES.items():
        if name in names:
            return getattr(importlib.import_module(f"tlite.training.{file}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for names in FILES.values() for name in names)})
