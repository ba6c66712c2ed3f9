"""The base class of tokenizers, padding, and decoding of streams."""

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from tlite.errors import UserError, needs_extra

PADDING = -1  # an id that no token has
END = "<|endoftext|>"  # GPT-2's token between documents
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # text of some bytes of a character
T = TypeVar("T")


def pad(rows: Iterable[Sequence[int] | np.ndarray], length: int | None, pad_id: int) -> np.ndarray:
    """Return the rows cut or padded to `length` or the longest row, int32 (B, T)."""
    rows = list(rows)
    if length is None:
        length = max(map(len, rows), default=0)
    padded = np.full((len(rows), length), pad_id, np.int32)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row[:length]
    return padded


class Stream:
    """Decode ids as they come into text that never ends within a character.

    Args:
        decode: function from ids to text.
        prompt: ids before the first, which decide whether the text begins with a space.
    """

    def __init__(self, decode: Callable[[list[int]], str], prompt=()):
        self._decode, self._ids = decode, []
        self._num_decoded = 0  # ids whose text has been returned; context of the next ones
        self.push(prompt)

    def push(self, tokens) -> str:
        """Return the text that later ids can't change."""
        return "".join(map(self._step, np.asarray(tokens).reshape(-1).tolist()))

    def _step(self, token: int) -> str:
        self._ids.append(int(token))
        text = self.finish()
        if not text or text.endswith(INCOMPLETE):
            return ""
        self._ids = self._ids[self._num_decoded :]
        self._num_decoded = len(self._ids)
        return text

    def finish(self) -> str:
        """Return the remaining text."""
        return self._decode(self._ids)[len(self._decode(self._ids[: self._num_decoded])) :]


class Tokenizer(ABC):
    """Text to ids and back."""

    kind: ClassVar[str]
    """Name in saved files."""
    file_name: ClassVar[str] = "tokenizer.json"
    unit: ClassVar[str] = "token"
    """Name of a token in messages, such as character."""
    separator: ClassVar[str] = " "
    """Text between decoded tokens."""
    bos_id: int | None = None
    eos_id: int | None = None
    unknown_id: int | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of tokens."""

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Return the ids (T,) of a text, int32."""

    def decode(self, tokens) -> str:
        """Return the text of ids (T,), without special tokens and padding.

        The default joins `id_to_token` of the ids by `separator` and does not drop special tokens.
        """
        ids = np.asarray(tokens, np.int64).reshape(-1)
        return self.separator.join(map(self.id_to_token, ids[ids >= 0].tolist()))

    @abstractmethod
    def id_to_token(self, index: int | np.integer) -> str:
        """Return the text of an id for a reader; "" if there is no such token."""

    @property
    def max_id(self) -> int:
        """Return the largest id of a token; -1 if there is none."""
        return len(self) - 1

    def encode_document(self, text: str) -> np.ndarray:
        """Return the ids (N,) of a large text, without special tokens around it."""
        return self.encode(text)

    def encode_ids(self, texts: Iterable[str]) -> Sequence[Sequence[int] | np.ndarray]:
        """Return the ids of each text."""
        return [self.encode(text) for text in texts]

    def encode_texts(
        self, texts: Iterable[str], max_length: int | None = None, pad_id: int = PADDING
    ) -> np.ndarray:
        """Return the ids of each text (B, T), cut to `max_length` and padded."""
        return pad(self.encode_ids(texts), max_length, pad_id)

    def tokenize(self, text: str, max_length: int | None = None) -> list[str]:
        """Return the tokens of a text as strings, cut as by `encode_texts`."""
        (ids,) = self.encode_texts([text], max_length)
        return [self.id_to_token(index) for index in ids if index >= 0]

    def stream(self, prompt=()) -> Stream:
        """Return a decoder of the ids that follow a prompt."""
        return Stream(self.decode, prompt)

    def words(self, text: str) -> list[str]:
        """Return the words of a text, each of which `unknown_in` may name."""
        return text.split()

    def unknown_in(self, text: str) -> list[str]:
        """Return the words of a text that have the unknown token, each once, in order."""
        words = list(dict.fromkeys(self.words(text)))
        if self.unknown_id is None or not words:
            return []
        rows = zip(words, self.encode_ids(words), strict=True)
        return [word for word, ids in rows if self.unknown_id in ids]

    def byte_sizes(self) -> np.ndarray | None:
        """Return the bytes of UTF-8 of each token (V,); None if they depend on the text."""
        return None

    def to_hugging_face(self) -> tuple[Any, ...]:
        """Return the arguments of a `PretrainedTokenizer` with the same ids.

        A `tokenizers.Tokenizer`, and its special tokens by role (pad, bos, eos, unk, mask, ...).

        Raises:
            UserError: there is none.
        """
        raise UserError(
            f"{type(self).__name__} has no counterpart in transformers: train with characters (a "
            "generator), tokenizer=Subwords() in the experiment's file (also a classifier), or "
            "--joint (a translator)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the saved file, if it is JSON."""
        return {"kind": self.kind}

    @classmethod
    def from_dict(cls, content: Any) -> "Tokenizer":
        """Return the tokenizer that `to_dict` wrote; `read_saved` catches what this raises."""
        settings = dict(content)
        if (kind := settings.pop("kind")) != cls.kind:
            raise ValueError(kind)
        return cls(**settings)

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a file."""
        content = json.dumps(self.to_dict(), ensure_ascii=False)
        Path(path).write_text(content, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Load a saved tokenizer; errors are those of `read_saved`."""
        return read_saved(path, cls.from_dict)


def read_saved(path: str | Path, parse: Callable[[Any], T]) -> T:
    """Return `parse` of the JSON in a tokenizer's file; a `UserError` if that is impossible."""
    try:
        return parse(json.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not a tokenizer saved by tlite: {error}") from error


def load_hf_tokenizer(path: str | Path):
    """Return the `tokenizers.Tokenizer` of a tokenizer.json; raise a `UserError` if damaged."""
    with needs_extra("text"):
        from tokenizers import Tokenizer
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"the tokenizer {path} is damaged: {error}") from error


@contextlib.contextmanager
def tokenizer_errors() -> Iterator[None]:
    """Turn errors of the library `tokenizers` about a text into a `UserError`."""
    try:
        yield
    except TypeError:  # not a text: an error of the caller
        raise
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"the tokenizer can't encode this text: {error}") from error
