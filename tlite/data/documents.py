"""Texts of any size as documents, in pieces that processes read apart from each other.

A piece is a stretch of a text file or of JSON Lines, a row group of Parquet, some rows of a saved
data set, or a shard of one on the hub. The pieces depend on the source alone, not on the number of
processes. What is packed (.gz) can't be entered in the middle: it is one piece.

A text file is one document. Where it is cut, as a long document is, the white space at the end of
a line goes to what follows: there tokenizers cut too, so the tokens are those of the whole.
"""

import codecs
import functools
import io
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tlite.data.reading import (
    MARK,
    find,
    is_packed,
    json_object,
    kind_of,
    open_file,
    pieces,
)
from tlite.data.tables import (
    Side,
    hub_commit,
    is_saved,
    need_columns,
    open_set,
    parquet_file,
    reading_set,
    side_of,
)
from tlite.errors import UserError, printable

SIZE = 2**23  # bytes of a piece
BLOCK = 2**18  # bytes of a text that are read at a time, and characters that are encoded at once
LONGEST_LINE = 2**28  # bytes of a line of JSON
ROWS = 10_000  # of a piece of a saved set
AT_ONCE = 64  # rows that are read at a time
END = 2**62  # of a file whose size is not known
READABLE = "text", "json", "parquet"
SHOWN = 5  # skipped files whose names a warning has


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
    """The share for validation. Of each text file it is the last part, from a new line on;
    elsewhere the documents whose hash falls below it, so that copies stay on one side."""


@dataclass(frozen=True)
class Piece:
    """What one process reads at a time."""

    kind: Literal["text", "json", "parquet", "saved", "hub"]
    name: str
    start: int
    """The first byte, row group, row or shard."""
    stop: int
    side: Side | None = None
    """None: the hash of each document tells."""
    begins: bool = True
    """Of a text: the file, or its part for validation, begins with it."""
    ends: bool = True
    """Of a text: the file, which is one document, ends with it."""


class Fragment(NamedTuple):
    """A document, or a part of one that is too long to be encoded at once."""

    text: str
    side: Side
    begins: bool
    ends: bool


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
    _set.cache_clear()  # it may have changed since this process read it last
    if is_saved(path):
        found = _pieces("saved", source.name, len(_set(source)), ROWS)
    elif os.path.lexists(path) or kind_of(path) in READABLE:
        found = _file_pieces(source, _files(path), size)
    else:
        found = _pieces("hub", source.name, _set(source).num_shards, 1)
    if not found:
        raise UserError(f"{source.name} has no documents")
    return found


def source_files(source: Source, found: Sequence[Piece]) -> list[list[Any]]:
    """Name, size and time of change of each file of some pieces, to see that they stay the same; of
    a set on the hub its commit."""
    if found[0].kind == "hub":
        return [[source.name, hub_commit(source.name, source.split)]]
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
        side, begins = piece.side or "training", piece.begins
        for block in _text_blocks(Path(piece.name), piece.start, piece.stop):
            yield Fragment(block, side, begins, False)
            begins = False
        if piece.ends:
            yield Fragment("", side, begins, True)
        return
    yield from fragments(_texts(source, piece), source.validation_fraction)


def fragments(texts: Iterable[str], fraction: float, longest: int = BLOCK) -> Iterator[Fragment]:
    """Documents on their sides, long ones cut where a line ends."""
    for text in texts:
        side, begin = side_of(text, fraction), 0
        while len(text) - begin > longest:
            line_end = text.rfind("\n", begin, begin + longest)
            size = len(text[begin : max(line_end, begin)].rstrip()) or longest
            yield Fragment(text[begin : begin + size], side, not begin, False)
            begin += size
        if text:
            yield Fragment(text[begin:], side, not begin, True)


# Which pieces there are


