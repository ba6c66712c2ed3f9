"""A tokenizer with one token for each character."""

from typing import Any

import numpy as np

from tlite.errors import needs_extra
from tlite.text.tokenizer import HuggingFace, Tokenizer


class CharTokenizer(Tokenizer):
    """Characters to 0..V-1 in code-point order; the unknown symbol comes last.

    Args:
        characters: what is known; repeats and order do not matter.
        unknown: one character that stands for every other one.
    """

    kind, unit = "characters", "character"

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

    def piece_of(self, index: int | np.integer) -> str:
        return self.characters[index]

    def words(self, text: str) -> list[str]:
        return list(text)

    def byte_sizes(self) -> np.ndarray:
        """Bytes of UTF-8 of each character (V,)."""
        sizes = [len(c.encode("utf-8", "surrogatepass")) for c in self.characters]
        return np.array(sizes, np.int64)

    def to_hugging_face(self) -> HuggingFace:
        """Byte-pair encoding without merges: each character is a token, with the id it had."""
        with needs_extra("text"):
            from tokenizers import Tokenizer, decoders, models
        ids = {character: index for index, character in enumerate(self.characters)}
        content = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token=self.unknown))
        content.decoder = decoders.Fuse()
        settings = {"clean_up_tokenization_spaces": False}
        return HuggingFace(content, {"unk": self.unknown}, settings)

    def to_dict(self) -> dict[str, Any]:
        known = self.characters[:-1]
        return {"kind": self.kind, "characters": known, "unknown": self.unknown}

    @classmethod
    def from_dict(cls, content: Any) -> "CharTokenizer":
        return cls(content["characters"], content["unknown"])


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
