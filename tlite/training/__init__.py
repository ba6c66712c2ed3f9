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

MODULES = {
    "tlite.models.low_rank": "LowRank",
    "tlite.training.config": "ParameterGroup TrainingConfig",
    "tlite.training.losses": "CrossEntropy Focal",
    "tlite.training.optimizers": "SGD Adafactor AdamW Lion Muon ScheduleFree",
    "tlite.training.step": "Task TrainState",
    "tlite.training.tasks": "classifier_task generator_task scores text_task token_losses "
    "validation_batches",
    "tlite.training.trainer": "Trainer",
}
"""Public names by module, which is imported (and JAX with it) when a name is first used."""
__all__ = " ".join(MODULES.values()).split()


__getattr__ = import_lazily(__name__, MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
