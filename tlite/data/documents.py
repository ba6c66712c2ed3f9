"""Texts of any size as documents, in pieces that processes read apart from each other.

A piece is a stretch of a text file or of JSON Lines, a row group of Parquet, some rows of a saved
data set, or a shard of one on the hub. The pieces depend on the source alone, not on the number of
processes. What is packed (.gz) can't be entered in the middle: it is one piece.

A text file is one document. Its pieces begin every 8 MB, at the next line; there alone its tokens
may be others than those of the whole text, by one or two.
"""

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tlite.data.files import find, kind_of
from tlite.data.piece_readers import (
    hub_set,
    json_texts,
    parquet_file,
    parquet_texts,
    saved_set,
    set_texts,
    text_blocks,
    unpacked_size,
)
from tlite.data.tables import Side, is_saved, side_of
from tlite.errors import UserError

SIZE = 2**23  # bytes of a piece
ROWS = 10_000  # of a piece of a saved set
END = 2**62  # of a file whose size is not known
LONGEST = 2**18  # characters that are encoded at once
KINDS = ("text", "json", "parquet")


@dataclass(frozen=True)
class Source:
    """Where documents come from."""

    name: str
    """A text file (.txt, also .gz), JSON Lines, Parquet, a folder of these, a folder of
    `save_to_disk`, or a set on huggingface.co."""
    field: str = "text"
    """The column with the text."""
    split: str = "train"
    """Of a set: its split."""
    subset: str = ""
    """Of a set on the hub: its configuration."""
    validation_fraction: float = 0.005
    """The share for validation. Of text files it is the last part of the text, from a new line on;
    elsewhere the documents whose hash falls below it, so that copies stay on one side."""


@dataclass(frozen=True)
class Piece:
    """What one process reads at a time."""

    kind: Literal["text", "json", "parquet", "saved", "hub"]
    name: str
    start: int
    """The first byte, row group, row or shard."""
    stop: int
    size: int
    """Bytes, for the progress; 0 if they are not known."""
    side: Side | None = None
    """None: the hash of each document tells."""
    ends: bool = True
    """Of a text: the file, which is one document, ends with it."""


class Fragment(NamedTuple):
    """A document, or a part of one that is too long to be encoded at once."""

    text: str
    ends: bool
    side: Side


def plan(source: Source, size: int = SIZE) -> list[Piece]:
    """The pieces of a source, in their order.

    Raises:
        UserError: there is no such source, it has no such field, or no documents.
    """
    if not 0 <= source.validation_fraction < 1:
        raise UserError(
            f"the validation fraction must be at least 0 and below 1, not "
            f"{source.validation_fraction}"
        )
    path = Path(source.name)
    if is_saved(path):
        rows, bytes_of_all = saved_set(source.name, source.split, source.field)
        found = _pieces("saved", source.name, rows, ROWS, bytes_of_all)
    elif path.is_dir() or os.path.lexists(path) or _has_ending(source.name):
        found = _file_pieces(source, _files(path), size)
    else:
        shards = hub_set(source.name, source.subset, source.split, source.field).num_shards
        found = _pieces("hub", source.name, shards, 1, 0)
    if not found:
        raise UserError(f"{source.name} has no documents")
    return found


def source_files(found: Iterable[Piece]) -> list[list[Any]]:
    """Name, size and time of change of each file of some pieces, to see that they stay the same."""
    paths = [Path(name) for name in dict.fromkeys(piece.name for piece in found)]
    inside = (sorted(path.rglob("*")) if path.is_dir() else [path] for path in paths)
    files = [path for some in inside for path in some if path.is_file()]
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def read_piece(source: Source, piece: Piece) -> Iterator[Fragment]:
    """The documents of a piece, empty ones left out.

    Raises:
        UserError: it is not what its name says; where there is one, the place is named.
    """
    if piece.kind == "text":
        for block in text_blocks(Path(piece.name), piece.start, piece.stop):
            yield Fragment(block, False, piece.side or "training")
        if piece.ends:
            yield Fragment("", True, piece.side or "training")
        return
    if piece.kind == "json":
        texts = json_texts(Path(piece.name), source.field, piece.start, piece.stop)
    elif piece.kind == "parquet":
        texts = parquet_texts(Path(piece.name), source.field, piece.start, piece.stop)
    else:
        subset = source.subset if piece.kind == "hub" else None
        settings = piece.name, subset, source.split, source.field
        texts = set_texts(*settings, piece.start, piece.stop)
    yield from fragments(texts, source.validation_fraction)


def fragments(texts: Iterable[str], fraction: float, longest: int = LONGEST) -> Iterator[Fragment]:
    """Documents on their sides, long ones cut where a line ends.

    The white space goes to what follows, as the rules of GPT-2's kind join it to the next word: so
    the tokens are those of the whole.
    """
    for text in texts:
        side, begin = side_of(text, fraction), 0
        while len(text) - begin > longest:
            line_end = text.rfind("\n", begin, begin + longest)
            size = len(text[begin : max(line_end, begin)].rstrip()) or longest
            yield Fragment(text[begin : begin + size], False, side)
            begin += size
        if text:
            yield Fragment(text[begin:], True, side)


def _has_ending(name: str) -> bool:
    try:
        return kind_of(Path(name)) in KINDS
    except UserError:
        return False


def _files(path: Path) -> list[Path]:
    """The file, or the files of a folder that can be read, by name."""
    if not path.is_dir():
        path = find(str(path))
        if kind_of(path) not in KINDS:
            raise UserError(f"{path} is neither a text (.txt), JSON Lines nor Parquet")
        return [path]
    found = sorted(p for p in path.rglob("*") if p.is_file() and _has_ending(p.name))
    if not found:
        raise UserError(f"{path} has no file with the ending .txt, .jsonl, .json or .parquet")
    return found


def _file_pieces(source: Source, files: list[Path], size: int) -> list[Piece]:
    texts = [file for file in files if kind_of(file) == "text"]
    sizes = {file: unpacked_size(file) for file in texts}
    total = sum(sizes.values())
    cut, found = total - round(total * source.validation_fraction), []
    for file in files:
        if (kind := kind_of(file)) == "text":
            found += _text_pieces(file, sizes[file], cut, size)
            cut -= sizes[file]
        elif kind == "json":
            length = file.stat().st_size
            if file.suffix == ".gz":
                found.append(Piece("json", str(file), 0, END, length))
            else:
                found += _pieces("json", str(file), length, size, length)
        else:
            groups = parquet_file(file, source.field).metadata.num_row_groups
            found += _pieces("parquet", str(file), groups, 1, file.stat().st_size)
    return found


def _text_pieces(file: Path, length: int, cut: int, size: int) -> list[Piece]:
    """Those of a text file, of which the first `cut` bytes are for training."""
    borders = {0, length} if file.suffix == ".gz" else {*range(0, length, size), length}
    if 0 < cut < length:
        borders.add(cut)
    return [
        Piece(
            "text",
            str(file),
            start,
            stop,
            stop - start,
            "training" if start < cut else "validation",
            ends=stop == length,
        )
        for start, stop in itertools.pairwise(sorted(borders))
    ]


def _pieces(kind: Any, name: str, number: int, step: int, size: int) -> list[Piece]:
    """Pieces of `step` rows (or bytes, groups, shards) each, of `number` in all."""
    borders = [*range(0, number, step), number]
    return [
        Piece(kind, name, start, stop, size * (stop - start) // number)
        for start, stop in itertools.pairwise(borders)
    ]
