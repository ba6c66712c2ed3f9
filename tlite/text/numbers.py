"""Tokens whose text is not known, by their numbers."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tlite.errors import UserError


class NumberTokenizer:
    """A token is written as its number, with spaces between."""

    file_name = "tokenizer.json"

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def encode(self, text: str) -> np.ndarray:
        """The numbers in a text (T,), int32.

        Raises:
            UserError: there is something else in it.
        """
        for word in text.split():
            if not (word.isascii() and word.isdecimal()) or int(word[:20]) >= self.size:
                raise UserError(
                    f"of these tokens only the numbers are known: give numbers below {self.size}, "
                    f"with spaces between, not {word[:20]!r}"
                )
        return np.array([int(word) for word in text.split()], np.int32)

    def decode(self, tokens) -> str:
        """The numbers of the ids (T,)."""
        return " ".join(map(str, np.asarray(tokens).reshape(-1).tolist()))

    def stream(self, prompt=()) -> SimpleNamespace:
        """Something that turns ids into text as they come."""

        def push(tokens) -> str:
            return "".join(f" {token}" for token in np.asarray(tokens).reshape(-1).tolist())

        return SimpleNamespace(push=push, finish=str)

    def piece_of(self, index: int | np.integer) -> str:
        return str(int(index))

    def unknown_in(self, text: str) -> list[str]:
        return []

    def save(self, path: str | Path) -> None:
        content = {"kind": "numbers", "size": self.size}
        Path(path).write_text(json.dumps(content), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "NumberTokenizer":
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["kind"] == "numbers" and type(content["size"]) is int:
                return cls(content["size"])
        except OSError as error:
            raise UserError(f"can't read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise UserError(f"{path} is not a tokenizer of numbers that tlite has saved")
