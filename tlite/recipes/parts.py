"""The parts of a generator's data: a text in memory, or a corpus of any size on disk."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from tlite.data import every_window
from tlite.data.corpus import Corpus, Tokens
from tlite.data.counters import places
from tlite.data.manifest import PartFiles
from tlite.errors import UserError
from tlite.pretrained import PretrainedTokenizer
from tlite.pretrained.tokenizer_files import open_tokenizer
from tlite.text import NumberTokenizer, Tokenizer, load_tokenizer
from tlite.training.feed import StreamedFeed

SAMPLED = 1  # stream of the random numbers that an estimate is drawn with
SHOWN = 2**16  # tokens of a corpus that pictures are drawn of

# Inputs, targets and weights.
Windows = tuple[Int[np.ndarray, "N T"], Int[np.ndarray, "N T"], Float[np.ndarray, "N T"]]


class DataPart(ABC):
    """The training or the validation part, for a model of a context."""

    def __init__(self, tokenizer: Tokenizer, context: int):
        self.tokenizer, self.context = tokenizer, context

    @abstractmethod
    def __len__(self) -> int:
        """How many tokens there are."""

    @property
    @abstractmethod
    def shown(self) -> np.ndarray:
        """Tokens from the beginning, for pictures."""

    @abstractmethod
    def fed(self) -> Any:
        """What a trainer takes its batches from."""

    @abstractmethod
    def scored(self) -> Windows:
        """The windows that a validation scores."""

    @abstractmethod
    def drawn(self, number: int) -> np.ndarray:
        """Random windows (N, T + 1), always the same."""

    @abstractmethod
    def bytes_without_sizes(self) -> float | None:
        """Bytes of the text that the scored targets stand for, where tokens do not say it."""

    @cached_property
    def targets_per_byte(self) -> float | None:
        """Targets that a validation scores, for each byte of the text that they stand for."""
        _, targets, weights = self.scored()
        sizes = self.tokenizer.byte_sizes()
        if sizes is None or targets.max() >= len(sizes):
            size = self.bytes_without_sizes()
        else:
            size = int(sizes[targets[weights > 0]].sum())
        return float(weights.sum(dtype=np.float64)) / size if size else None

    def batches(self, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The scored windows, (N, B, T) each: whole windows of weight 0 fill up the last batch."""
        windows = self.scored()
        missing = -len(windows[0]) % size
        padded = (np.pad(a, [(0, missing), (0, 0)]) for a in windows)
        return tuple(jnp.asarray(a.reshape(-1, size, self.context)) for a in padded)

    def sampled_batches(self, number: int, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """At least so many random windows, (N, B, T) each."""
        windows = self.drawn(-(-number // size) * size).astype(np.int32)
        shaped = (a.reshape(-1, size, self.context) for a in (windows[:, :-1], windows[:, 1:]))
        inputs, targets = map(jnp.asarray, shaped)
        return inputs, targets, jnp.ones(inputs.shape)


class TextPart(DataPart):
    """A part of a text, whose tokens are in memory."""

    def __init__(self, tokenizer: Tokenizer, context: int, tokens: np.ndarray, text: str):
        super().__init__(tokenizer, context)
        self.tokens, self.text = tokens, text

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def shown(self) -> np.ndarray:
        return self.tokens

    def fed(self) -> Any:
        return self.tokens

    def scored(self) -> Windows:
        return every_window(self.tokens, self.context)

    def drawn(self, number: int) -> np.ndarray:
        starts = jax.random.randint(jax.random.key(0), (number,), 0, len(self) - self.context)
        return self.tokens[np.asarray(starts)[:, None] + np.arange(self.context + 1)]

    def bytes_without_sizes(self) -> float | None:
        first = len(self.tokenizer.decode(self.tokens[:1]).encode())
        return float(len(self.text.encode()) - first)


class CorpusPart(DataPart):
    """A part of a corpus, of which windows are read as they are needed."""

    def __init__(
        self, tokenizer: Tokenizer, context: int, tokens: Tokens, files: PartFiles, most: int
    ):
        super().__init__(tokenizer, context)
        self.tokens, self.files, self.most = tokens, files, most

    def __len__(self) -> int:
        return len(self.tokens)

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

    def drawn(self, number: int) -> np.ndarray:
        starts = places(0, 0, number, len(self) - self.context, stream=SAMPLED)
        return self.tokens.take(starts, self.context + 1)

    def bytes_without_sizes(self) -> float | None:
        if not self.files.bytes:
            return None
        return self.files.bytes / len(self) * float(self.scored()[2].sum(dtype=np.float64))


def open_parts(
    corpus: Corpus, tokenizer: Tokenizer, context: int, vocabulary_size: int
) -> dict[str, DataPart]:
    """The training and the validation part of a corpus.

    Raises:
        UserError: one is missing, or can't be read.
    """
    files, most = corpus.manifest().parts, corpus.validation_tokens
    return {
        name: CorpusPart(
            tokenizer, context, corpus.open(name, vocabulary_size), files.get(name), most
        )
        for name in ("training", "validation")
    }


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
    digest = hashlib.sha256(Path(of.path).read_bytes()).hexdigest()
    if of.sha256 not in ("", digest):
        raise UserError(f"the tokenizer {of.path} has changed: prepare the corpus anew")
    return tokenizer


def check_same(tokenizer: PretrainedTokenizer, of_data: Tokenizer | None) -> None:
    """Raises a `UserError` where a pre-trained model has another tokenizer than the corpus."""
    if of_data is None or of_data.kind == "numbers":
        return
    if not tokenizer.has_pieces_of(of_data):
        raise UserError("the corpus has other tokens than the pre-trained model: prepare it anew")


def end_of_documents(corpus: Corpus, tokenizer: Tokenizer) -> int | None:
    """The token that ends each document, if they are to be kept apart.

    Raises:
        UserError: nothing says which it is.
    """
    if not corpus.separate_documents:
        return None
    end = corpus.manifest().end_id
    end = tokenizer.eos_id if end is None else end
    if end is None:
        raise UserError(f"nothing says which token of {corpus.folder} ends a document")
    return end
