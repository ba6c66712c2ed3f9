"""One piece of a source as tokens in files of its own; what the processes of `prepare` do."""

import functools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tlite.data.documents import Fragment, Piece, Source, read_piece
from tlite.data.manifest import BEGINNINGS, TYPES
from tlite.errors import UserError, disk_errors, needs_extra

AT_ONCE = 2**17  # characters that are encoded together

Encode = Callable[[list[str]], Iterable[np.ndarray]]


@dataclass(frozen=True)
class Coding:
    """How texts become tokens."""

    kind: str
    """characters, bytes or pretrained."""
    path: str
    """The tokenizer's file."""
    dtype: str
    end_id: int | None
    """Follows each document."""


@dataclass
class Encoded:
    """What a piece has come to, for each side."""

    files: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    documents: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)


def encode_piece(source: Source, coding: Coding, folder: Path, piece: Piece) -> Encoded:
    """Write the tokens of a piece to new files in `folder`, one for each side that it has.

    Raises:
        UserError: the piece can't be read or has a text that can't be encoded, or the disk is full.
    """
    encode, dtype = load_encoder(coding.kind, coding.path), TYPES[coding.dtype]
    end = b"" if coding.end_id is None else np.array(coding.end_id, dtype).tobytes()
    done, files = Encoded(), {}
    try:
        for group in grouped(read_piece(source, piece)):
            rows = encode([fragment.text for fragment in group])
            for fragment, ids in zip(group, rows, strict=True):
                side = fragment.side
                if side not in files:
                    files[side] = _new_file(folder, BEGINNINGS[side])
                    done.files[side] = files[side].name
                    for count in (done.tokens, done.documents, done.bytes):
                        count[side] = 0
                last = end if fragment.ends else b""
                with disk_errors(folder):
                    files[side].write(ids.astype(dtype).tobytes() + last)
                done.tokens[side] += len(ids) + len(last) // dtype.itemsize
                done.documents[side] += fragment.ends
                done.bytes[side] += len(fragment.text.encode())
    finally:
        for file in files.values():
            with disk_errors(folder):
                file.close()
    return done


def _new_file(folder: Path, prefix: str):
    with disk_errors(folder):
        return tempfile.NamedTemporaryFile(dir=folder, prefix=f"{prefix}-", delete=False)


def grouped(fragments: Iterable[Fragment], size: int = AT_ONCE) -> Iterator[list[Fragment]]:
    """Fragments together until they have `size` characters: what is encoded in one call."""
    group, length = [], 0
    for fragment in fragments:
        group.append(fragment)
        length += len(fragment.text)
        if length >= size:
            yield group
            group, length = [], 0
    if group:
        yield group


@functools.lru_cache(1)
def load_encoder(kind: str, path: str) -> Encode:
    """The function from texts to their ids that a tokenizer's file describes.

    No text has marks in it: "<|endoftext|>" typed in a document is encoded as it is spelled.
    """
    if kind == "bytes":
        return lambda texts: (np.frombuffer(text.encode(), np.uint8) for text in texts)
    if kind == "characters":
        from tlite.text.characters import CharTokenizer

        tokenizer = CharTokenizer.load(path)
        return lambda texts: map(tokenizer.encode, texts)
    return _pretrained_encoder(path)


def _pretrained_encoder(path: str) -> Encode:
    with needs_extra("text"):
        from tokenizers import Tokenizer
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"the tokenizer {path} is damaged: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True

    def encode(texts: list[str]) -> Iterator[np.ndarray]:
        try:
            found = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:
            raise UserError(f"the tokenizer can't encode a text: {error}") from error
        return (np.array(encoding.ids, np.uint32) for encoding in found)

    return encode
