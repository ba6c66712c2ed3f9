"""What a generator reads: its tokenizer, and the parts of a text or of a corpus on disk."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from tlite.data import every_window, places, split_tokens
from tlite.data.corpus import Corpus, PartFiles, Tokens
from tlite.errors import UserError
from tlite.experiment import BPE, Bytes, Characters, GeneratorExperiment, TextTokenizer
from tlite.pretrained import PretrainedTokenizer, learn_bpe
from tlite.pretrained.tokenizers import open_tokenizer, plain
from tlite.text import ByteTokenizer, CharTokenizer, NumberTokenizer, Tokenizer, load_tokenizer
from tlite.text.tokenizer import read_saved
from tlite.training.feed import StreamedFeed
from tlite.training.runs import sha256

SHOWN = 2**16  # tokens of a corpus that pictures are drawn of

# Inputs, targets and weights.
Windows = tuple[Int[np.ndarray, "N T"], Int[np.ndarray, "N T"], Float[np.ndarray, "N T"]]


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


def saved_tokenizer(experiment: GeneratorExperiment, path: Path) -> Tokenizer:
    """The tokenizer that was saved with a run."""
    if experiment.pretraining:
        return PretrainedTokenizer.load(path)
    if read_saved(path, lambda content: "model" in content):  # a tokenizer.json of others
        return plain(PretrainedTokenizer.load(path))
    return load_tokenizer(path)


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


@dataclass(eq=False)
class TextPart:
    """The training or the validation part of a text, for a model of a context; in memory."""

    tokenizer: Tokenizer
    context: int
    tokens: np.ndarray
    text: str = ""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def shown(self) -> np.ndarray:
        """Tokens from the beginning, for pictures."""
        return self.tokens

    def fed(self) -> Any:
        """What a trainer takes its batches from."""
        return self.tokens

    def scored(self) -> Windows:
        """The windows that a validation scores."""
        return every_window(self.tokens, self.context)

    def bytes_of(self, targets: np.ndarray) -> np.ndarray | None:
        """Bytes of text that each target stands for, where tokens say it."""
        sizes = self.tokenizer.byte_sizes()
        return None if sizes is None or targets.max() >= len(sizes) else sizes[targets]

    def bytes_without_sizes(self) -> float | None:
        """Bytes of the text that the scored targets stand for, where tokens do not say it."""
        first = len(self.tokenizer.decode(self.tokens[:1]).encode())
        return float(len(self.text.encode()) - first)

    @cached_property
    def targets_per_byte(self) -> float | None:
        """Targets that a validation scores, for each byte of the text that they stand for."""
        _, targets, weights = self.scored()
        sizes = self.bytes_of(targets)
        size = self.bytes_without_sizes() if sizes is None else int(sizes[weights > 0].sum())
        return float(weights.sum(dtype=np.float64)) / size if size else None


@dataclass(eq=False)
class CorpusPart(TextPart):
    """A part of a corpus, of which windows are read as they are needed."""

    tokens: Tokens
    _: KW_ONLY
    files: PartFiles
    most: int
    """Tokens that a validation scores."""

    @property
    def shown(self) -> np.ndarray:
        return self.tokens.read(0, min(len(self), SHOWN)).astype(np.int32)

    def fed(self) -> Callable[..., StreamedFeed]:
        """Windows that start anywhere, at places that a step's number decides."""

        def read(seed: int, step: int, rows: slice) -> np.ndarray:
            number, below = rows.stop - rows.start, len(self) - self.context
            starts = places(seed, step, number, below, first=rows.start)
            return self.tokens.take(starts, self.context + 1)

        return lambda config, mesh: StreamedFeed(read, config, mesh)

    def scored(self) -> Windows:
        """All windows; of more than `most` tokens some, at even distances."""
        number = max(self.most // self.context, 1)
        if number * self.context >= len(self) - 1:
            return every_window(self.tokens.read(0, len(self)).astype(np.int32), self.context)
        last = len(self) - self.context - 1
        starts = np.arange(number) * last // max(number - 1, 1)
        windows = self.tokens.take(starts, self.context + 1).astype(np.int32)
        return windows[:, :-1], windows[:, 1:], np.ones((number, self.context), np.float32)

    def bytes_without_sizes(self) -> float | None:
        if not self.files.bytes:
            return None
        return self.files.bytes / len(self) * float(self.scored()[2].sum(dtype=np.float64))


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
        tokens = split_tokens(tokenizer.encode_long(text), fraction)
        texts = [tokenizer.decode(part) for part in tokens]
    else:
        texts = split_tokens(text, fraction)
        tokens = [tokenizer.encode_long(part) for part in texts]
    parts = [TextPart(tokenizer, context, *of_part) for of_part in zip(tokens, texts, strict=True)]
    return dict(zip(("training", "validation"), parts, strict=True))


def corpus_parts(
    corpus: Corpus, tokenizer: Tokenizer, context: int, vocabulary_size: int
) -> dict[str, TextPart]:
    """The training and the validation part of a corpus.

    Raises:
        UserError: one is missing, or can't be read.
    """
    found = {}
    for name in ("training", "validation"):
        tokens, most = corpus.open(name, vocabulary_size), corpus.validation_tokens
        files = corpus.manifest().parts[name]
        found[name] = CorpusPart(tokenizer, context, tokens, files=files, most=most)
    return found


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
    tokenizer = load_tokenizer(of.path)
    if of.sha256 not in ("", sha256(Path(of.path))):
        raise UserError(f"the tokenizer {of.path} has changed: prepare the corpus anew")
    return tokenizer


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
