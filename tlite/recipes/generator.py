"""Runs of a generator: a text, its tokens, and what is reported of a trained model."""

import dataclasses
import hashlib
import math
from collections.abc import Collection
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tlite.data.corpus import Corpus
from tlite.data.tables import Part
from tlite.decoding import stream
from tlite.errors import UserError, command
from tlite.experiment import Characters, GeneratorExperiment
from tlite.models import TransformerGenerator
from tlite.recipes.evaluation import ensemble_means, interval
from tlite.recipes.finetuning import start_from, taken_from
from tlite.recipes.recipe import EVALUATION_BATCH, Recipe
from tlite.recipes.tokens import (
    TextPart,
    corpus_parts,
    end_ids,
    end_of_documents,
    fit_vocabulary,
    make_tokenizer,
    prompt_tokens,
    saved_tokenizer,
    text_parts,
    tokenizer_of,
)
from tlite.terminal import show
from tlite.text import Tokenizer
from tlite.training import Trainer, TrainState, generator_task
from tlite.training.loop import validate
from tlite.training.metrics import read_examples, summarise
from tlite.training.runs import Run
from tlite.training.tasks import in_batches

MOST_LOGITS = 2**27  # numbers on a device, for each member, at a time


class GeneratorRecipe(Recipe):
    """A generator and the text whose next tokens it learns to predict."""

    kind = "generator"
    experiment_type = GeneratorExperiment
    model_type = TransformerGenerator

    @classmethod
    def load_data(cls, experiment: GeneratorExperiment) -> str | Corpus:
        source = experiment.data
        if isinstance(source, Corpus):
            return source
        if not 0 < source.validation_fraction < 1:
            raise UserError(
                f"the validation fraction must be between 0 and 1, not {source.validation_fraction}"
            )
        return source.load()

    @classmethod
    def fit_to_data(
        cls, experiment: GeneratorExperiment, data: str | Corpus
    ) -> tuple[GeneratorExperiment, Tokenizer]:
        of_data = tokenizer_of(data) if isinstance(data, Corpus) else None
        owner = "corpus" if of_data else "pre-trained model"
        if (experiment.pretraining or of_data) and experiment.tokenizer != Characters():
            raise UserError(f"the tokenizer is the {owner}'s: leave it out")
        if experiment.pretraining:
            model, _, tokenizer, source = taken_from(experiment.pretraining, experiment.model)
            experiment = dataclasses.replace(experiment, pretraining=source)
            if of_data and of_data.kind != "numbers" and not tokenizer.has_pieces_of(of_data):
                told = "the corpus has other tokens than the pre-trained model"
                raise UserError(f"{told}: prepare it anew")
        else:
            tokenizer, least = of_data, 0
            if of_data:
                least = data.manifest().vocabulary_size
            else:
                fraction = experiment.data.validation_fraction
                settings, tokenizer = make_tokenizer(experiment.tokenizer, data, fraction)
                experiment = dataclasses.replace(experiment, tokenizer=settings)
            size = fit_vocabulary(experiment.model.vocabulary_size, tokenizer, least)
            model = dataclasses.replace(experiment.model, vocabulary_size=size)
        prompt_tokens(tokenizer, experiment.prompt)
        experiment = dataclasses.replace(experiment, model=model)
        for name, part in cls.parts_of(experiment, tokenizer, data).items():
            if len(part) <= model.context:
                raise UserError(
                    f"the text is too short: its {name} part has {len(part)} {tokenizer.unit}s, "
                    f"and a context of {model.context} needs at least {model.context + 1}"
                )
        return experiment, tokenizer

    @classmethod
    def parts_of(
        cls, experiment: GeneratorExperiment, tokenizer: Tokenizer, data: str | Corpus
    ) -> dict[str, TextPart]:
        """The training and the validation part."""
        model, whole = experiment.model, experiment.pretraining is not None
        if isinstance(data, Corpus):
            return corpus_parts(data, tokenizer, model.context, model.vocabulary_size)
        fraction = experiment.data.validation_fraction
        return text_parts(data, tokenizer, model.context, fraction, whole=whole)

    @classmethod
    def load_tokenizer(cls, run: Run) -> Tokenizer:
        return saved_tokenizer(run.experiment, run.folder / Tokenizer.file_name)

    @classmethod
    def fingerprint(cls, data: str | Corpus) -> dict[str, Any]:
        if isinstance(data, Corpus):
            return {
                "tokens": sum(p.tokens for p in data.manifest().parts.values())
            } | data.fingerprint()
        return {"characters": len(data), "sha256": hashlib.sha256(data.encode()).hexdigest()}

    def make_trainer(self) -> Trainer:
        experiment, data = self.experiment, self.data
        self.parts = self.parts_of(experiment, self.tokenizer, data)
        end = end_of_documents(data, self.tokenizer) if isinstance(data, Corpus) else None
        task = generator_task(experiment.model, experiment.training.label_smoothing, end_id=end)
        return Trainer(task, experiment.training, self.parts["training"].fed())

    @cached_property
    def validation_tokens(self) -> np.ndarray:
        """Those of the validation part, of a corpus its first ones, for pictures."""
        return self.parts["validation"].shown

    @property
    def text(self) -> str:
        """The text, or of a corpus a part of it, for pictures."""
        if isinstance(self.data, Corpus):
            return self.tokenizer.decode(self.parts["training"].shown)
        return self.data

    def validation(self, split: str = "validation"):
        """Batches that hold every token of a part once, or of a corpus windows all over it.

        A batch has as many windows on each device, few of a large vocabulary.
        """
        shards, model = self.trainer.num_shards, self.experiment.model
        vocabulary = max(model.vocabulary_size, 1)  # 0 was edited in: who restores says so
        of_device = max(MOST_LOGITS // (model.context * vocabulary), 1)
        size = min(-(-EVALUATION_BATCH // shards), of_device) * shards
        return in_batches(self.parts[split].scored(), size)

    @property
    def tokens_per_example(self) -> int:
        return self.experiment.model.context

    @property
    def unit(self) -> str:
        """What a token is called."""
        return self.tokenizer.unit

    @property
    def scored(self) -> tuple[int, str]:
        return len(self.parts["validation"]) - 1, f"{self.unit}s"

    def measure(self, parameters: dict, means: dict, split: str = "validation") -> dict:
        """Bits for each byte of a part's text: they compare models with different tokens."""
        ratio = self.parts[split].targets_per_byte
        return {"bits_per_byte": means["loss"] * ratio / math.log(2)} if ratio else {}

    def sums_by_example(self, parameters: dict, batches) -> dict[str, np.ndarray]:
        """Also the bytes of text that each window's targets stand for, where tokens say it."""
        sums = super().sums_by_example(parameters, batches)
        targets, weights = (np.asarray(a) for a in batches[1:])
        if (sizes := self.parts["validation"].bytes_of(targets)) is None:
            return sums
        size = (sizes * weights).sum(-1).ravel()
        return sums | {"bytes": np.broadcast_to(size, sums["count"].shape)}

    def start_members(self) -> TrainState:
        if (settings := self.experiment.pretraining) is None:
            return self.trainer.init()
        return start_from(self.trainer, taken_from(settings, self.experiment.model)[1])

    def report(self, batches, parameters, step) -> None:
        """Validation loss, perplexity, a sample, and the curves, at the end of training."""
        print(self.line("validation", validate(self.trainer, parameters, batches)))
        model, prompt = self.trainer.models(parameters)[0], self.experiment.prompt
        tokens = prompt_tokens(self.tokenizer, prompt)
        text = write_sample(model, self.tokenizer, tokens, "\n" + prompt, **self.sampling())
        self.save_sample(step, prompt + text)
        self.save_plots(self.curves("loss", "accuracy"))
        folder = self.run.folder
        print(f"\nsaved in {folder}; more text: {command('generate', folder)}")

    def sampling(self) -> dict[str, Any]:
        """How the sample is drawn that ends the report, and stands on the run's page."""
        return {"num_tokens": 500, "rng": jax.random.key(0), "stop": end_ids(self.tokenizer)}

    def line(self, part: str, means: dict[str, np.ndarray], split: str = "validation") -> str:
        """Loss, perplexity, bits and accuracy of means (M,); of several members also the spread."""
        found = summarise(means | self.measure({}, means, split))

        def told(name: str, digits: int, scale: float = 1.0) -> str:
            mean, spread = found[name], found.get(f"{name}_spread")
            values = [math.nan if mean is None else mean, *([] if spread is None else [spread])]
            return " ± ".join(f"{value * scale:.{digits}f}" for value in values)

        known = "bits_per_byte" in found  # not of numbers
        bits = f"{told('bits_per_byte', 4)} bits per byte, " if known else ""
        return (
            f"{part} loss {told('loss', 4)} nats per {self.unit}, "
            f"perplexity {told('perplexity', 3)}, {bits}accuracy {told('accuracy', 1, 100.0)} %"
        )

    def evaluate(
        self, split: Part = "validation", checkpoint: str = "best", member: int | str = 0
    ) -> None:
        """Print the loss over every token of a part."""
        if split == "test":
            raise UserError("a generator's text has no test part: training or validation")
        parameters, step = self.parameters(checkpoint)
        batches = self.validation(split)
        count = int(np.asarray(batches[2]).sum(dtype=np.float64))
        told = self.line(
            f"step {step:,}: {split}", validate(self.trainer, parameters, batches), split
        )
        print(f"{told}, {count:,} {self.unit}s")
        if name := self.ensemble(member):
            means = ensemble_means(self.trainer, parameters, batches)
            print(self.line(f"{name}:", means, split))
        kept = read_examples(self.run.folder)
        if kept and split == "validation" and kept.step == step:
            from tlite.comparison.statistics import blocks  # SciPy is slow to import

            if found := blocks(kept, kept, "loss", of_a_text=True):
                print(interval(found.run, "text", ".4f"))


def write_sample(
    model,
    tokenizer: Tokenizer,
    tokens: np.ndarray,
    before: str = "",
    *,
    stop: Collection[int] = (),
    **settings,
) -> str:
    """Print a sample as it is made, after what comes `before`, up to an end; returns it."""
    text, written = "", tokenizer.stream(tokens)
    for part, count in stream(model, jnp.asarray(tokens), stop=[*stop], **settings):
        piece = written.push(np.asarray(part[:count]))
        show(before + piece, end="", flush=True)  # settings that make no sense are told before
        before, text = "", text + piece
    rest = written.finish()
    show(rest)
    return text + rest
