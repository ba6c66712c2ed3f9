"""Runs of a generator: a text, its tokens, and what is reported of a trained model."""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Collection
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

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
    check_same,
    encoded_parts,
    end_ids,
    end_of_documents,
    fit_vocabulary,
    make_tokenizer,
    open_parts,
    prompt_tokens,
    saved_tokenizer,
    tokenizer_of,
)
from tlite.terminal import show
from tlite.text import Tokenizer
from tlite.training import Trainer, TrainState, generator_task
from tlite.training.examples import read_examples
from tlite.training.loop import means_of, validate
from tlite.training.metrics import summarise
from tlite.training.runs import Run

MOST_SAMPLED = 2**26  # tokens of random windows, in memory at a time
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
            check_same(tokenizer, of_data)
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
            if len(part) < model.context + 1:
                raise UserError(
                    f"the text is too short: its {name} part has {len(part)} "
                    f"{tokenizer.unit}s, and a context of {model.context} needs at least "
                    f"{model.context + 1}"
                )
        return experiment, tokenizer

    @classmethod
    def parts_of(
        cls, experiment: GeneratorExperiment, tokenizer: Tokenizer, data: str | Corpus
    ) -> dict[str, TextPart]:
        """The training and the validation part."""
        model = experiment.model
        if isinstance(data, Corpus):
            return open_parts(data, tokenizer, model.context, model.vocabulary_size)
        whole = experiment.pretraining is not None
        parts = encoded_parts(tokenizer, data, experiment.data.validation_fraction, whole)
        of_parts = zip(("training", "validation"), *parts, strict=True)
        return {name: TextPart(tokenizer, model.context, *part) for name, *part in of_parts}

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
        experiment = self.experiment
        self.parts = self.parts_of(experiment, self.tokenizer, self.data)
        corpus = self.data if isinstance(self.data, Corpus) else None
        end = end_of_documents(corpus, self.tokenizer) if corpus else None
        smoothing = experiment.training.label_smoothing
        task = generator_task(experiment.model, smoothing, end_id=end)
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
        """Batches that hold every token of a part once, or of a corpus windows all over it."""
        return self.parts[split].batches(self.batch_size)

    @property
    def batch_size(self) -> int:
        """Windows of a validation's batch: as many on each device, few of a large vocabulary."""
        shards, model = self.trainer.num_shards, self.experiment.model
        vocabulary = max(model.vocabulary_size, 1)  # 0 was edited in: who restores says so
        of_device = max(MOST_LOGITS // (model.context * vocabulary), 1)
        return min(-(-EVALUATION_BATCH // shards), of_device) * shards

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
        sums, sizes = super().sums_by_example(parameters, batches), self.tokenizer.byte_sizes()
        targets, weights = (np.asarray(a) for a in batches[1:])
        if sizes is None or targets.max() >= len(sizes):
            return sums
        size = (sizes[targets] * weights).sum(-1).ravel()
        return sums | {"bytes": np.broadcast_to(size, sums["count"].shape)}

    def start_members(self) -> TrainState:
        if (settings := self.experiment.pretraining) is None:
            return self.trainer.init()
        return start_from(self.trainer, taken_from(settings, self.experiment.model)[1])

    def report(self, batches, parameters, step) -> None:
        """Validation loss, perplexity, a sample, and the pictures, at the end of training."""
        run = self.run
        sums = self.trainer.evaluate(parameters, batches)  # the pictures need them too
        means = self.means(parameters, batches, find=lambda *_: means_of(sums))
        print(describe("validation", means, self.unit))
        model = self.trainer.models(parameters)[0]
        prompt = self.experiment.prompt
        tokens = prompt_tokens(self.tokenizer, prompt)
        text = write_sample(model, self.tokenizer, tokens, "\n" + prompt, **self.sampling())
        self.save_sample(step, prompt + text)
        self.draw(sums, model)
        print(f"\nsaved in {run.folder}; more text: {command('generate', run.folder)}")

    def sampling(self) -> dict[str, Any]:
        """How the sample is drawn that ends the report, and stands on the run's page."""
        return {"num_tokens": 500, "rng": jax.random.key(0), "stop": end_ids(self.tokenizer)}

    def means(
        self, parameters: dict, batches, split: str = "validation", find: Callable = validate
    ) -> dict:
        """What is found on batches of a part, over the members; or by all of them together."""
        means = find(self.trainer, parameters, batches)
        return summarise(means | self.measure(parameters, means, split))

    def draw(self, sums: dict[str, np.ndarray], model) -> None:
        """Loss and accuracy curves, loss by position, next-character probabilities.

        Args:
            sums: over the validation part, by member and position.
        """
        from tlite import pictures  # matplotlib is slow to import

        opening = self.validation_tokens[: min(24, self.experiment.model.context)]
        most = min(8, self.experiment.model.vocabulary_size)
        best, found = jax.device_get(most_probable(model, opening, most))
        mark = partial(pictures.mark_of, self.tokenizer)
        pieces = [[mark(token) for token in row] for row in found.T], [mark(t) for t in opening]
        self.save_plots(
            {
                **self.curves("loss", "accuracy"),
                "loss-by-position": lambda: pictures.plot_loss_by_position(
                    sums["loss"] / sums["count"]
                ),
                "next-character": lambda: pictures.plot_top_tokens(best.T, *pieces),
            }
        )

    def evaluate(
        self,
        split: Part = "validation",
        checkpoint: str = "best",
        member: int | str = 0,
        sampled: int = 0,
    ) -> None:
        """Print the loss over every token of a part; and of so many sampled windows if asked."""
        if split == "test":
            raise UserError("a generator's text has no test part: training or validation")
        most = MOST_SAMPLED // self.experiment.model.context
        if sampled > most:
            raise UserError(f"--sampled must be at most {most:,}, not {sampled:,}")
        parameters, step = self.parameters(checkpoint)
        batches = self.validation(split)

        def tell(part: str, ending: str = "") -> None:
            print(describe(part, self.means(parameters, batches, split), self.unit) + ending)
            if name := self.ensemble(member):
                means = self.means(parameters, batches, split, ensemble_means)
                print(describe(f"{name}:", means, self.unit))

        count = int(np.asarray(batches[2]).sum(dtype=np.float64))
        tell(f"step {step:,}: {split}", f", {count:,} {self.unit}s")
        kept = read_examples(self.run.folder)
        if kept and split == "validation" and kept.step == step:
            from tlite.comparison.statistics import blocks  # SciPy is slow to import

            if found := blocks(kept, kept, "loss", of_a_text=True):
                print(interval(found.run, "text", ".4f"))
        if sampled:
            batches = self.parts[split].sampled_batches(sampled, self.batch_size)
            tell(f"sampled estimate ({batches[0][..., 0].size} windows):")


@partial(jax.jit, static_argnums=2)
def most_probable(
    model, tokens: Int[Array, "T"], number: int
) -> tuple[Float[Array, "T K"], Int[Array, "T K"]]:
    """The K greatest probabilities of the next token after each of these, and whose they are."""
    return tuple(jax.lax.top_k(jax.nn.softmax(model(tokens), axis=-1), number))


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


def describe(part: str, means: dict, unit: str = "character") -> str:
    """A line with loss, perplexity, bits and accuracy; over several members mean and spread."""

    def value(name: str, digits: int, scale: float = 1.0) -> str:
        spread, mean = means.get(f"{name}_spread"), means[name]
        mean = math.nan if mean is None else mean
        return f"{mean * scale:.{digits}f}" + (
            "" if spread is None else f" ± {spread * scale:.{digits}f}"
        )

    known = "bits_per_byte" in means  # not of numbers
    bits = f"{value('bits_per_byte', 4)} bits per byte, " if known else ""
    return (
        f"{part} loss {value('loss', 4)} nats per {unit}, "
        f"perplexity {value('perplexity', 3)}, {bits}accuracy {value('accuracy', 1, 100.0)} %"
    )
