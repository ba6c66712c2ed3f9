"""Runs of a generator: a text, its characters, and what is reported of a trained model."""

import dataclasses
import hashlib
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tlite.data import split_tokens
from tlite.decoding import stream
from tlite.errors import UserError, disk_errors, program
from tlite.experiment import GeneratorExperiment
from tlite.inspection import plot_curves, plot_loss_by_position, plot_next_token_probabilities
from tlite.pretrained import PretrainedTokenizer
from tlite.runs.finetuning import start_from, taken_from
from tlite.runs.opened import EVALUATION_BATCH, OpenedRun
from tlite.runs.pieces import mark_of
from tlite.terminal import show
from tlite.text import CharTokenizer
from tlite.training import Member, Trainer, language_task, sampled_batches, validation_batches
from tlite.training.loop import validate
from tlite.training.metrics import read_metrics, summarise
from tlite.training.runs import Run

MOST_SAMPLED = 2**26  # characters of random windows, in memory at a time


class GeneratorRun(OpenedRun):
    """A generator and the text whose next characters it learns to predict."""

    experiment_type = GeneratorExperiment

    @classmethod
    def load_data(cls, experiment: GeneratorExperiment) -> str:
        check_prompt(experiment.prompt)
        source = experiment.data
        if not 0 < source.validation_fraction < 1:
            raise UserError(
                f"the validation fraction must be between 0 and 1, not {source.validation_fraction}"
            )
        return source.load()

    @classmethod
    def settle(
        cls, experiment: GeneratorExperiment, data: str
    ) -> tuple[GeneratorExperiment, CharTokenizer | PretrainedTokenizer]:
        if experiment.pretraining:
            model, _, tokenizer, source = taken_from(experiment.pretraining, experiment.model)
            experiment = dataclasses.replace(experiment, pretraining=source)
            if not len(encode(tokenizer, experiment.prompt)):
                raise UserError(f"the prompt {experiment.prompt!r} has no token")
        else:
            tokenizer = CharTokenizer(data)
            if experiment.model.vocabulary_size not in (0, len(tokenizer)):
                raise UserError(
                    f"the vocabulary size is {experiment.model.vocabulary_size}, "
                    f"but the text has {len(tokenizer)} tokens: leave it out"
                )
            model = dataclasses.replace(experiment.model, vocabulary_size=len(tokenizer))
        experiment = dataclasses.replace(experiment, model=model)
        parts = split_tokens(encode(tokenizer, data), experiment.data.validation_fraction)
        unit = "token" if experiment.pretraining else "character"
        for name, part in zip(("training", "validation"), parts, strict=True):
            if len(part) < model.context + 1:
                raise UserError(
                    f"the text is too short: its {name} part has {len(part)} {unit}s, and a "
                    f"context of {model.context} needs at least {model.context + 1}"
                )
        return experiment, tokenizer

    @classmethod
    def load_tokenizer(cls, run: Run) -> CharTokenizer | PretrainedTokenizer:
        if run.experiment.pretraining:
            return PretrainedTokenizer.load(run.folder / PretrainedTokenizer.file_name)
        return CharTokenizer.load(run.folder / CharTokenizer.file_name)

    @classmethod
    def record(cls, data: str) -> dict[str, Any]:
        return {"characters": len(data), "sha256": hashlib.sha256(data.encode()).hexdigest()}

    def make_trainer(self) -> Trainer:
        fraction = self.experiment.data.validation_fraction
        parts = split_tokens(encode(self.tokenizer, self.data), fraction)
        self.training_tokens, self.validation_tokens = parts
        training = self.experiment.training
        task = language_task(self.experiment.model, training.label_smoothing)
        return Trainer(task, training, jnp.asarray(self.training_tokens))

    def validation(self, tokens: np.ndarray | None = None):
        """Batches that hold every token of the validation part (or of `tokens`) once."""
        tokens = self.validation_tokens if tokens is None else tokens
        shards = self.trainer.mesh.shape["data"]
        return validation_batches(tokens, self.experiment.model.context, EVALUATION_BATCH, shards)

    @property
    def tokens_per_example(self) -> int:
        return self.experiment.model.context

    @property
    def unit(self) -> str:
        """What a token is called."""
        return "token" if self.experiment.pretraining else "character"

    def start_members(self) -> Member:
        if (settings := self.experiment.pretraining) is None:
            return self.trainer.init()
        return start_from(self, taken_from(settings, self.experiment.model)[1])

    def report(self, batches) -> None:
        """Validation loss, perplexity, a sample, and the pictures, at the end of training."""
        run = self.run
        members, step = self.restore("best")
        means = summarise(validate(self.trainer, members, batches))
        print(f"best checkpoint: step {step:,}")
        print(describe("validation", means, self.unit))
        model = self.trainer.models(members.parameters)[0]
        with disk_errors(run.samples):
            run.samples.mkdir(exist_ok=True)
            prompt, key = self.experiment.prompt, jax.random.key(0)
            tokens = self.tokenizer.encode(prompt)
            before = "\n" + prompt
            text = write_sample(model, self.tokenizer, tokens, before, num_tokens=500, key=key)
            path = run.samples / f"step-{step}.txt"
            path.write_text(prompt + text, encoding="utf-8")
            self.draw(members, batches, model)
        print(f"\nsaved in {run.folder}; more text: {program()} generate {run.folder}")

    def draw(self, members, batches, model) -> None:
        """Loss and accuracy curves, loss by position, next-character probabilities."""
        lines = read_metrics(self.run.metrics, most=1000)
        sums = self.trainer.evaluate(members.parameters, batches)
        opening = self.validation_tokens[: min(24, self.experiment.model.context)]
        probabilities = jax.device_get(jax.nn.softmax(model(jnp.asarray(opening)), axis=-1))
        shown = [mark_of(self.tokenizer, token) for token in range(len(self.tokenizer))]
        self.save_plots(
            {
                "loss": lambda: plot_curves(lines, "loss"),
                "accuracy": lambda: plot_curves(lines, "accuracy"),
                "loss-by-position": lambda: plot_loss_by_position(sums["loss"] / sums["count"]),
                "next-character": lambda: plot_next_token_probabilities(
                    probabilities, [shown[token] for token in opening], shown
                ),
            }
        )

    def evaluate(self, checkpoint: str, split: str, sampled: int) -> None:
        """Print the loss over every token of a part; and a sampled estimate if asked."""
        if split == "test":
            raise UserError("a generator's text has no test part: training or validation")
        most = MOST_SAMPLED // self.experiment.model.context
        if sampled > most:
            raise UserError(f"--sampled must be at most {most:,}, not {sampled:,}")
        members, step = self.restore(checkpoint)
        tokens = self.training_tokens if split == "training" else self.validation_tokens
        means = summarise(validate(self.trainer, members, self.validation(tokens)))
        told = describe(f"step {step:,}: {split}", means, self.unit)
        print(f"{told}, {len(tokens) - 1:,} {self.unit}s")
        if sampled:
            context, shards = self.experiment.model.context, self.trainer.mesh.shape["data"]
            key, size = jax.random.key(0), EVALUATION_BATCH * shards
            batches = sampled_batches(key, jnp.asarray(tokens), context, sampled, size)
            means = summarise(validate(self.trainer, members, batches))
            part = f"sampled estimate ({batches[0][..., 0].size} windows):"
            print(describe(part, means, self.unit))


