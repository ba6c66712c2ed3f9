"""A tokenizer with one token for each character."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tlite.errors import UserError


class CharTokenizer:
    """Characters to 0..V-1 in code-point order; the unknown symbol comes last.

    Args:
        characters: what is known; repeats and order do not matter.
        unknown: one character that stands for every other one.
    """

    file_name = "tokenizer.json"

    def __init__(self, characters: str, unknown: str = "\N{REPLACEMENT CHARACTER}"):
        if len(unknown) != 1:
            raise ValueError(f"the unknown symbol must be one character, not {unknown!r}")
        self.unknown = unknown
        self.characters = "".join(sorted(set(characters) - {unknown})) + unknown
        self._codes = _code_points(self.characters[:-1])

    def __len__(self) -> int:
        return len(self.characters)

    @property
    def unknown_id(self) -> int:
        return len(self) - 1

    def encode(self, text: str) -> np.ndarray:
        """Token ids (T,), int32; what is not known becomes the unknown symbol."""
        codes = _code_points(text)
        at = np.searchsorted(self._codes, codes)
        known = np.append(self._codes, 0)[at] == codes
        return np.where(known & (at < self.unknown_id), at, self.unknown_id).astype(np.int32)

    def decode(self, tokens) -> str:
        """The characters of the ids (T,)."""
        return "".join(self.characters[t] for t in np.asarray(tokens).tolist())

    def stream(self, prompt=()) -> SimpleNamespace:
        """Something that turns ids into text as they come: no character takes more than one."""
        return SimpleNamespace(push=self.decode, finish=str)

    def unknown_in(self, text: str) -> list[str]:
        """The characters of a text that the tokenizer doesn't know, each once, in order."""
        return [c for c in dict.fromkeys(text) if c not in self.characters[:-1]]

    def save(self, path: str | Path) -> None:
        content = {
            "kind": "characters",
            "characters": self.characters[:-1],
            "unknown": self.unknown,
        }
        Path(path).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "CharTokenizer":
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(content["characters"], content["unknown"])
        except OSError as error:
            raise UserError(f"can't read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{path} is not a tokenizer that tlite has saved") from error


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
