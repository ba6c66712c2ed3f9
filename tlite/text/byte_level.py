"""Text as bytes, and as pieces of bytes: every text has tokens, and comes back as it was."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from tlite.errors import needs_extra
from tlite.text.tokenizer import HuggingFace, Tokenizer

END = "<|endoftext|>"  # GPT-2's mark between documents
PART = 2**20  # characters of a part of a long text


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
        if index >= 256:
            return END if index == self.eos_id else ""
        seen = index < 128 and (chr(index).isprintable() or chr(index) in "\t\n")
        return chr(index) if seen else f"<0x{int(index):02X}>"

    def byte_sizes(self) -> np.ndarray:
        """One, and none for the end of a text (257,)."""
        return np.array([1] * 256 + [0], np.int64)

    def to_hugging_face(self) -> HuggingFace:
        """Byte-pair encoding without merges: each byte is a token, with the id it had."""
        ids = {letter: index for index, letter in enumerate(_letters())}
        content = byte_pairs(vocab=ids, merges=[])
        content.add_special_tokens([END])
        settings = {"clean_up_tokenization_spaces": False}
        return HuggingFace(content, {"bos": END, "eos": END}, settings)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @classmethod
    def from_dict(cls, content: Any) -> "ByteTokenizer":
        if content != cls().to_dict():
            raise ValueError("not a tokenizer of bytes")
        return cls()


def byte_pairs(**pieces: Any):
    """Byte-pair encoding of bytes, as GPT-2's: a `tokenizers.Tokenizer`.

    Args:
        pieces: those of `tokenizers.models.BPE`; without them they can be learned.
    """
    with needs_extra("text"):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    content = Tokenizer(models.BPE(**pieces))
    content.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    content.decoder = decoders.ByteLevel()
    return content


def parts(text: str, size: int = PART) -> Iterator[str]:
    """A long text in parts of about `size` characters, whose pieces are those of the whole.

    GPT-2's rule cuts a text before the spaces between words in any case; so do we, before a line's
    end that follows a letter or mark.
    """
    begin = 0
    while len(text) - begin > size:
        end = LINE_END.search(text, begin + size)
        if not end:
            break
        yield text[begin : end.start()]
        begin = end.start()
    yield text[begin:]


LINE_END = re.compile(r"(?<=\S)\n")


def _letters() -> Iterator[str]:
    """The letter that stands for each byte in GPT-2's files: itself if it can be seen."""
    others = iter(range(256, 512))
    for byte in range(256):
        seen = 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255
        yield chr(byte if seen else next(others))
