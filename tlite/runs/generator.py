"""Runs of a generator: a text or a corpus, its tokens, and what is reported of a trained model."""

import dataclasses
import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from tlite import functional as F
from tlite.data import Corpus, Tokens, every_window, places, split_tokens
from tlite.data.tables import Part
from tlite.decoding import Sampler, stream
from tlite.errors import OutOfMemory, UserError, command
from tlite.experiment import BPE, Bytes, Characters, GeneratorExperiment, TextTokenizer
from tlite.models import CausalLM
from tlite.pretrained import PretrainedTokenizer, learn_bpe
from tlite.pretrained.tokenizers import open_tokenizer, without_special_tokens
from tlite.runs.run import EVALUATION_BATCH, Run, interval, spread, taken_from
from tlite.terminal import show
from tlite.text import ByteTokenizer, CharTokenizer, NumberTokenizer, Tokenizer, load_tokenizer
from tlite.text.tokenizer import read_saved
from tlite.training import Trainer, generator_task
from tlite.training.loader import StreamedFeed
from tlite.training.loop import means_of
from tlite.training.metrics import examples_of
from tlite.training.run_dir import RunDir, sha256
from tlite.training.sharding import out_of_memory
from tlite.training.tasks import in_batches

MOST_LOGITS = 2**27  # numbers on a device, for each replica, at a time
SHOWN = 2**16  # tokens that pictures are drawn of


