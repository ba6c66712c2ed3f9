"""Documents of a source of any size, read in units of a few megabytes.

A unit is a stretch of a text file or of JSON Lines, a row group of Parquet, some rows of a saved
data set, or a shard of one on the hub. Units depend on the source alone. A compressed file (.gz)
can't be read from the middle: it is one unit.

Each split of a text file is one document. A document is cut before the white space at the end of a
line: tokenizers split there too, so the tokens are those of the whole.
"""

import codecs
import io
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
    is_saved_dataset,
    open_dataset,
    open_parquet,
)
from tlite.errors import UserError, printable

UNIT_BYTES = 2**23
UNIT_ROWS = 10_000  # of a saved data set
CHUNK_SIZE = 2**18  # bytes of a text read at a time, and characters in a chunk of a document
MAX_LINE_BYTES = 2**28  # of JSON Lines
BATCH_ROWS = 64  # rows that are read at a time
READABLE_FORMATS = "text", "json", "parquet"
MAX_NAMES = 5  # skipped files that a warning names
SAMPLED_UNITS = 16  # evenly spaced units that a tokenizer is trained on

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
    """Fraction of the validation split: the last lines of each text file; in other formats the
    documents with a hash below it, so that duplicates are in the same split."""


class Chunk(NamedTuple):
    """A document, or a part of one that is too long to be encoded at once."""

    text: str
    split: TrainingSplit
    begins: bool
    ends: bool


@dataclass(frozen=True)
class Unit:
    """Part of a source that is read at once; a preparation can resume after any unit."""

    name: str
    """Name of the file or data set."""
    read: Callable[[], Iterator[Chunk]]
    """Function that yields its documents, without empty ones; errors of content are `UserError`s
    that name the place if it is known."""
    has_training: bool = True


def list_units(source: Source, unit_bytes: int = UNIT_BYTES) -> list[Unit]:
    """Return the units of a source in order.

    Args:
        unit_bytes: size of a unit of text or JSON Lines.

    Raises:
        UserError: there is no such source, it has no such field, or no documents.
    """
    if not 0 <= (fraction := source.validation_fraction) < 1:
        raise UserError(f"the validation fraction must be at least 0 and below 1, not {fraction}")
    path = Path(source.name)
    is_saved = is_saved_dataset(path)
    if not is_saved and (os.path.lexists(path) or format_of(path) in READABLE_FORMATS):
        if source.subset or source.split != "train":
            raise UserError(f"--split and --subset are for data sets: {path} is read whole")
        units = _file_units(source, _readable_files(path), unit_bytes)
    else:
        units = _dataset_units(source, is_saved)
    if not units:
        raise UserError(f"{source.name} has no documents")
    return units


