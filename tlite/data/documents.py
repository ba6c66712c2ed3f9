"""Documents of a source of any size, read in units of a few megabytes.

A unit is a stretch of a text file or of JSON Lines, a row group of Parquet, some rows of a saved
data set, or a shard of one on the hub. Units depend on the source alone. A compressed file (.gz)
can't be entered in the middle: it is one unit.

A text file is one document. A document is cut before the white space at the end of a line:
tokenizers split there too, so the tokens are those of the whole.
"""

import codecs
import io
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tlite.data.reading import (
    BYTE_ORDER_MARK,
    find,
    format_of,
    is_gzip,
    iter_bytes,
    open_file,
    parse_json_object,
)
from tlite.data.tables import (
    check_columns,
    dataset_errors,
    hash_split,
    hub_commit,
    is_saved_dataset,
    open_dataset,
    open_parquet,
)
from tlite.errors import UserError, printable

UNIT_BYTES = 2**23
UNIT_ROWS = 10_000  # of a saved data set
CHUNK_SIZE = 2**18  # bytes of a text that are read at a time, and characters of a chunk
MAX_LINE_BYTES = 2**28  # of JSON Lines
BATCH_ROWS = 64  # rows that are read at a time
READABLE_FORMATS = "text", "json", "parquet"
MAX_NAMES = 5  # skipped files that a warning names
SAMPLED_UNITS = 16  # units, at even distances, that a tokenizer is trained on

TrainingSplit = Literal["training", "validation"]


@dataclass(frozen=True)
class Source:
    """Source of the documents of a corpus."""

    name: str
    """Text file (.txt, also .gz), JSON Lines, Parquet, folder of these, folder of `save_to_disk`,
    or data set on huggingface.co."""
    field: str = "text"
    """Column with the text."""
    split: str = "train"
    """Split of a data set."""
    subset: str = ""
    """Configuration of a data set on the hub."""
    validation_fraction: float = 0.005
    """Fraction for validation: the end of each text file, from a new line on; elsewhere the
    documents whose hash is below it, so that copies are in one split."""


@dataclass(frozen=True)
class Unit:
    """Part of a source that is read at once."""

    format: Literal["text", "json", "parquet", "saved", "hub"]
    name: str
    start: int
    """First byte, row group, row or shard."""
    stop: int
    split: TrainingSplit | None = None
    """Split of a stretch of text; None: by the hash of each document."""
    begins: bool = True
    """The file, or its validation split, begins with this stretch of text."""
    ends: bool = True
    """The file, which is one document, ends with this stretch of text."""


class Chunk(NamedTuple):
    """A document, or a part of one that is too long to be encoded at once."""

    text: str
    split: TrainingSplit
    begins: bool
    ends: bool


