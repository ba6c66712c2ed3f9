"""Runs of a generator: a text or a corpus, its tokens, and the report on a trained model."""

import dataclasses
import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Key

import tlite.functional as F
from tlite.data.corpus import MANIFEST, Corpus, Tokens, dtype_for
from tlite.data.reading import Split
from tlite.data.windows import contiguous_windows, sample_positions, split_tokens
from tlite.errors import OutOfMemory, UserError, command, printable, show
from tlite.experiment import (
    BPE,
    Bytes,
    Characters,
    GeneratorExperiment,
    TextTokenizer,
    TokenizerFile,
)
from tlite.models.transformer import CausalLM
from tlite.runs.run import EVALUATION_BATCH, Built, Run
from tlite.text.characters import ByteTokenizer, CharTokenizer, NumberTokenizer, load_tokenizer
from tlite.text.tokenizer import Tokenizer, read_saved
from tlite.training.loader import PrefetchingLoader
from tlite.training.metrics import ExampleScores, means_from_sums
from tlite.training.run_dir import RunDir, sha256
from tlite.training.sharding import out_of_memory
from tlite.training.step import Task
from tlite.training.tasks import generator_task, in_batches

MAX_LOGITS = 2**27  # elements on a device, per replica
VOCABULARY_PADDING = 128  # unused embedding rows; some devices multiply padded tables faster
MAX_LEARNED_BYTES = 50_000_000  # of a corpus, from which `bpe` is learned
MAX_SHOWN = 2**16  # tokens that pictures show


