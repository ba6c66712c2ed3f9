"""Training: compiled steps, the loop around them, checkpoints and run folders."""

from typing import TYPE_CHECKING

from tlite import import_lazily

if TYPE_CHECKING:
    from tlite.models.low_rank import LowRank
    from tlite.training.config import ParameterGroup, TrainingConfig
    from tlite.training.losses import CrossEntropy, Focal
    from tlite.training.optimizers import SGD, Adafactor, AdamW, Lion, Muon, ScheduleFree
    from tlite.training.step import Task, TrainState
    from tlite.training.tasks import (
        classifier_task,
        generator_task,
        scores,
        text_task,
        token_losses,
        validation_batches,
    )
    from tlite.training.trainer import Trainer

FILES = {
    "LowRank": "tlite.models.low_rank",
    "ParameterGroup": "tlite.training.config",
    "TrainingConfig": "tlite.training.config",
    "CrossEntropy": "tlite.training.losses",
    "Focal": "tlite.training.losses",
    "SGD": "tlite.training.optimizers",
    "Adafactor": "tlite.training.optimizers",
    "AdamW": "tlite.training.optimizers",
    "Lion": "tlite.training.optimizers",
    "Muon": "tlite.training.optimizers",
    "ScheduleFree": "tlite.training.optimizers",
    "Task": "tlite.training.step",
    "TrainState": "tlite.training.step",
    "classifier_task": "tlite.training.tasks",
    "generator_task": "tlite.training.tasks",
    "scores": "tlite.training.tasks",
    "text_task": "tlite.training.tasks",
    "token_losses": "tlite.training.tasks",
    "validation_batches": "tlite.training.tasks",
    "Trainer": "tlite.training.trainer",
}
"""Module of each public name, imported (and JAX with it) at the first use of the name."""
__all__ = [*FILES]


__getattr__ = import_lazily(__name__, FILES)


def __dir__() -> list[str]:
    return sorted({*globals(), *FILES})
