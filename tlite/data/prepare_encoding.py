"""One piece of a source as tokens in files of its own; what the processes of `prepare` do."""

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from tlite.data.documents import Fragment, Piece, Source, read_piece
from tlite.data.manifest import TYPES, Manifest
from tlite.errors import UserError
from tlite.text.tokenizer import encoding_by_library, read_by_library

AT_ONCE = 2**17  # characters that are encoded together
BEFORE = "a"  # a letter stands for the text before a fragment

Encode = Callable[[list[Fragment]], Iterable[np.ndarray]]


def encode_piece(source: Source, corpus: Manifest, folder: Path, task: tuple[int, Piece]) -> int:
    """Write the tokens of each side of a piece, and at last its totals; returns the text's bytes.

    Args:
        corpus: says how texts become tokens.
        task: the piece's number, by which its files in the folder are called, and the piece.

    Raises:
        UserError: the piece can't be read, or has a text that can't be encoded.
    """
    number, piece = task
    dtype, tokenizer = TYPES[corpus.dtype], corpus.tokenizer
    encode = load_encoder(tokenizer.kind, tokenizer.path)
    end = b"" if corpus.end_id is None else np.array(corpus.end_id, dtype).tobytes()
    totals: dict[str, Counter] = {}
    files = {}
    with contextlib.ExitStack() as opened:
        for group in grouped(read_piece(source, piece)):
            for (text, side, _, ends), ids in zip(group, encode(group), strict=True):
                if side not in files:
                    path = tokens_path(folder, number, side)
                    files[side], totals[side] = opened.enter_context(path.open("wb")), Counter()
                last = end if ends else b""
                files[side].write(ids.astype(dtype).tobytes() + last)
                tokens, size = len(ids) + len(last) // dtype.itemsize, len(text.encode())
                totals[side].update(tokens=tokens, documents=int(ends), bytes=size)
    new = _totals_path(folder, number).with_suffix(".new")
    new.write_text(json.dumps(totals), encoding="utf-8")
    new.replace(_totals_path(folder, number))
    return sum(total["bytes"] for total in totals.values())


def finished(folder: Path, number: int, width: int) -> dict[str, dict[str, int]] | None:
    """How many tokens, documents and bytes of text are in a piece, by side; None where it is not
    there, whose tokens have `width` bytes each.

    Nothing of a piece waits for the disk: after a loss of power the sizes tell what is missing.
    """
    try:
        totals = json.loads(_totals_path(folder, number).read_text(encoding="utf-8"))
        sizes = {side: tokens_path(folder, number, side).stat().st_size for side in totals}
    except (FileNotFoundError, ValueError):
        return None
    whole = all(size == totals[side]["tokens"] * width for side, size in sizes.items())
    return totals if whole else None


def tokens_path(folder: Path, number: int, side: str) -> Path:
    """Where the tokens of a side of a piece are."""
    return folder / f"{number}.{side}"


def _totals_path(folder: Path, number: int) -> Path:
    return folder / f"{number}.json"


def grouped(fragments: Iterable[Fragment]) -> Iterator[list[Fragment]]:
    """Fragments together until they have `AT_ONCE` characters: what is encoded in one call."""
    group, length = [], 0
    for fragment in fragments:
        group.append(fragment)
        length += len(fragment.text)
        if length >= AT_ONCE:
            yield group
            group, length = [], 0
    if group:
        yield group


@functools.lru_cache(1)
def load_encoder(kind: str, path: str) -> Encode:
    """The function from fragments to their ids that a tokenizer's file describes.

    No text has marks in it: "<|endoftext|>" typed in a document is encoded as it is spelled.
    """
    if kind == "bytes":
        return lambda group: (np.frombuffer(f.text.encode(), np.uint8) for f in group)
    if kind == "characters":
        from tlite.text.characters import CharTokenizer

        tokenizer = CharTokenizer.load(path)
        return lambda group: (tokenizer.encode(fragment.text) for fragment in group)
    return _pretrained_encoder(path)


def _pretrained_encoder(path: str) -> Encode:
    """Some tokenizers begin each text with a mark of their own, Llama's with the "▁" of a word.

    So a fragment that goes on with a document is encoded behind a letter, as the text before it has
    one, and the letter's tokens are left out.
    """
    tokenizer = read_by_library(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True

    def ids_of(texts: list[str]) -> list[list[int]]:
        with encoding_by_library():
            found = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def encode(group: list[Fragment]) -> Iterator[np.ndarray]:
        rows = ids_of([(BEFORE if known and not f.begins else "") + f.text for f in group])
        for fragment, ids in zip(group, rows, strict=True):
            if known and not fragment.begins:
                joined = ids[: len(known)] != known  # in the middle of a word
                ids = ids_of([fragment.text])[0] if joined else ids[len(known) :]
            yield np.array(ids, np.uint32)

    try:
        known = ids_of([BEFORE])[0]
    except UserError:
        known = []
    return encode