def encode(tokenizer: CharTokenizer | PretrainedTokenizer, text: str) -> np.ndarray:
    """The tokens of a text (N,), without marks around it."""
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.encode(text, marks=False)
    return tokenizer.encode(text)


def check_prompt(prompt: str) -> None:
    if not prompt:
        raise UserError("the prompt is empty: give at least one character to start from")


def write_sample(
    model,
    tokenizer,
    tokens: np.ndarray,
    before: str = "",
    end_ids: Collection[int] = (),
    **settings,
) -> str:
    """Print a sample as it is made, after what comes `before`, up to an end; returns it."""
    text, written = "", tokenizer.stream(tokens)
    for part in stream(model, jnp.asarray(tokens), **settings):
        ends = np.flatnonzero(np.isin(part, list(end_ids)))
        piece = written.push(part[: ends[0]] if len(ends) else part)
        show(before + piece, end="", flush=True)  # settings that make no sense are told before
        before, text = "", text + piece
        if len(ends):
            break
    rest = written.finish()
    show(rest)
    return text + rest


def describe(part: str, means: dict, unit: str = "character") -> str:
    """A line with loss, perplexity and accuracy; over several members mean and spread."""

    def value(name: str, digits: int, scale: float = 1.0) -> str:
        spread = means.get(f"{name}_spread")
        return f"{means[name] * scale:.{digits}f}" + (
            "" if spread is None else f" ± {spread * scale:.{digits}f}"
        )

    return (
        f"{part} loss {value('loss', 4)} nats per {unit}, "
        f"perplexity {value('perplexity', 3)}, accuracy {value('accuracy', 1, 100.0)} %"
    )