class TextRun(Run):
    """A run on windows of a text; subclasses define the task (`tlite.training.text_task`)."""

    extra_tokens: ClassVar[int] = 0
    """Tokens of the model that follow the tokenizer's, such as a mask."""
    reads_corpus: ClassVar[bool] = False
    """True if the task also takes the batches and separate documents of a `Corpus`."""

    @classmethod
    def load_data(cls, experiment: GeneratorExperiment) -> str | Corpus:
        source = experiment.data
        if isinstance(source, Corpus):
            if not cls.reads_corpus:
                raise UserError(f"a {cls.kind} run reads a text, not a corpus")
            return source
        if not 0 < (fraction := source.validation_fraction) < 1:
            raise UserError(f"validation_fraction must be between 0 and 1, not {fraction}")
        if not isinstance(text := source.load(), str):
            raise UserError(f"{type(source).__name__}.load returns {type(text).__name__}, not str")
        return text

    @classmethod
    def fingerprint(cls, experiment: GeneratorExperiment, data: str | Corpus) -> dict[str, Any]:
        if isinstance(data, Corpus):
            tokens = sum(split.tokens for split in data.manifest().splits.values())
            return {"tokens": tokens} | data.fingerprint()
        return {"characters": len(data), "sha256": hashlib.sha256(data.encode()).hexdigest()}

    @classmethod
    def build(cls, experiment: GeneratorExperiment, data: str | Corpus) -> Built:
        corpus_tokenizer = open_corpus_tokenizer(data) if isinstance(data, Corpus) else None
        new_arrays = None
        if (experiment.init_from or corpus_tokenizer) and experiment.tokenizer != Characters():
            owner = "corpus" if corpus_tokenizer else "pretrained model"
            raise UserError(f"the tokenizer is set by the {owner}: leave it out")
        if experiment.init_from:
            from tlite.runs.init_from import load_init

            if cls.extra_tokens:
                raise UserError(f"a {cls.kind} run adds tokens to a model: leave out --init-from")
            init = load_init(experiment.init_from, experiment.model)
            tokenizer, new_arrays = init.tokenizer, init.new
            is_known = corpus_tokenizer and corpus_tokenizer.kind != "numbers"
            if is_known and not tokenizer.has_same_vocabulary(corpus_tokenizer):
                raise UserError(
                    "the corpus has other tokens than the pretrained model: prepare it anew"
                )
            experiment = dataclasses.replace(experiment, model=init.config, init_from=init.settings)
        else:
            settings, tokenizer, min_size = experiment.tokenizer, corpus_tokenizer, 0
            if isinstance(data, Corpus):
                min_size = data.manifest().vocabulary_size
            else:
                training, _ = split_tokens(data, experiment.data.validation_fraction)
                settings, tokenizer = make_tokenizer(
                    settings, lambda limit: [training if limit else data]
                )
            size = experiment.model.vocabulary_size
            size = fit_vocabulary(size, tokenizer, min_size, cls.extra_tokens)
            model = dataclasses.replace(experiment.model, vocabulary_size=size)
            experiment = dataclasses.replace(experiment, model=model, tokenizer=settings)
        prompt_tokens(tokenizer, experiment.prompt)
        splits = cls.split(experiment, tokenizer, data)
        fingerprint = cls.fingerprint(experiment, data)
        return Built(experiment, tokenizer, *splits, fingerprint, new_arrays)

    @classmethod
    def load_tokenizer(cls, run_dir: RunDir) -> Tokenizer:
        from tlite.pretrained.tokenizers import PretrainedTokenizer, without_special_tokens

        path = run_dir.path / Tokenizer.file_name
        if run_dir.experiment.init_from:
            return PretrainedTokenizer.load(path)
        if read_saved(path, lambda content: "model" in content):  # of the library `tokenizers`
            return without_special_tokens(PretrainedTokenizer.load(path))
        return load_tokenizer(path)

    @classmethod
    def split(
        cls, experiment: GeneratorExperiment, tokenizer: Tokenizer, data: str | Corpus
    ) -> tuple["TextSplit", "TextSplit"]:
        split = corpus_splits if isinstance(data, Corpus) else text_splits
        train, validation = split(experiment, tokenizer, data)
        context = experiment.model.context
        for name, tokens in (("training", train.tokens), ("validation", validation.tokens)):
            if len(tokens) <= context:
                raise UserError(
                    f"the text is too short: its {name} split has {len(tokens)} {tokenizer.unit}s, "
                    f"and a context of {context} needs at least {context + 1}"
                )
        return train, validation

    def training_data(self) -> np.ndarray | Callable:
        split = self.built.train
        return split.tokens if isinstance(split.tokens, np.ndarray) else split.make_loader

    @cached_property
    def validation_tokens(self) -> np.ndarray:
        """The first tokens of the validation split, for pictures."""
        return self.built.validation.read(MAX_SHOWN)

    @property
    def text(self) -> str:
        """The beginning of the training text, for pictures."""
        return self.tokenizer.decode(self.built.train.read(MAX_SHOWN))

    def validation(self, split: str = "validation"):
        """Return batches (N, B, T) of every token of a split once, or of a sample of a corpus.

        Windows per device are bounded by `MAX_LOGITS`.
        """
        shards, model = self.trainer.num_shards, self.experiment.model
        per_device = max(MAX_LOGITS // (model.context * model.vocabulary_size), 1)
        size = min(-(-EVALUATION_BATCH // shards), per_device) * shards
        return in_batches(self._split(split).windows(), size)

    def _split(self, name: str) -> "TextSplit":
        return self.built.train if name == "training" else self.built.validation

    @property
    def tokens_per_example(self) -> int:
        return self.experiment.model.context

    def print_report(self, means, parameters, step) -> None:
        """Print the validation scores and draw the curves."""
        print(self.line("validation", means))
        self.save_curves("loss", "accuracy")
        print(f"saved in {self.dir.path}")

    def line(self, label: str, means: dict[str, np.ndarray], split: str = "validation") -> str:
        """Return `scores_line` of a split's means."""
        return scores_line(label, means, self.tokenizer.unit)

    def evaluate(
        self, split: Split = "validation", checkpoint: str = "best", replica: int | str = 0
    ) -> None:
        """Print the loss over every token of a split."""
        if split == "test":
            raise UserError("a text has no test split: training or validation")
        self.check_replica(replica)
        from tlite.comparison.blocks import scores_of_one_run  # SciPy is slow to import
        from tlite.runs.reporting import interval

        parameters, step = self.parameters(checkpoint)
        batches = self.validation(split)
        sums = self.trainer.evaluate(parameters, batches, by_example=True)
        line = self.line(f"step {step:,}: {split}", means_from_sums(sums), split)
        count = int(sums["count"][0].sum(dtype=np.float64))
        print(f"{line}, {count:,} {self.tokenizer.unit}s")
        if ensemble := self.ensemble_name(replica):
            print(self.line(f"{ensemble}:", self.evaluate_ensemble(parameters, batches), split))
        if table := scores_of_one_run(ExampleScores.from_rows(step, sums), "loss"):
            print(interval(table.run, "text", ".4f"))


class GeneratorRun(TextRun):
    """A generator and the text whose next tokens it learns to predict."""

    kind = "generator"
    experiment_type = GeneratorExperiment
    model_type = CausalLM
    reads_corpus = True

    def make_task(self) -> Task:
        experiment, source = self.experiment, self.experiment.data
        end_id = document_end_id(source, self.tokenizer) if isinstance(source, Corpus) else None
        return generator_task(experiment.model, end_id=end_id)

    def extra_metrics(self, parameters: dict, means: dict, split: str = "validation") -> dict:
        """Return bits per byte of text, which compare models with different tokenizers."""
        ratio = self._split(split).targets_per_byte
        return {"bits_per_byte": means["loss"] * ratio / math.log(2)} if ratio else {}

    def sums_by_example(self, parameters: dict, batches) -> dict[str, np.ndarray]:
        """Return also the bytes of text of each window's targets, if the tokens determine them."""
        sums = super().sums_by_example(parameters, batches)
        targets, weights = (np.asarray(a) for a in batches[1:])
        if (sizes := self.built.validation.bytes_of(targets)) is None:
            return sums
        size = (sizes * weights).sum(-1).ravel()
        return sums | {"bytes": np.broadcast_to(size, sums["count"].shape)}

    def print_report(self, means, parameters, step) -> None:
        """Print the validation loss and a sample, and draw the curves."""
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
        path = self.dir.path
        print(f"\nsaved in {path}; more text: {command('generate', path)}")

    def sampling(self) -> dict[str, Any]:
        """Return the arguments of `generate` for the sample of the report and the page."""
        return {"num_tokens": 500, "rng": jax.random.key(0), "stop": end_ids(self.tokenizer)}

    def line(self, label: str, means: dict[str, np.ndarray], split: str = "validation") -> str:
        """Return `scores_line` of a split's means, with bits per byte."""
        return super().line(label, means | self.extra_metrics({}, means, split), split)


def scores_line(label: str, means: dict[str, np.ndarray], unit: str) -> str:
    """Return loss, perplexity, bits per byte and accuracy of means (M,) as text."""
    from tlite.runs.reporting import spread

    perplexity, bits = np.exp(np.minimum(means["loss"], 700.0)), ""
    if "bits_per_byte" in means:  # unknown for a corpus of numbers
        bits = f"{spread(means['bits_per_byte'], '.4f')} bits per byte, "
    return (
        f"{label} loss {spread(means['loss'], '.4f')} nats per {unit}, "
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
    sampler: Any = F.sample,
) -> str:
    """Print the text `before` and a sample while it is generated; return the sample."""
    from tlite.decoding import stream

    text, decoder = "", tokenizer.stream(tokens)
    chunks = stream(model, tokens, num_tokens=num_tokens, rng=rng, stop=stop, sampler=sampler)
    for chunk in chunks:
        new = decoder.push(chunk[chunk >= 0])
        show(before + new, end="", flush=True)  # after the options have been checked
        before, text = "", text + new
    rest = decoder.finish()
    show(rest)
    return text + rest


# The tokenizer


def make_tokenizer(
    settings: TextTokenizer, texts: Callable[[int | None], Iterable[str]]
) -> tuple[TextTokenizer, Tokenizer]:
    """Return the settings with the SHA-256 of the tokenizer's files, and the tokenizer.

    Args:
        texts: function that returns texts of the training split of about this many bytes, or all
            texts for None.
    """
    if isinstance(settings, Characters):
        characters: set[str] = set()
        for text in texts(None):  # one at a time: a corpus may not fit into memory
            characters.update(text)
        return settings, CharTokenizer("".join(characters))
    if isinstance(settings, Bytes):
        return settings, ByteTokenizer()
    from tlite.pretrained.tokenizers import learn_bpe, open_tokenizer

    if isinstance(settings, BPE):
        return settings, learn_bpe(texts(MAX_LEARNED_BYTES), settings.num_subwords)
    tokenizer, digest = open_tokenizer(settings.path, settings.sha256)
    path = str(Path(settings.path).resolve()) if os.path.exists(settings.path) else settings.path
    return TokenizerFile(path, digest), tokenizer


def open_corpus_tokenizer(corpus: Corpus) -> Tokenizer:
    """Return the tokenizer of a corpus; numbers if the corpus names none."""
    manifest = corpus.manifest()
    if (reference := manifest.tokenizer) is None:
        return NumberTokenizer(manifest.vocabulary_size)
    path, digest = Path(reference.path), reference.sha256
    if digest and not path.is_file():
        raise UserError(f"the tokenizer of the corpus, {path}, does not exist")
    if reference.kind == "pretrained":
        from tlite.pretrained.tokenizers import open_tokenizer

        tokenizer = open_tokenizer(reference.path, digest)[0]
        size = max(len(tokenizer), tokenizer.max_id + 1)
        # Without a manifest the dtype is guessed; uint16 cannot hold a large vocabulary.
        if not digest and manifest.dtype == "uint16" and dtype_for(size) != "uint16":
            raise UserError(
                f"{reference.path} has {size:,} tokens: set --corpus-vocabulary {size}, so that "
                "the files are read as uint32"
            )
        return tokenizer
    if digest not in ("", sha256(path)):
        raise UserError(f"the tokenizer {path} has changed: prepare the corpus anew")
    return load_tokenizer(path)


def fit_vocabulary(size: int, tokenizer: Tokenizer, at_least: int = 0, extra: int = 0) -> int:
    """Return the number of embedding rows: `size`, or as many as needed if it is 0.

    Args:
        extra: tokens of the model that follow the tokenizer's.

    Raises:
        UserError: `size` is too small, or larger than a vocabulary of characters.
    """
    needed = max(tokenizer.max_id + 1, at_least) + extra
    is_padded = size > needed and tokenizer.unit != "character"
    if size not in (0, needed) and not is_padded:
        raise UserError(f"vocabulary_size is {size}, but {needed} tokens are needed: leave it out")
    return size or needed


def end_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the tokens that end a text."""
    return [] if tokenizer.eos_id is None else [tokenizer.eos_id]


def prompt_tokens(tokenizer: Tokenizer, prompt: str) -> np.ndarray:
    """Return the tokens (T,) of a prompt; of an empty one the token that ends a text."""
    tokens = tokenizer.encode(prompt) if prompt else np.array(end_ids(tokenizer), np.int32)
    if not len(tokens):
        raise UserError(f"the prompt {prompt!r} has no token to start from")
    return tokens


def warn_of_unknown(tokenizer: Tokenizer, tokens: np.ndarray) -> None:
    """Warn if a text has unknown tokens."""
    if tokenizer.unknown_id in (None, tokenizer.eos_id):  # GPT-2 has one id for both
        return
    if unknown := int((tokens == tokenizer.unknown_id).sum()):
        print(
            f"warning: {unknown:,} of {len(tokens):,} tokens of the text are unknown to the model: "
            "the scores can't be compared with those of models that know them",
            file=sys.stderr,
        )


def document_end_id(corpus: Corpus, tokenizer: Tokenizer) -> int | None:
    """Return the token that ends each document if documents must not attend to each other."""
    if not corpus.separate_documents:
        return None
    for end_id in (corpus.manifest().end_id, tokenizer.eos_id):
        if end_id is not None:
            return end_id
    raise UserError(f"separate_documents: {corpus.folder} names no token that ends a document")


# Splits


@dataclass(eq=False)
class TextSplit:
    """The tokens of a split of a text or a corpus, cut into windows of a context."""

    tokenizer: Tokenizer
    context: int
    tokens: np.ndarray | Tokens
    """In memory, or in files from which windows are read when they are needed."""
    tokens_per_byte: float | None
    """By the text or the manifest; None if unknown."""
    max_tokens: int = sys.maxsize
    """Tokens that a validation scores."""

    def read(self, limit: int = sys.maxsize) -> np.ndarray:
        """Return the first tokens."""
        if isinstance(self.tokens, Tokens):
            return self.tokens.read(0, min(len(self.tokens), limit)).astype(np.int32)
        return self.tokens[:limit]

    def make_loader(self, config: Any, mesh: Any) -> PrefetchingLoader:
        """Return the trainer's loader of random windows of files."""

        def windows(seed: int, step: int, rows: slice) -> np.ndarray:
            number, below = rows.stop - rows.start, len(self.tokens) - self.context
            starts = sample_positions(seed, step, number, below, first=rows.start)
            return self.tokens.read_windows(starts, self.context + 1)

        return PrefetchingLoader(windows, config, mesh)

    def windows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return inputs, targets and weights (N, T) of the windows that a validation scores.

        All of them, or `max_tokens` in windows at even distances.
        """
        number = max(self.max_tokens // self.context, 1)
        if number * self.context >= len(self.tokens) - 1:
            return contiguous_windows(self.read(), self.context)
        last = len(self.tokens) - self.context - 1
        starts = np.arange(number) * last // max(number - 1, 1)
        windows = self.tokens.read_windows(starts, self.context + 1).astype(np.int32)
        return windows[:, :-1], windows[:, 1:], np.ones((number, self.context), np.float32)

    def bytes_of(self, targets: np.ndarray) -> np.ndarray | None:
        """Return the bytes of text of each target, or None if tokens do not determine them."""
        sizes = self.tokenizer.byte_sizes()
        return None if sizes is None or targets.max() >= len(sizes) else sizes[targets]

    @cached_property
    def targets_per_byte(self) -> float | None:
        """Targets that a validation scores per byte of their text."""
        _, targets, weights = self.windows()
        if (sizes := self.bytes_of(targets)) is None:
            return self.tokens_per_byte
        size = int(sizes[weights > 0].sum())
        return float(weights.sum(dtype=np.float64)) / size if size else None


def corpus_splits(
    experiment: GeneratorExperiment, tokenizer: Tokenizer, corpus: Corpus
) -> list[TextSplit]:
    """Return the training and the validation split of a corpus."""
    splits, model = [], experiment.model
    for name in ("training", "validation"):
        tokens = corpus.open(name, model.vocabulary_size)
        size = corpus.manifest().splits[name].bytes
        per_byte = len(tokens) / size if size else None
        limit = corpus.validation_tokens
        splits.append(TextSplit(tokenizer, model.context, tokens, per_byte, limit))
    return splits


def text_splits(
    experiment: GeneratorExperiment, tokenizer: Tokenizer, text: str
) -> list[TextSplit]:
    """Return the training split of a text and the validation split, which is the end of the text.

    The text is split before it is tokenized, so that the bytes of a split are known exactly; with a
    pretrained model the tokens are split instead.
    """
    fraction, context = experiment.data.validation_fraction, experiment.model.context
    splits, is_pretrained = [], experiment.init_from is not None
    sequence = tokenizer.encode_document(text) if is_pretrained else text
    if is_pretrained:
        warn_of_unknown(tokenizer, sequence)
    for split in split_tokens(sequence, fraction):
        ids = split if is_pretrained else tokenizer.encode_document(split)
        content = tokenizer.decode(split) if is_pretrained else split
        first = len(tokenizer.decode(ids[:1]).encode())  # the first token is no target
        size = len(content.encode()) - first
        splits.append(TextSplit(tokenizer, context, ids, (len(ids) - 1) / size if size else None))
    return splits


def fit_to_corpus(experiment: Any) -> Any:
    """Return the experiment with as many embedding rows as its corpus has tokens.

    Rows padded to a multiple, as gpt2's 50,304 for 50,257 tokens, stay. A change is printed.
    """
    data, model = experiment.data.with_absolute_paths(), experiment.model
    has_size = model.vocabulary_size and not experiment.init_from
    if not has_size or not Path(data.folder, MANIFEST).is_file():
        return experiment
    tokens, rows = data.manifest().vocabulary_size, model.vocabulary_size
    if 0 <= rows - tokens < VOCABULARY_PADDING:
        return experiment
    line = f"vocabulary_size={tokens:,} instead of {rows:,}: the corpus has {tokens:,} tokens"
    print(printable(f"{line} (--vocabulary-size overrides this)"), flush=True)
    return dataclasses.replace(experiment, model=dataclasses.replace(model, vocabulary_size=tokens))
