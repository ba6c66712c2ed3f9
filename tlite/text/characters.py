"""Tokenizers that need no training: of characters, of bytes and of numbers."""

from pathlib import Path
from typing import Any

import numpy as np

from tlite.errors import UserError, needs_extra
from tlite.text.subwords import END, byte_pairs
from tlite.text.tokenizer import Tokenizer, read_saved


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
        self.unknown_id = len(self.characters) - 1
        self._codes = _code_points(self.characters[:-1])

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> np.ndarray:
        """Token ids (T,), int32; what is not known becomes the unknown symbol."""
        codes = _code_points(text)
        at = np.searchsorted(self._codes, codes)
        known = np.append(self._codes, 0)[at] == codes
        return np.where(known & (at < self.unknown_id), at, self.unknown_id).astype(np.int32)

    def decode(self, tokens) -> str:
        """The characters of the ids (T,), without padding."""
        return "".join(self.characters[t] for t in np.asarray(tokens).tolist() if t >= 0)

    def piece_of(self, index: int | np.integer) -> str:
        return self.characters[index] if index >= 0 else ""

    def words(self, text: str) -> list[str]:
        return list(text)

    def byte_sizes(self) -> np.ndarray:
        """Bytes of UTF-8 of each character (V,)."""
        sizes = [len(c.encode("utf-8", "surrogatepass")) for c in self.characters]
        return np.array(sizes, np.int64)

    def to_hugging_face(self) -> tuple[Any, ...]:
        """Byte-pair encoding without merges: each character is a token, with the id it had."""
        with needs_extra("text"):
            from tokenizers import Tokenizer, decoders, models
        ids = {character: index for index, character in enumerate(self.characters)}
        content = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token=self.unknown))
        content.decoder = decoders.Fuse()
        return content, {"unk": self.unknown}

    def to_dict(self) -> dict[str, Any]:
        known = self.characters[:-1]
        return {"kind": self.kind, "characters": known, "unknown": self.unknown}


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


class ByteTokenizer(Tokenizer):
    """One token for each byte of UTF-8, 0..255; 256 is the end of a text."""

    kind, unit = "bytes", "byte"
    bos_id = eos_id = 256

    def __len__(self) -> int:
        return 257

    def encode(self, text: str) -> np.ndarray:
        """Token ids (T,), int32."""
        return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).astype(np.int32)

    def decode(self, tokens) -> str:
        """The text of ids (T,), without marks; bytes that are no character become U+FFFD."""
        ids = np.asarray(tokens, np.int64).reshape(-1)
        content = ids[(ids >= 0) & (ids < 256)].astype(np.uint8).tobytes()
        return content.decode("utf-8", "replace")

    def piece_of(self, index: int | np.integer) -> str:
        """A byte as it is shown to a reader: the character that it alone is, or its number."""
        if not 0 <= index < 256:
            return END if index == self.eos_id else ""
        seen = index < 128 and (chr(index).isprintable() or chr(index) in "\t\n")
        return chr(index) if seen else f"<0x{int(index):02X}>"

    def byte_sizes(self) -> np.ndarray:
        """One, and none for the end of a text (257,)."""
        return np.array([1] * 256 + [0], np.int64)

    def to_hugging_face(self) -> tuple[Any, ...]:
        """Byte-pair encoding without merges: each byte is a token, with the id it had.

        In GPT-2's files the letter of a byte is itself if it can be seen, else one from 256 on.
        """
        seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = iter(range(256, 512))
        letters = [chr(byte if byte in seen else next(others)) for byte in range(256)]
        content = byte_pairs(vocab={letter: i for i, letter in enumerate(letters)}, merges=[])
        content.add_special_tokens([END])
        return content, {"bos": END, "eos": END}


class NumberTokenizer(Tokenizer):
    """Tokens whose text is not known: each is written as its number, with spaces between."""

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
        """The numbers of the ids (T,), without padding."""
        return " ".join(str(t) for t in np.asarray(tokens).reshape(-1).tolist() if t >= 0)

    def piece_of(self, index: int | np.integer) -> str:
        return str(int(index)) if index >= 0 else ""

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "size": self.size}


KINDS = {known.kind: known for known in (CharTokenizer, ByteTokenizer, NumberTokenizer)}


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of characters, bytes or numbers that was saved in a file.

    Raises:
        UserError: the file can't be read, or has something else in it.
    """
    return read_saved(path, lambda saved: KINDS[saved["kind"]].from_dict(saved))