def _files(path: Path) -> list[Path]:
    """The file, or the files of a folder that can be read, by name."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file())
        found = [file for file in files if kind_of(file) in READABLE]
        others = (file for file in files if kind_of(file) not in READABLE)
        if skipped := [str(file.relative_to(path)) for file in others]:
            shown = ", ".join(skipped[:SHOWN]) + ", ..." * (len(skipped) > SHOWN)
            warning = f"warning: {len(skipped):,} files of {path} are not read: {shown}"
            print(printable(warning), file=sys.stderr)
    else:
        found = [path] if kind_of(path := find(str(path))) in READABLE else []
    if not found:
        raise UserError(f"{path} has none of the endings .txt, .jsonl, .json and .parquet")
    return found


def _file_pieces(source: Source, files: list[Path], size: int) -> list[Piece]:
    lengths = {file: file.stat().st_size for file in files if kind_of(file) == "text"}
    packed = [file for file in lengths if is_packed(file)]  # it is read through
    lengths |= {file: sum(map(len, pieces(file, any_size=True))) for file in packed}
    held, found = 0.0, []  # bytes that validation still needs of the files so far
    for file in files:
        if (kind := kind_of(file)) == "text":
            held += lengths[file] * source.validation_fraction
            cut = lengths[file] - min(round(held), lengths[file])
            found += (texts := _text_pieces(file, lengths[file], cut, size))
            held -= sum(text.stop - text.start for text in texts if text.side == "validation")
        elif kind == "parquet":
            with parquet_file(file, (source.field,)) as opened:
                found += _pieces("parquet", str(file), opened.num_row_groups, 1)
        elif is_packed(file):
            found.append(Piece("json", str(file), 0, END))
        else:
            found += _pieces("json", str(file), file.stat().st_size, size)
    return found


def _pieces(kind: Any, name: str, number: int, step: int) -> list[Piece]:
    """Pieces of `step` rows (or bytes, groups, shards) each, of `number` in all."""
    borders = itertools.pairwise([*range(0, number, step), number])
    return [Piece(kind, name, start, stop) for start, stop in borders]


def _text_pieces(path: Path, length: int, cut: int, size: int) -> list[Piece]:
    """Those of a text file, of which the lines that begin in the first `cut` bytes are to train on.

    They begin where a line ends, before its white space; but the part for validation at a line.
    """
    borders, part = {0, length}, 0 if cut <= 0 else length
    with open_file(path) as file:
        if 0 < cut < length:
            part = _next_line(file, cut)
            borders.add(part)
        last = 0
        for place in range(size, 0 if is_packed(path) else length, size):
            if place > last and (last := _next_line(file, place)) != part:
                borders.add(_before_space(file, last))
    return [
        Piece(
            "text",
            str(path),
            start,
            stop,
            "training" if start < part else "validation",
            begins=start in (0, part),
            ends=stop == length,
        )
        for start, stop in itertools.pairwise(sorted(borders))
    ]


def _next_line(file: io.BufferedIOBase, start: int) -> int:
    """Go to where the first line from `start` on begins."""
    file.seek(max(start - 1, 0))
    while start and (part := file.readline(BLOCK)) and not part.endswith(b"\n"):
        pass
    return file.tell()


def _before_space(file: io.BufferedIOBase, end: int, most: int = 256) -> int:
    """Where the white space begins that ends at a place; that place if it is longer than `most`."""
    file.seek(max(end - most, 0))
    text = file.read(min(most, end)).decode(errors="ignore")
    return end - len(text[len(text.rstrip()) :].encode()) if text.strip() else end


# What is in a piece


def _text_blocks(path: Path, start: int, stop: int) -> Iterator[str]:
    """A stretch of a text, some lines at a time; line ends become newlines.

    Raises:
        UserError: it is not UTF-8.
    """
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")(), translate=True)
    at, space = start, ""
    try:
        with open_file(path) as file:
            file.seek(start)
            while block := file.read(min(BLOCK, stop - at)):
                block += file.readline(min(BLOCK, stop - at - len(block)))
                text = space + decoder.decode(block if at else block.removeprefix(MARK.encode()))
                at, space = at + len(block), text[len(text.rstrip()) :]
                if text := text[: len(text) - len(space)]:
                    yield text
        if text := space + decoder.decode(b"", final=True):
            yield text
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text: after byte {at:,} it has {error.object[error.start]:#04x}"
        ) from error


def _values(source: Source, piece: Piece) -> Iterator[tuple[Any, str]]:
    """What stands in the column of a piece's rows, and where each is."""
    path, places, where = Path(piece.name), range(piece.start, piece.stop), f"a row of {piece.name}"
    if piece.kind == "json":
        with open_file(path) as file:
            at = _next_line(file, piece.start)
            while at < piece.stop and (line := file.readline(LONGEST_LINE)):
                where = f"the line at byte {at:,} of {path}"
                if line := (line if at else line.removeprefix(MARK.encode())).strip():
                    need_columns(row := json_object(line, where), (source.field,), where)
                    yield row[source.field], where
                at = file.tell()
    elif piece.kind == "parquet":
        with parquet_file(path, (source.field,)) as file:
            for batch in file.iter_batches(AT_ONCE, [*places], [source.field]):
                yield from ((row[source.field], where) for row in batch.to_pylist())
    else:
        found = _set(source)
        with reading_set(source.name, source.split):
            saved = piece.kind == "saved"
            shards = (found.shard(found.num_shards, index) for index in places)
            for part in [found.select(places)] if saved else shards:
                for batch in part.iter(AT_ONCE):
                    yield from ((value, where) for value in batch[source.field])


def _texts(source: Source, piece: Piece) -> Iterator[str]:
    """The texts in the rows of a piece; "" where there is null."""
    for value, where in _values(source, piece):
        if value is not None and not isinstance(value, str):
            kind = type(value).__name__
            raise UserError(f"{where} has no text under {source.field!r}, but a {kind}")
        yield value or ""


@functools.cache
def _set(source: Source) -> Any:
    """The column of a saved set, memory-mapped; or of one on the hub (or of a folder of its form),
    to be read shard by shard."""
    stream = not is_saved(source.name)
    found = open_set(source.name, source.split, stream, source.subset or None)
    with reading_set(source.name, source.split):
        return found.select_columns([source.field])