class Documents:
    """The documents of a source, by units.

    Raises:
        UserError: there is no such source, it has no such field, or no documents.
    """

    def __init__(self, source: Source, unit_bytes: int = UNIT_BYTES):
        if not 0 <= source.validation_fraction < 1:
            raise UserError(
                f"the validation fraction must be at least 0 and below 1, not "
                f"{source.validation_fraction}"
            )
        self.source, path = source, Path(source.name)
        self._dataset: Any = None
        if is_saved_dataset(path):
            self.units = _split_range("saved", source.name, len(self._open_dataset()), UNIT_ROWS)
        elif os.path.lexists(path) or format_of(path) in READABLE_FORMATS:
            self.units = _file_units(source, _readable_files(path), unit_bytes)
        else:
            self.units = _split_range("hub", source.name, self._open_dataset(True).num_shards, 1)
        if not self.units:
            raise UserError(f"{source.name} has no documents")

    def fingerprint(self) -> list[list[Any]]:
        """Return name, size and modification time of each file; the commit of a set on the hub."""
        if self.units[0].format == "hub":
            return [[self.source.name, hub_commit(self.source.name, self.source.split)]]
        paths = [Path(name) for name in dict.fromkeys(unit.name for unit in self.units)]
        nested = (sorted(path.rglob("*")) if path.is_dir() else [path] for path in paths)
        files = filter(Path.is_file, itertools.chain.from_iterable(nested))
        return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yield the documents of a unit, without empty ones.

        Raises:
            UserError: the content has another format; the place is named if it is known.
        """
        if unit.format != "text":
            yield from split_documents(self._texts(unit), self.source.validation_fraction)
            return
        begins = unit.begins
        for block in _text_blocks(Path(unit.name), unit.start, unit.stop):
            yield Chunk(block, unit.split, begins, False)
            begins = False
        if unit.ends:
            yield Chunk("", unit.split, begins, True)

    def texts(self, num_bytes: int | None) -> Iterator[str]:
        """Yield all texts, or about `num_bytes` of the training split to train a tokenizer on.

        These are the beginnings of up to 16 units at even distances over the source.
        """
        if num_bytes is None:
            for unit in self.units:
                yield from (chunk.text for chunk in self.read(unit))
            return
        units = [unit for unit in self.units if unit.split != "validation"]
        number = min(len(units), SAMPLED_UNITS)
        for index in range(number):
            remaining = num_bytes // number
            for chunk in self.read(units[index * len(units) // number]):
                if chunk.split == "training":
                    yield chunk.text
                    remaining -= len(chunk.text.encode())
                if remaining <= 0:
                    break

    def _open_dataset(self, stream: bool = False) -> Any:
        """Open the column of a saved set, memory-mapped, or of one on the hub, as a stream."""
        source = self.source
        dataset = open_dataset(source.name, source.split, stream, source.subset)
        with dataset_errors(source.name, source.split):
            self._dataset = dataset.select_columns([source.field])
        return self._dataset

    def _texts(self, unit: Unit) -> Iterator[str]:
        """Yield the text of each row of a unit; "" for null."""
        for value, place in self._values(unit):
            if value is not None and not isinstance(value, str):
                kind = type(value).__name__
                raise UserError(f"{place} has no text under {self.source.field!r}, but a {kind}")
            yield value or ""

    def _values(self, unit: Unit) -> Iterator[tuple[Any, str]]:
        """Yield the value of the column in each row of a unit, and the row's place."""
        field, place = self.source.field, f"a row of {unit.name}"
        if unit.format == "json":
            for row, place in _json_rows(Path(unit.name), unit.start, unit.stop):
                check_columns(row, (field,), place)
                yield row[field], place
        elif unit.format == "parquet":
            with open_parquet(Path(unit.name), (field,)) as file:
                for batch in file.iter_batches(BATCH_ROWS, [unit.start], [field]):
                    yield from ((row[field], place) for row in batch.to_pylist())
        else:
            dataset = self._dataset
            with dataset_errors(self.source.name, self.source.split):
                if unit.format == "saved":
                    rows = dataset.select(range(unit.start, unit.stop))
                else:
                    rows = dataset.shard(dataset.num_shards, unit.start)
                for batch in rows.iter(BATCH_ROWS):
                    yield from ((value, place) for value in batch[field])


def split_documents(
    texts: Iterable[str], fraction: float, max_size: int = CHUNK_SIZE
) -> Iterator[Chunk]:
    """Yield documents with their splits; long ones are cut at ends of lines, empty ones left out.

    Args:
        max_size: characters of a chunk.
    """
    for text in texts:
        split, begin = hash_split(text, fraction), 0
        while len(text) - begin > max_size:
            line_end = text.rfind("\n", begin, begin + max_size)
            size = len(text[begin : max(line_end, begin)].rstrip()) or max_size
            yield Chunk(text[begin : begin + size], split, not begin, False)
            begin += size
        if text:
            yield Chunk(text[begin:], split, not begin, True)


# Units


def _readable_files(path: Path) -> list[Path]:
    """Return the file, or the readable files of a folder by name; others are warned of."""
    if path.is_dir():
        all_files = sorted(p for p in path.rglob("*") if p.is_file())
        files = [file for file in all_files if format_of(file) in READABLE_FORMATS]
        if skipped := [str(file.relative_to(path)) for file in all_files if file not in files]:
            names = ", ".join(skipped[:MAX_NAMES]) + ", ..." * (len(skipped) > MAX_NAMES)
            warning = f"warning: {len(skipped):,} files of {path} are not read: {names}"
            print(printable(warning), file=sys.stderr)
    else:
        files = [path] if format_of(path := find(str(path))) in READABLE_FORMATS else []
    if not files:
        raise UserError(f"{path} has none of the endings .txt, .jsonl, .json and .parquet")
    return files


