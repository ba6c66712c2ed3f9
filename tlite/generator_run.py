"""An opened run of a generator: its text, its tokenizer and what restores its checkpoints."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from tlite.data import split_tokens
from tlite.errors import UserError
from tlite.experiment import GeneratorExperiment
from tlite.text import CharTokenizer
from tlite.training import Member, Trainer, language_task, validation_batches
from tlite.training.checkpoints import Checkpoints
from tlite.training.loop import restore
from tlite.training.precision import choose_precision
from tlite.training.runs import Run, create_run, new_folder, open_run, text_record

EVALUATION_BATCH = 64


@dataclass
class GeneratorRun:
    """An opened run: its data, its tokenizer and the trainer that can restore its checkpoints."""

    run: Run
    tokenizer: CharTokenizer
    training_tokens: np.ndarray
    validation_tokens: np.ndarray
    trainer: Trainer

    @classmethod
    def start(cls, experiment: GeneratorExperiment, folder: Path | None) -> "GeneratorRun":
        """A new run folder for an experiment."""
        text = load_text(experiment)
        tokenizer = CharTokenizer(text)
        if experiment.model.vocabulary_size not in (0, len(tokenizer)):
            raise UserError(
                f"the vocabulary size is {experiment.model.vocabulary_size}, "
                f"but the text has {len(tokenizer)} tokens: leave it out"
            )
        model = dataclasses.replace(experiment.model, vocabulary_size=len(tokenizer))
        experiment = dataclasses.replace(experiment, model=model)
        check_length(tokenizer.encode(text), experiment)
        path = new_folder(experiment.name, folder)
        # The choice is kept, so that a resumed run computes as it began.
        precision, reason = choose_precision(experiment.training.precision)
        print(f"precision: {reason}")
        training = dataclasses.replace(experiment.training, precision=precision)
        experiment = dataclasses.replace(experiment, training=training)
        return cls._from(
            create_run(path, experiment, text_record(text), tokenizer), tokenizer, text
        )

    @classmethod
    def open(cls, folder: Path) -> "GeneratorRun":
        """A run that exists, with the text it was trained on."""
        run = open_run(folder, GeneratorExperiment)
        text = load_text(run.experiment)
        if text_record(text) != run.data:
            raise UserError(
                f"the text of {folder} has changed since the run began: "
                f"{run.data['characters']:,} characters then, {len(text):,} now"
            )
        return cls._from(run, CharTokenizer.load(run.tokenizer), text)

    @classmethod
    def _from(cls, run: Run, tokenizer: CharTokenizer, text: str) -> "GeneratorRun":
        experiment = run.experiment
        parts = split_tokens(tokenizer.encode(text), experiment.data.validation_fraction)
        trainer = Trainer(
            language_task(experiment.model), experiment.training, jnp.asarray(parts[0])
        )
        return cls(run, tokenizer, *parts, trainer)

    @property
    def experiment(self) -> GeneratorExperiment:
        return self.run.experiment

    def validation(self, tokens: np.ndarray | None = None):
        """Batches that hold every token of the validation part (or of `tokens`) once."""
        tokens = self.validation_tokens if tokens is None else tokens
        shards = self.trainer.mesh.shape["data"]
        return validation_batches(tokens, self.experiment.model.context, EVALUATION_BATCH, shards)

    def restore(self, checkpoint: str) -> tuple[Member, int]:
        """The members at a checkpoint ("best", "last" or a step) and its step."""
        return restore_checkpoint(self.run, self.trainer, checkpoint)


def restore_checkpoint(run: Run, trainer: Trainer, checkpoint: str) -> tuple[Member, int]:
    """The members at a checkpoint of a run: "best", "last" or a step.

    Raises:
        UserError: the run has no such checkpoint.
    """
    checkpoints = Checkpoints(run.checkpoints)
    steps = {str(step): step for step in checkpoints.steps()}
    if not steps:
        raise UserError(f"{run.folder} has no checkpoint yet")
    known = steps | {"best": checkpoints.best_step(), "last": max(steps.values())}
    if checkpoint not in known:
        raise UserError(
            f"there is no checkpoint {checkpoint}: choose best, last or one of {', '.join(steps)}"
        )
    try:
        return restore(trainer, checkpoints, known[checkpoint])
    finally:
        checkpoints.close()


def load_text(experiment: GeneratorExperiment) -> str:
    source: TextSource = experiment.data
    if not 0 < source.validation_fraction < 1:
        raise UserError(
            f"the validation fraction must be between 0 and 1, not {source.validation_fraction}"
        )
    return source.load()


def check_length(tokens: np.ndarray, experiment: GeneratorExperiment) -> None:
    for name, part in zip(
        ("training", "validation"),
        split_tokens(tokens, experiment.data.validation_fraction),
        strict=True,
    ):
        if len(part) < experiment.model.context + 1:
            raise UserError(
                f"the text is too short: its {name} part has {len(part)} characters, and a context "
                f"of {experiment.model.context} needs at least {experiment.model.context + 1}"
            )