class GeneratorRun(Run):
    """A generator and the text whose next tokens it learns to predict."""

    kind = "generator"
    experiment_type = GeneratorExperiment
    model_type = CausalLM
    data_needs = ("load", "validation_fraction")

    @classmethod
    def load_data(cls, experiment: GeneratorExperiment) -> str | Corpus:
        source = experiment.data
        if isinstance(source, Corpus):
            return source
        if not 0 < (fraction := source.validation_fraction) < 1:
            raise UserError(f"the validation fraction must be between 0 and 1, not {fraction}")
        if not isinstance(text := source.load(), str):
            raise UserError(f"{type(source).__name__}.load gives {type(text).__name__}, not str")
        return text

    @classmethod
    def fit_to_data(cls, experiment: GeneratorExperiment, data: str | Corpus):
        settings, model, source = experiment.tokenizer, experiment.model, experiment.pretraining
        of_data = tokenizer_of(data) if isinstance(data, Corpus) else None
        if (source or of_data) and settings != Characters():
            owner = "corpus" if of_data else "pre-trained model"
            raise UserError(f"the tokenizer is the {owner}'s: leave it out")
        if source:
            model, _, tokenizer, source = taken_from(source, model)
            if of_data and of_data.kind != "numbers" and not tokenizer.has_same_vocabulary(of_data):
                told = "the corpus has other tokens than the pre-trained model"
                raise UserError(f"{told}: prepare it anew")
        else:
            tokenizer, least = of_data, 0
            if of_data:
                least = data.manifest().vocabulary_size
            else:
                fraction = experiment.data.validation_fraction
                settings, tokenizer = make_tokenizer(settings, data, fraction)
            size = fit_vocabulary(model.vocabulary_size, tokenizer, least)
            model = dataclasses.replace(model, vocabulary_size=size)
        prompt_tokens(tokenizer, experiment.prompt)
        changed = {"tokenizer": settings, "model": model, "pretraining": source}
        experiment = dataclasses.replace(experiment, **changed)
        for name, part in parts_of(experiment, tokenizer, data).items():
            if len(part) <= model.context:
                raise UserError(
                    f"the text is too short: its {name} part has {len(part)} {tokenizer.unit}s, "
                    f"and a context of {model.context} needs at least {model.context + 1}"
                )
        return experiment, tokenizer

    @classmethod
    def load_tokenizer(cls, run: RunDir) -> Tokenizer:
        path = run.path / Tokenizer.file_name
        if run.experiment.pretraining:
            return PretrainedTokenizer.load(path)
        if read_saved(path, lambda content: "model" in content):  # a tokenizer.json of others
            return without_special_tokens(PretrainedTokenizer.load(path))
        return load_tokenizer(path)

    @classmethod
    def fingerprint(cls, data: str | Corpus) -> dict[str, Any]:
        if isinstance(data, Corpus):
            tokens = sum(part.tokens for part in data.manifest().parts.values())
            return {"tokens": tokens} | data.fingerprint()
        return {"characters": len(data), "sha256": hashlib.sha256(data.encode()).hexdigest()}

    def make_trainer(self) -> Trainer:
        experiment, data = self.experiment, self.data
        self.parts = parts_of(experiment, self.tokenizer, data)
        end = end_of_documents(data, self.tokenizer) if isinstance(data, Corpus) else None
        task = generator_task(experiment.model, experiment.training.label_smoothing, end_id=end)
        return Trainer(task, experiment.training, self.parts["training"].fed())

    @cached_property
    def validation_tokens(self) -> np.ndarray:
        """The first ones of the validation part, for pictures."""
        return self.parts["validation"].read(SHOWN)

    @property
    def text(self) -> str:
        """The text, or of a corpus a part of it, for pictures."""
        if isinstance(self.data, Corpus):
            return self.tokenizer.decode(self.parts["training"].read(SHOWN))
        return self.data

    def validation(self, split: str = "validation"):
        """Batches that hold every token of a part once, or of a corpus windows all over it.

        A batch has as many windows on each device, few of a large vocabulary.
        """
        shards, model = self.trainer.num_shards, self.experiment.model
        of_device = max(MOST_LOGITS // (model.context * model.vocabulary_size), 1)
        size = min(-(-EVALUATION_BATCH // shards), of_device) * shards
        return in_batches(self.parts[split].scored(), size)

    @property
    def tokens_per_example(self) -> int:
        return self.experiment.model.context

    @property
    def scored(self) -> tuple[int, str]:
        return len(self.parts["validation"]) - 1, f"{self.tokenizer.unit}s"

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

    def report(self, means, parameters, step) -> None:
        """Print the validation loss and a sample, and draw the curves, at the end of training."""
        print(self.line("validation", means))
        prompt = self.experiment.prompt
        tokens = prompt_tokens(self.tokenizer, prompt)
        try:
            with out_of_memory("a sample"):
                model = self.trainer.models(parameters)[0]
                text = write_sample(model, self.tokenizer, tokens, "\n" + prompt, **self.sampling())
            self.save_sample(step, prompt + text)
        except OutOfMemory as error:  # one device of several processes may not hold the model
            print(f"no sample: {error}")
        self.save_curves("loss", "accuracy")
        folder = self.dir.path
        print(f"\nsaved in {folder}; more text: {command('generate', folder)}")

    def sampling(self) -> dict[str, Any]:
        """How the sample is drawn that ends the report, and stands on the run's page."""
        return {"num_tokens": 500, "rng": jax.random.key(0), "stop": end_ids(self.tokenizer)}

    def line(self, part: str, means: dict[str, np.ndarray], split: str = "validation") -> str:
        """`scores_line` of a part's means."""
        means = means | self.measure({}, means, split)
        return scores_line(part, means, self.tokenizer.unit)

    def evaluate(
        self, split: Part = "validation", checkpoint: str = "best", replica: int | str = 0
    ) -> None:
        """Print the loss over every token of a part."""
        if split == "test":
            raise UserError("a generator's text has no test part: training or validation")
        parameters, step = self.parameters(checkpoint)
        batches = self.validation(split)
        count = int(np.asarray(batches[2]).sum(dtype=np.float64))
        sums = self.trainer.evaluate(parameters, batches, each=True)
        means = means_of(sums)
        told = self.line(f"step {step:,}: {split}", means, split)
        print(f"{told}, {count:,} {self.tokenizer.unit}s")
        if name := self.ensemble(replica):
            means = self.ensemble_means(parameters, batches)
            print(self.line(f"{name}:", means, split))
        from tlite.comparison.blocks import tabulate_one  # SciPy is slow to import

        if table := tabulate_one(examples_of(step, sums), "loss"):
            print(interval(table.run, "text", ".4f"))


def scores_line(part: str, means: dict[str, np.ndarray], unit: str) -> str:
    """Loss, perplexity, bits and accuracy of means (M,); of several replicas also the spread."""
    perplexity = np.exp(np.minimum(means["loss"], 700.0))
    known = "bits_per_byte" in means  # not of numbers
    bits = f"{spread(means['bits_per_byte'], '.4f')} bits per byte, " if known else ""
    return (
        f"{part} loss {spread(means['loss'], '.4f')} nats per {unit}, "
        f"perplexity {spread(perplexity, '.3f')}, {bits}"
        f"accuracy {spread(100 * means['accuracy'], '.1f')} %"
    )


def write_sample(
    model,
    tokenizer: Tokenizer,
    tokens: np.ndarray,
    before: str = "",
    *,
    num_tokens: int,
    rng: Key[Array, ""],
    stop: Sequence[int] = (),
    sampler: Sampler = F.sample,
) -> str:
    """Print the text `before` and a sample while it is generated; return the sample."""
    text, decoder = "", tokenizer.stream(tokens)
    options = {"num_tokens": num_tokens, "rng": rng, "stop": stop, "sampler": sampler}
    for chunk in stream(model, tokens, **options):
        new = decoder.push(chunk[chunk >= 0])
        show(before + new, end="", flush=True)  # after the options have been checked
        before, text = "", text + new
    rest = decoder.finish()
    show(rest)
    return text + rest


# The tokenizer


def make_tokenizer(
    settings: TextTokenizer, text: str, validation_fraction: float
) -> tuple[TextTokenizer, Tokenizer]:
    """The tokenizer of a new run on a text, and its settings with what identifies it.

    Raises:
        UserError: it can't be opened, or is another than the settings say.
    """
    if isinstance(settings, Characters):
        return settings, CharTokenizer(text)
    if isinstance(settings, Bytes):
        return settings, ByteTokenizer()
    if isinstance(settings, BPE):
        training, _ = split_tokens(text, validation_fraction)
        return settings, learn_bpe([training], settings.pieces)
    tokenizer, digest = open_tokenizer(settings.path, settings.sha256)
    place = str(Path(settings.path).resolve()) if Path(settings.path).exists() else settings.path
    return type(settings)(place, digest), tokenizer


def tokenizer_of(corpus: Corpus) -> Tokenizer:
    """That of a corpus; where nothing says it, numbers.

    Raises:
        UserError: it can't be opened, or has changed.
    """
    manifest = corpus.manifest()
    if (of := manifest.tokenizer) is None:
        return NumberTokenizer(manifest.vocabulary_size)
    if of.sha256 and not Path(of.path).is_file():
        raise UserError(f"{of.path} is not there: it is the tokenizer of the corpus")
    if of.kind == "pretrained":
        return open_tokenizer(of.path, of.sha256)[0]
    if of.sha256 not in ("", sha256(Path(of.path))):
        raise UserError(f"the tokenizer {of.path} has changed: prepare the corpus anew")
    return load_tokenizer(of.path)


def fit_vocabulary(size: int, tokenizer: Tokenizer, at_least: int = 0) -> int:
    """The rows of the embedding: of subwords as many as asked for, if they are enough.

    Raises:
        UserError: they are not.
    """
    needed = max(tokenizer.largest_id + 1, at_least)
    # More than there are, a multiple of 64 say, is faster on some devices.
    more = size > needed and tokenizer.unit != "character"
    if size not in (0, needed) and not more:
        raise UserError(
            f"the vocabulary size is {size}, but the text has {needed} tokens: leave it out"
        )
    return size or needed


def end_ids(tokenizer: Tokenizer) -> list[int]:
    """The tokens that end a text."""
    return [] if tokenizer.eos_id is None else [tokenizer.eos_id]


def prompt_tokens(tokenizer: Tokenizer, prompt: str) -> np.ndarray:
    """The tokens (T,) that a sample starts from; without a prompt what ends the text before.

    Raises:
        UserError: there are none.
    """
    if not prompt and (ends := end_ids(tokenizer)):
        return np.array(ends, np.int32)
    if not prompt:
        raise UserError("the prompt is empty: give at least one character to start from")
    if not len(tokens := tokenizer.encode(prompt)):
        raise UserError(f"the prompt {prompt!r} has no token")
    return tokens


def warn_of_unknown(tokenizer: Tokenizer, tokens: np.ndarray) -> None:
    """Warn if the unknown token stands for some of a text."""
    known = (None, tokenizer.eos_id)  # GPT-2's mark between documents has both roles
    unknown = 0 if tokenizer.unknown_id in known else int((tokens == tokenizer.unknown_id).sum())
    if unknown:
        print(
            f"warning: {unknown:,} of {len(tokens):,} tokens of the text are unknown to the model: "
            "the scores don't compare with those of a model that knows them",
            file=sys.stderr,
        )


def end_of_documents(corpus: Corpus, tokenizer: Tokenizer) -> int | None:
    """The token that ends each document, if they are to be kept apart.

    Raises:
        UserError: nothing says which it is.
    """
    if not corpus.separate_documents:
        return None
    for end in (corpus.manifest().end_id, tokenizer.eos_id):
        if end is not None:
            return end
    raise UserError(f"nothing says which token of {corpus.folder} ends a document")


# The training and the validation part


@dataclass(eq=False)
class TextPart:
    """A part of a text, or of a corpus, for a model of a context."""

    tokenizer: Tokenizer
    context: int
    tokens: np.ndarray | Tokens
    """In memory; or in files, of which windows are read as they are needed."""
    per_byte: float | None
    """Tokens for each byte of text, as the text or the manifest says it."""
    most: int = sys.maxsize
    """Tokens that a validation scores."""

    def __len__(self) -> int:
        return len(self.tokens)

    def read(self, most: int = sys.maxsize) -> np.ndarray:
        """Tokens from the beginning."""
        if isinstance(self.tokens, Tokens):
            return self.tokens.read(0, min(len(self), most)).astype(np.int32)
        return self.tokens[:most]

    def fed(self) -> Any:
        """What a trainer takes its batches from: of files windows that start anywhere, at places
        that a step's number decides."""

        def windows(seed: int, step: int, rows: slice) -> np.ndarray:
            number, below = rows.stop - rows.start, len(self) - self.context
            starts = places(seed, step, number, below, first=rows.start)
            return self.tokens.take(starts, self.context + 1)

        if isinstance(self.tokens, Tokens):
            return lambda config, mesh: StreamedFeed(windows, config, mesh)
        return self.tokens

    def scored(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inputs, targets and weights (N, T) of the windows that a validation scores.

        All of them; of more than `most` tokens some, at even distances.
        """
        number = max(self.most // self.context, 1)
        if number * self.context >= len(self) - 1:
            return every_window(self.read(), self.context)
        last = len(self) - self.context - 1
        starts = np.arange(number) * last // max(number - 1, 1)
        windows = self.tokens.take(starts, self.context + 1).astype(np.int32)
        return windows[:, :-1], windows[:, 1:], np.ones((number, self.context), np.float32)

    def bytes_of(self, targets: np.ndarray) -> np.ndarray | None:
        """Bytes of text that each target stands for, where tokens say it."""
        sizes = self.tokenizer.byte_sizes()
        return None if sizes is None or targets.max() >= len(sizes) else sizes[targets]

    @cached_property
    def targets_per_byte(self) -> float | None:
        """Targets that a validation scores, for each byte of the text that they stand for."""
        _, targets, weights = self.scored()
        if (sizes := self.bytes_of(targets)) is None:
            return self.per_byte
        size = int(sizes[weights > 0].sum())
        return float(weights.sum(dtype=np.float64)) / size if size else None


def parts_of(
    experiment: GeneratorExperiment, tokenizer: Tokenizer, data: str | Corpus
) -> dict[str, TextPart]:
    """The training and the validation part of a run's data.

    Raises:
        UserError: one is missing, or can't be read.
    """
    context, found = experiment.model.context, {}
    if isinstance(data, str):
        fraction, whole = experiment.data.validation_fraction, experiment.pretraining is not None
        return text_parts(data, tokenizer, context, fraction, whole=whole)
    for name in ("training", "validation"):
        tokens, said = data.open(name, experiment.model.vocabulary_size), data.manifest()
        size = said.parts[name].bytes
        per_byte = len(tokens) / size if size else None
        found[name] = TextPart(tokenizer, context, tokens, per_byte, data.validation_tokens)
    return found


@lru_cache(maxsize=1)  # a run that starts asks for their sizes first
def text_parts(
    text: str, tokenizer: Tokenizer, context: int, fraction: float, *, whole: bool
) -> dict[str, TextPart]:
    """The training and the validation part of a text, whose last `fraction` is for validation.

    Args:
        whole: cut the tokens of the whole text, as runs with a pre-trained model do; else the
            text, so that a part's bytes are known exactly.
    """
    if whole:
        tokens = split_tokens(ids := tokenizer.encode_long(text), fraction)
        warn_of_unknown(tokenizer, ids)
        texts = [tokenizer.decode(part) for part in tokens]
    else:
        texts = split_tokens(text, fraction)
        tokens = [tokenizer.encode_long(part) for part in texts]
    parts = {}
    for name, ids, own in zip(("training", "validation"), tokens, texts, strict=True):
        size = len(own.encode()) - len(tokenizer.decode(ids[:1]).encode())  # the first is no target
        parts[name] = TextPart(tokenizer, context, ids, (len(ids) - 1) / size if size else None)
    return parts
