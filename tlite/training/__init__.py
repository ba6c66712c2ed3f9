"""Training: compiled steps, the loop around them, checkpoints and run folders."""

from tlite.training.classifier import classifier_task, labelled_batches
from tlite.training.config import TrainingConfig
from tlite.training.generator import generator_task, sampled_batches, validation_batches
from tlite.training.step import Task, TrainState
from tlite.training.trainer import Trainer
