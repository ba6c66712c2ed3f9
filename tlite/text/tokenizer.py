"""What every tokenizer has, with padding and the text of ids as they come."""

import contextlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np

from tlite.errors import UserError, needs_extra

PADDING = -1  # no token has this id, so what is padding can be seen in the ids themselves
BROKEN = "\N{REPLACEMENT CHARACTER}"  # what part of a character is decoded to
T = TypeVar("T")


def pad(rows: Iterable[Sequence[int] | np.ndarray], length: int | None, pad_id: int) -> np.ndarray:
    """The rows, filled up with `pad_id` to `length` or the longest row: int32 (B, T)."""
    rows = list(rows)
    if length is None:
        length = max(map(len, rows), default=0)
    padded = np.full((len(rows), length), pad_id, np.int32)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row[:length]
    return padded


class Stream:
    """Ids one after another as text, of which no piece ends within a character.

    Args:
        decode: the text of ids.
        prompt: the ids before the first: what follows may begin with a space because of them.
    """

    def __init__(self, decode: Callable[[list[int]], str], prompt=()):
        self._decode, self._ids = decode, []
        self._told = 0  # of these ids: they are decoded with those that follow, as a whole text is
        self.push(prompt)

    def push(self, tokens) -> str:
        """The text that is certain now; what is missing comes with later ids."""
        return "".join(map(self._step, np.asarray(tokens).reshape(-1).tolist()))

    def _step(self, token: int) -> str:
        self._ids.append(int(token))
        text = self.finish()
        if not text or text.endswith(BROKEN):
            return ""
        self._ids = self._ids[self._told :]
        self._told = len(self._ids)
        return text

    def finish(self) -> str:
        """What is left once no id follows."""
        return self._decode(self._ids)[len(self._decode(self._ids[: self._told])) :]


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back. Where a tokenizer says nothing else, the defaults here hold."""

    kind: ClassVar[str]
    """What saved files call it."""
    file_name: ClassVar[str] = "tokenizer.json"
    unit: ClassVar[str] = "token"
    """What a token is called."""
    bos_id: int | None = None
    eos_id: int | None = None
    unknown_id: int | None = None

    @abstractmethod
    def __len__(self) -> int:
        """How many tokens there are."""

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The ids (T,) of a text, int32."""

    @abstractmethod
    def decode(self, tokens) -> str:
        """The text of ids (T,), without marks and padding."""

    @abstractmethod
    def piece_of(self, index: int | np.integer) -> str:
        """The piece of an id, as it is shown to a reader; "" if there is none."""

    @property
    def largest_id(self) -> int:
        """The largest id of a token; -1 if there is none."""
        return len(self) - 1

    def encode_long(self, text: str) -> np.ndarray:
        """The ids (N,) of a text that may have hundreds of megabytes, without marks around it."""
        return self.encode(text)

    def encode_ids(self, texts: Iterable[str]) -> Sequence[Sequence[int] | np.ndarray]:
        """The ids of each text, as many as there are."""
        return [self.encode(text) for text in texts]

    def encode_texts(
        self, texts: Iterable[str], max_length: int | None = None, pad_id: int = PADDING
    ) -> np.ndarray:
        """The ids of each text (B, T), cut to `max_length`; past a text's end is `pad_id`."""
        return pad(self.encode_ids(texts), max_length, pad_id)

    def pieces(self, text: str, max_length: int | None = None) -> list[str]:
        """The pieces of a text as they are shown to a reader, cut as `encode_texts` does it."""
        (ids,) = self.encode_texts([text], max_length)
        return [self.piece_of(index) for index in ids if index >= 0]

    def stream(self, prompt=()) -> Stream:
        """Something that turns ids into text as they come, after those of a prompt."""
        return Stream(self.decode, prompt)

    def words(self, text: str) -> list[str]:
        """What `unknown_in` tells of: the words of a text."""
        return text.split()

    def unknown_in(self, text: str) -> list[str]:
        """The words of a text that have the unknown token, each once, in order."""
        words = list(dict.fromkeys(self.words(text)))
        if self.unknown_id is None or not words:
            return []
        rows = zip(words, self.encode_ids(words), strict=True)
        return [word for word, ids in rows if self.unknown_id in ids]

    def byte_sizes(self) -> np.ndarray | None:
        """Bytes of text that each token stands for (V,), where that does not depend on the text."""
        return None

    def to_hugging_face(self) -> tuple[Any, ...]:
        """What a `tlite.pretrained.PretrainedTokenizer` with the same ids is made of.

        A `tokenizers.Tokenizer`, and its tokens of the roles pad, bos, eos, unk, mask, cls and sep.

        Raises:
            UserError: there is no such.
        """
        raise UserError(
            f"{type(self).__name__} has no counterpart in transformers: train with characters (a "
            "generator), tokenizer=Subwords() in the experiment's file (also a classifier), or "
            "--joint (a translator)"
        )

    def to_dict(self) -> dict[str, Any]:
        """What is saved, where that is JSON."""
        return {"kind": self.kind}

    @classmethod
    def from_dict(cls, content: Any) -> "Tokenizer":
        """The inverse of `to_dict`.

        Raises:
            ValueError, LookupError, TypeError, AttributeError: the content is none of it.
        """
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
        """What `save` wrote.

        Raises:
            UserError: the file can't be read, or has something else in it.
        """
        return read_saved(path, cls.from_dict)


def read_text(path: str | Path, make: Callable[[str], T], what: str) -> T:
    """What `make` makes of the text in a file.

    Raises:
        UserError: the file can't be read, or it is not `what` it should be.
    """
    try:
        return make(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not {what}: {error}") from error


def read_saved(path: str | Path, make: Callable[[Any], T]) -> T:
    """What `make` makes of the JSON in a tokenizer's file; errors are those of `read_text`."""
    what = "a tokenizer that tlite has saved"
    return read_text(path, lambda text: make(json.loads(text)), what)


def read_by_library(path: str | Path):
    """The `tokenizers.Tokenizer` of a tokenizer.json.

    Raises:
        UserError: it is damaged.
    """
    with needs_extra("text"):
        from tokenizers import Tokenizer
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"the tokenizer {path} is damaged: {error}") from error


@contextlib.contextmanager
def encoding_by_library() -> Iterator[None]:
    """Turn what the library raises of a text, in plain Exceptions, into a `UserError`."""
    try:
        yield
    except TypeError:  # what is no text
        raise
    except Exception as error:
        raise UserError(f"the tokenizer can't encode this text: {error}") from error
