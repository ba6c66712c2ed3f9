"""Tokens whose text is not known, by their numbers."""

from typing import Any

import numpy as np

from tlite.errors import UserError
from tlite.text.tokenizer import Tokenizer


class NumberTokenizer(Tokenizer):
    """A token is written as its number, with spaces between."""

    kind = "numbers"

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

    def piece_of(self, index: int | np.integer) -> str:
        return str(int(index))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "size": self.size}

    @classmethod
    def from_dict(cls, content: Any) -> "NumberTokenizer":
        if content["kind"] != cls.kind or type(content["size"]) is not int:
            raise ValueError("not a tokenizer of numbers")
        return cls(content["size"])