def _file_units(source: Source, files: list[Path], unit_bytes: int) -> list[Unit]:
    due, units = 0.0, []  # bytes that validation lacks of the files so far
    for file in files:
        format = format_of(file)
        if format == "text":
            length = file.stat().st_size
            if is_gzip(file):
                length = sum(map(len, iter_bytes(file, unlimited=True)))
            due += length * source.validation_fraction
            texts = _text_units(file, length, length - min(round(due), length), unit_bytes)
            due -= sum(text.stop - text.start for text in texts if text.split == "validation")
            units += texts
        elif format == "parquet":
            with open_parquet(file, (source.field,)) as opened:
                units += _split_range("parquet", str(file), opened.num_row_groups, 1)
        elif is_gzip(file):
            units.append(Unit("json", str(file), 0, sys.maxsize))
        else:
            units += _split_range("json", str(file), file.stat().st_size, unit_bytes)
    return units


def _split_range(format: Any, name: str, size: int, step: int) -> list[Unit]:
    """Return units of `step` bytes, row groups, rows or shards of `size` in all."""
    borders = itertools.pairwise([*range(0, size, step), size])
    return [Unit(format, name, start, stop) for start, stop in borders]


def _text_units(path: Path, length: int, cut: int, unit_bytes: int) -> list[Unit]:
    """Return the units of a text file; the lines that begin in the first `cut` bytes are training.

    Units begin before the white space at the end of a line, the validation split with a line.
    """
    borders, validation_start = {0, length}, 0 if cut <= 0 else length
    with open_file(path) as file:
        if 0 < cut < length:
            validation_start = _next_line(file, cut)
            borders.add(validation_start)
        line = 0
        for position in range(unit_bytes, 0 if is_gzip(path) else length, unit_bytes):
            if position > line and (line := _next_line(file, position)) != validation_start:
                borders.add(_before_white_space(file, line))
    return [
        Unit(
            "text",
            str(path),
            start,
            stop,
            "training" if start < validation_start else "validation",
            begins=start in (0, validation_start),
            ends=stop == length,
        )
        for start, stop in itertools.pairwise(sorted(borders))
    ]


def _next_line(file: io.BufferedIOBase, start: int) -> int:
    """Seek the first line that begins at `start` or later, and return its position."""
    file.seek(max(start - 1, 0))
    while start and (content := file.readline(CHUNK_SIZE)) and not content.endswith(b"\n"):
        pass
    return file.tell()


def _before_white_space(file: io.BufferedIOBase, end: int, max_size: int = 256) -> int:
    """Return where the white space before `end` begins; `end` if it exceeds `max_size` bytes."""
    file.seek(max(end - max_size, 0))
    text = file.read(min(max_size, end)).decode(errors="ignore")
    return end - len(text[len(text.rstrip()) :].encode()) if text.strip() else end


# Content


def _text_blocks(path: Path, start: int, stop: int) -> Iterator[str]:
    """Yield a stretch of a text, some lines at a time; line ends become newlines.

    Raises:
        UserError: it is not UTF-8.
    """
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")(), translate=True)
    position, space = start, ""
    try:
        with open_file(path) as file:
            file.seek(start)
            while block := file.read(min(CHUNK_SIZE, stop - position)):
                block += file.readline(min(CHUNK_SIZE, stop - position - len(block)))
                content = block if position else block.removeprefix(BYTE_ORDER_MARK.encode())
                text = space + decoder.decode(content)
                position, space = position + len(block), text[len(text.rstrip()) :]
                if text := text[: len(text) - len(space)]:
                    yield text
        if text := space + decoder.decode(b"", final=True):
            yield text
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(f"{path} is not UTF-8 text: byte {byte:#04x} after {position:,}") from error


def _json_rows(path: Path, start: int, stop: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the objects on the lines that begin in [start, stop), and their places."""
    with open_file(path) as file:
        position = _next_line(file, start)
        while position < stop and (line := file.readline(MAX_LINE_BYTES)):
            place = f"the line at byte {position:,} of {path}"
            if position == 0:
                line = line.removeprefix(BYTE_ORDER_MARK.encode())
            if line := line.strip():
                yield parse_json_object(line, place), place
            position = file.tell()
