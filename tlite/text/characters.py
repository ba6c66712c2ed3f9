"""Tokenizers that need no training: of characters, of bytes and of numbers."""

from pathlib import Path
from typing import Any

import numpy as np

from tlite.errors import UserError, needs_extra
from tlite.text.tokenizer import END, Tokenizer, read_saved


class CharTokenizer(Tokenizer):
    """Characters to ids in code-point order; the last id is shared by all unknown characters.

    Args:
        characters: known characters in any order, repeated or not.
    """

    kind, unit, separator = "characters", "character", ""
    unknown = "\N{REPLACEMENT CHARACTER}"

    def __init__(self, characters: str):
        self.characters = "".join(sorted(set(characters) - {self.unknown})) + self.unknown
        self.unknown_id = len(self.characters) - 1
        self._codes = _code_points(self.characters[:-1])

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> np.ndarray:
        """Return the ids (T,) of the characters, int32."""
        codes = _code_points(text)
        ids = np.searchsorted(self._codes, codes)
        is_known = (np.append(self._codes, 0)[ids] == codes) & (ids < self.unknown_id)
        return np.where(is_known, ids, self.unknown_id).astype(np.int32)

    def id_to_token(self, index: int | np.integer) -> str:
        return self.characters[index] if 0 <= index < len(self.characters) else ""

    def words(self, text: str) -> list[str]:
        return list(text)

    def byte_sizes(self) -> np.ndarray:
        sizes = [len(c.encode("utf-8", "surrogatepass")) for c in self.characters]
        return np.array(sizes, np.int64)

    def to_hugging_face(self) -> tuple[Any, ...]:
        """Return byte-pair encoding without merges: each character is a token with its id."""
        with needs_extra("text"):
            from tokenizers import Tokenizer, decoders, models
        ids = {character: index for index, character in enumerate(self.characters)}
        content = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token=self.unknown))
        content.decoder = decoders.Fuse()
        return content, {"unk": self.unknown}

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "characters": self.characters[:-1]}


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


class ByteTokenizer(Tokenizer):
    """Bytes of UTF-8 to ids 0 to 255; 256 ends a text."""

    kind, unit = "bytes", "byte"
    bos_id = eos_id = 256

    def __len__(self) -> int:
        return 257

    def encode(self, text: str) -> np.ndarray:
        """Return the bytes (T,) of a text, int32."""
        return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).astype(np.int32)

    def decode(self, tokens) -> str:
        """Return the text of ids (T,) without end tokens; invalid bytes become U+FFFD."""
        ids = np.asarray(tokens, np.int64).reshape(-1)
        content = ids[(ids >= 0) & (ids < 256)].astype(np.uint8).tobytes()
        return content.decode("utf-8", "replace")

    def id_to_token(self, index: int | np.integer) -> str:
        """Return the ASCII character of a byte if it is printable, else its number."""
        if not 0 <= index < 256:
            return END if index == self.eos_id else ""
        is_printable = index < 128 and (chr(index).isprintable() or chr(index) in "\t\n")
        return chr(index) if is_printable else f"<0x{int(index):02X}>"

    def byte_sizes(self) -> np.ndarray:
        return np.array([1] * 256 + [0], np.int64)

    def to_hugging_face(self) -> tuple[Any, ...]:
        """Return byte-pair encoding without merges: each byte is a token with its id.

        GPT-2's files write a byte as its Latin-1 character if that is visible, else as one from
        256 on.
        """
        from tlite.text.subwords import byte_pairs

        visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = iter(range(256, 512))
        letters = [chr(byte if byte in visible else next(others)) for byte in range(256)]
        content = byte_pairs(vocab={letter: i for i, letter in enumerate(letters)}, merges=[])
        content.add_special_tokens([END])
        return content, {"bos": END, "eos": END}


class NumberTokenizer(Tokenizer):
    """Ids of an unknown vocabulary: as text, they are numbers separated by spaces."""

    kind = "numbers"

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def encode(self, text: str) -> np.ndarray:
        """Return the numbers in a text (T,), int32.

        Raises:
            UserError: a word is not a number below the size of the vocabulary.
        """
        for word in text.split():
            if not (word.isascii() and word.isdecimal()) or int(word[:20]) >= self.size:
                raise UserError(
                    f"{word[:20]!r} is not a number below {self.size}: the tokens of this corpus "
                    "are known only by their ids"
                )
        return np.array([int(word) for word in text.split()], np.int32)

    def id_to_token(self, index: int | np.integer) -> str:
        return str(int(index)) if index >= 0 else ""

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "size": self.size}


KINDS = {"characters": CharTokenizer, "bytes": ByteTokenizer, "numbers": NumberTokenizer}


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a saved tokenizer of characters, bytes or numbers; errors are those of `read_saved`."""
    return read_saved(path, lambda content: KINDS[content["kind"]].from_dict(content))