def source_fingerprint(source: Source, units: Sequence[Unit]) -> list[list[Any]]:
    """Return name, size and modification time of each file, or a hub data set's commit."""
    paths = [Path(name) for name in dict.fromkeys(unit.name for unit in units)]
    if not os.path.lexists(paths[0]):
        from huggingface_hub import dataset_info

        with dataset_errors(source.name, source.split):
            return [[source.name, dataset_info(source.name).sha]]
    nested = (sorted(path.rglob("*")) if path.is_dir() else [path] for path in paths)
    files = filter(Path.is_file, itertools.chain.from_iterable(nested))
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def sample_texts(units: Sequence[Unit], num_bytes: int | None) -> Iterator[str]:
    """Yield texts to train a tokenizer on.

    Args:
        num_bytes: about this many bytes of the training split, from the beginnings of up to 16
            evenly spaced units; None: all texts of both splits, rows with newlines between them.
    """
    if num_bytes is None:
        yield from (append_newline(chunk).text for unit in units for chunk in unit.read())
        return
    units = [unit for unit in units if unit.has_training]
    number = min(len(units), SAMPLED_UNITS)
    for index in range(number):
        remaining = num_bytes // number
        for chunk in units[index * len(units) // number].read():
            if chunk.split == "training":
                yield chunk.text
                remaining -= len(chunk.text.encode())
            if remaining <= 0:
                break


def append_newline(chunk: Chunk) -> Chunk:
    """End a row with a newline, which separates rows if the tokenizer has no end token.

    The last chunk of a text file is empty, and stays so.
    """
    is_end_of_row = chunk.ends and chunk.text and not chunk.text.endswith("\n")
    return chunk._replace(text=chunk.text + "\n") if is_end_of_row else chunk


def split_documents(texts: Iterable[str], fraction: float) -> Iterator[Chunk]:
    """Yield documents with their splits; long ones are cut at ends of lines, empty ones left out.

    Args:
        fraction: size of the validation split, relative to all documents.
    """
    for text in texts:
        split, begin = hash_split(text, fraction), 0
        while len(text) - begin > CHUNK_SIZE:
            line_end = text.rfind("\n", begin, begin + CHUNK_SIZE)
            size = len(text[begin : max(line_end, begin)].rstrip()) or CHUNK_SIZE
            yield Chunk(text[begin : begin + size], split, not begin, False)
            begin += size
        if text:
            yield Chunk(text[begin:], split, not begin, True)


# Units


def _readable_files(path: Path) -> list[Path]:
    """Return the file, or the sorted readable files of a folder; a warning names the others."""
    is_folder = path.is_dir()
    all_files = sorted(filter(Path.is_file, path.rglob("*"))) if is_folder else [find(str(path))]
    files = [file for file in all_files if format_of(file) in READABLE_FORMATS]
    skipped = [file for file in all_files if format_of(file) not in READABLE_FORMATS]
    if is_folder and skipped:
        names = ", ".join(str(f.relative_to(path)) for f in skipped[:MAX_NAMES])
        names += ", ..." * (len(skipped) > MAX_NAMES)
        warning = f"warning: {len(skipped):,} files of {path} are not read: {names}"
        print(printable(warning), file=sys.stderr)
    if not files:
        raise UserError(f"{path} has none of the endings .txt, .jsonl, .json and .parquet")
    return files


def _file_units(source: Source, files: list[Path], unit_bytes: int) -> list[Unit]:
    due, units = 0.0, []  # `due`: bytes of the files so far that validation has yet to get
    for file in files:
        if (format := format_of(file)) == "text":
            length = file.stat().st_size
            if is_gzip(file):
                length = sum(map(len, iter_bytes(file, unlimited=True)))
            due += length * source.validation_fraction
            validation_start = max(length - round(due), 0)
            if 0 < validation_start < length:
                with open_file(file) as opened:
                    validation_start = _next_line(opened, validation_start)
            due -= length - validation_start
            units += _text_units(file, length, validation_start, unit_bytes)
        elif format == "parquet":
            with open_parquet(file, (source.field,)) as opened:
                groups = range(opened.num_row_groups)
            units += (_row_unit(source, file, _parquet_rows, group) for group in groups)
        else:
            ranges = [(0, sys.maxsize)]
            if not is_gzip(file):
                starts = range(0, file.stat().st_size, unit_bytes)
                ranges = [(start, start + unit_bytes) for start in starts]
            units += (_row_unit(source, file, _json_rows, *stretch) for stretch in ranges)
    return units


def _row_unit(source: Source, name: str | Path, read_rows: Callable, *arguments: Any) -> Unit:
    """Return a unit of the rows of `read_rows(name, field, *arguments)`."""

    def read() -> Iterator[Chunk]:
        rows = read_rows(name, source.field, *arguments)
        return split_documents(_texts(rows, source.field), source.validation_fraction)

    return Unit(str(name), read)


def _dataset_units(source: Source, is_saved: bool) -> list[Unit]:
    """Return units of rows of a saved, memory-mapped data set, or the shards of one on the hub."""
    dataset = open_dataset(source.name, source.split, not is_saved, source.subset)
    with dataset_errors(source.name, source.split):
        dataset = dataset.select_columns([source.field])
    if is_saved:
        borders = itertools.pairwise([*range(0, len(dataset), UNIT_ROWS), len(dataset)])
        parts = [dataset.select(range(start, stop)) for start, stop in borders]
    else:
        parts = [dataset.shard(dataset.num_shards, i) for i in range(dataset.num_shards)]
    return [_row_unit(source, source.name, _dataset_rows, source.split, part) for part in parts]


def _text_units(path: Path, length: int, validation_start: int, unit_bytes: int) -> list[Unit]:
    """Return the units of a text file.

    A unit begins before the white space at the end of a line; the validation split begins with a
    line.
    """
    borders, line = {0, validation_start, length}, 0
    with open_file(path) as file:
        for position in range(unit_bytes, 0 if is_gzip(path) else length, unit_bytes):
            if position > line and (line := _next_line(file, position)) != validation_start:
                borders.add(_before_white_space(file, line))

    def read(start: int, stop: int) -> Iterator[Chunk]:
        split = "training" if start < validation_start else "validation"
        begins = start in (0, validation_start)
        for block in _text_blocks(path, start, stop):
            yield Chunk(block, split, begins, False)
            begins = False
        if stop in (validation_start, length):
            yield Chunk("", split, begins, True)

    return [
        Unit(str(path), partial(read, start, stop), start < validation_start)
        for start, stop in itertools.pairwise(sorted(borders))
    ]


def _next_line(file: io.BufferedIOBase, start: int) -> int:
    """Seek to the first line that begins at `start` or later, and return its position."""
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
    """Yield a stretch of a UTF-8 text, some lines at a time; line ends become newlines."""
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
        place = position + len(block) - len(error.object) + error.start
        raise UserError(f"{path} is not UTF-8 text: {byte:#04x} at byte {place:,}") from error


def _json_rows(path: Path, field: str, start: int, stop: int) -> Iterator[tuple[Any, str]]:
    """Yield the column of the objects on lines that begin in [start, stop), and their places."""
    with open_file(path) as file:
        position = _next_line(file, start)
        while position < stop and (line := file.readline(MAX_LINE_BYTES)):
            place = f"the line at byte {position:,} of {path}"
            if position == 0:
                line = line.removeprefix(BYTE_ORDER_MARK.encode())
            if line := line.strip():
                check_columns(row := parse_json_object(line, place), (field,), place)
                yield row[field], place
            position = file.tell()


def _parquet_rows(path: Path, field: str, group: int) -> Iterator[tuple[Any, str]]:
    with open_parquet(path, (field,)) as file:
        for batch in file.iter_batches(BATCH_ROWS, [group], [field]):
            yield from ((row[field], f"a row of {path}") for row in batch.to_pylist())


def _dataset_rows(name: str, field: str, split: str, rows: Any) -> Iterator[tuple[Any, str]]:
    with dataset_errors(name, split):
        for batch in rows.iter(BATCH_ROWS):
            yield from ((value, f"a row of {name}") for value in batch[field])


def _texts(rows: Iterable[tuple[Any, str]], field: str) -> Iterator[str]:
    """Yield the text of each row; "" for null."""
    for value, place in rows:
        if not isinstance(value, str | None):
            kind = type(value).__name__
            raise UserError(f"{place}: the column {field!r} has a value of type {kind}, not a text")
        yield value or ""
