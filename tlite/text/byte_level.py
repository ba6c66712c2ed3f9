"""Text as bytes, and as pieces of bytes: every text has tokens, and comes back as it was."""

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tlite.errors import UserError

END = "<|endoftext|>"  # GPT-2's mark between documents
PART = 2**20  # characters of a part of a long text


class ByteTokenizer:
    """One token for each byte of UTF-8, 0..255; 256 is the end of a text."""

    file_name = "tokenizer.json"
    bos_id = eos_id = 256

    def __len__(self) -> int:
        return 257

    def encode(self, text: str) -> np.ndarray:
        """Token ids (T,), int32."""
        return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).astype(np.int32)

    def decode(self, tokens) -> str:
        """The text of ids (T,), without marks; bytes that are no character become U+FFFD."""
        return _bytes_of(tokens).decode("utf-8", "replace")

    def stream(self, prompt=()) -> SimpleNamespace:
        """Something that turns ids into text as they come; no piece ends within a character."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(_bytes_of(prompt))
        return SimpleNamespace(
            push=lambda tokens: decoder.decode(_bytes_of(tokens)),
            finish=lambda: decoder.decode(b"", final=True),
        )

    def piece_of(self, index: int | np.integer) -> str:
        """A byte as it is shown to a reader: the character that it alone is, or its number."""
        if index >= 256:
            return END if index == self.eos_id else ""
        seen = index < 128 and (chr(index).isprintable() or chr(index) in "\t\n")
        return chr(index) if seen else f"<0x{int(index):02X}>"

    def unknown_in(self, text: str) -> list[str]:
        """The characters that the tokenizer doesn't know: there are none."""
        return []

    def save(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps({"kind": "bytes"}), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "ByteTokenizer":
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"can't read {path}: {error.strerror}") from error
        except (ValueError, RecursionError):
            content = None
        if content != {"kind": "bytes"}:
            raise UserError(f"{path} is not a tokenizer of bytes that tlite has saved")
        return cls()


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


def _bytes_of(tokens) -> bytes:
    ids = np.asarray(tokens, np.int64).reshape(-1)
    return ids[(ids >= 0) & (ids < 256)].astype(np.uint8).tobytes()
