"""Training: compiled steps, the loop around them, checkpoints and run folders."""

from tlite.training.classification import classification_task, labelled_batches
from tlite.training.config import TrainingConfig
from tlite.training.language import language_task, sampled_batches, validation_batches
from tlite.training.step import Member, Task
from tlite.training.trainer import Trainer
