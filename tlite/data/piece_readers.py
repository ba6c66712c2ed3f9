"""Stretches of text files, JSON Lines, Parquet and data sets, read in constant memory."""

import codecs
import functools
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tlite.data.reading import is_there, pieces
from tlite.data.tables import import_datasets, open_set, unreadable
from tlite.errors import UserError, needs_extra

BLOCK = 2**18  # bytes of a text that are read at a time
LONGEST_LINE = 2**28  # bytes of a line of JSON
ROWS = 64  # of a table at a time
MARK = b"\xef\xbb\xbf"  # of the order of bytes, which some programs begin a file with


@contextmanager
def open_file(path: Path) -> Iterator[io.BufferedIOBase]:
    """The bytes of a regular file, unpacked if its name ends in .gz, with a sentence a fault."""
    if not is_there(path):
        raise UserError(f"can't read {path}: No such file or directory")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is not a whole gzip file") from error
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error


def unpacked_size(path: Path) -> int:
    """The bytes of a file; a packed one is read through for it."""
    return sum(map(len, pieces(path))) if path.suffix == ".gz" else path.stat().st_size


def text_blocks(path: Path, start: int, stop: int, size: int = BLOCK) -> Iterator[str]:
    """The lines of a text that begin in [start, stop), some at a time; line ends become newlines.

    White space at the end of some is given with the next ones, as `fragments` does.

    Raises:
        UserError: it is not UTF-8.
    """
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")(), translate=True)
    at, space = start, ""
    try:
        for place, block in line_blocks(path, start, stop, size):
            at, text = place, space + decoder.decode(block)
            space = text[len(text.rstrip()) :]
            if text := text[: len(text) - len(space)]:
                yield text
        if text := space + decoder.decode(b"", final=True):
            yield text
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text: after byte {at:,} it has {error.object[error.start]:#04x}"
        ) from error


def line_blocks(
    path: Path, start: int, stop: int, size: int = BLOCK
) -> Iterator[tuple[int, bytes]]:
    """The lines that begin in [start, stop), in blocks of whole lines if they fit, with places."""
    with open_file(path) as file:
        at = _next_line(file, start, size)
        inside = False  # a line
        while at < stop or inside:
            block = file.read(min(size, stop - at)) if at < stop else b""
            if not block.endswith(b"\n"):
                block += file.readline(size)
            if not block:
                return
            yield at, block.removeprefix(MARK) if at == 0 else block
            at, inside = at + len(block), not block.endswith(b"\n")


def _next_line(file: io.BufferedIOBase, start: int, size: int = BLOCK) -> int:
    """Go to where the first line from `start` on begins."""
    if start:
        file.seek(start - 1)
        while (part := file.readline(size)) and not part.endswith(b"\n"):
            pass
    return file.tell()


def json_texts(path: Path, field: str, start: int, stop: int) -> Iterator[str]:
    """The texts of the JSON Lines that begin in [start, stop), but those that are null or empty.

    Raises:
        UserError: a line is no JSON object, or has no text under this name; its place is named.
    """
    with open_file(path) as file:
        at = _next_line(file, start)
        while at < stop and (line := file.readline(LONGEST_LINE)):
            where = f"the line at byte {at:,} of {path}"
            if len(line) == LONGEST_LINE:
                raise UserError(f"{where} is too long: one document a line is read (JSON Lines)")
            if at == 0:
                line = line.removeprefix(MARK)
            if line.strip():
                yield from _text_of(_object(line, where), field, where)
            at = file.tell()


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON") from error
    if not isinstance(content, dict):
        raise UserError(f"{where} is not a JSON object")
    return content


def _text_of(row: dict[str, Any], field: str, where: str) -> Iterator[str]:
    """The text of a row, if it has one."""
    if field not in row:
        raise UserError(f"{where} has no field {field!r}: it has {', '.join(map(str, row))[:200]}")
    text = row[field]
    if text is not None and not isinstance(text, str):
        raise UserError(f"{where} has no text under {field!r}, but a {type(text).__name__}")
    if text:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"{where} has half of a surrogate pair, which is no character"
            ) from error
        yield text


def parquet_file(path: Path, field: str) -> Any:
    """A Parquet file that has a column of this name.

    Raises:
        UserError: it has none, or is damaged.
    """
    with needs_extra("text"):
        import pyarrow.parquet
    is_there(path)
    try:
        file = pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
        names = file.schema_arrow.names
    except (OSError, ValueError) as error:  # pyarrow's own are of these kinds
        raise UserError(f"{path} is not a whole Parquet file") from error
    if field not in names:
        raise UserError(f"{path} has no column {field!r}: it has {', '.join(names)}")
    return file


def parquet_texts(path: Path, field: str, start: int, stop: int) -> Iterator[str]:
    """The texts of some row groups."""
    with parquet_file(path, field) as file:
        try:
            for batch in file.iter_batches(ROWS, list(range(start, stop)), [field]):
                for row in batch.to_pylist():
                    yield from _text_of(row, field, f"a row of {path}")
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is not a whole Parquet file") from error


@contextmanager
def _of_datasets(name: str, split: str) -> Iterator[None]:
    """Turn what `datasets` raises into a sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of the hub, the network, or a loader's own kind
        raise unreadable(name, split, error) from error


@functools.cache
def hub_set(name: str, subset: str, split: str, field: str) -> Any:
    """A split of a set on the hub (or of a folder of its form), to be read shard by shard."""
    datasets = import_datasets()
    with _of_datasets(name, split):
        found = datasets.load_dataset(name, subset or None, split=split, streaming=True)
        first = next(iter(found), {})
    if first and field not in first:
        raise UserError(f"{name} has no column {field!r}: it has {', '.join(first)}")
    return found.select_columns([field]) if first else found


@functools.cache
def _saved(name: str, split: str, field: str) -> Any:
    """A data set that `save_to_disk` has written, memory-mapped."""
    with _of_datasets(name, split):
        found = open_set(name, split)
    if field not in found.column_names:
        names = ", ".join(found.column_names)
        raise UserError(f"{name} has no column {field!r}: it has {names}")
    return found.select_columns([field])


def saved_set(name: str, split: str, field: str) -> tuple[int, int]:
    """Rows and bytes of a data set that `save_to_disk` has written."""
    found = _saved(name, split, field)
    return len(found), found.data.nbytes


def set_texts(
    name: str, subset: str | None, split: str, field: str, start: int, stop: int
) -> Iterator[str]:
    """The texts of some rows of a saved set (subset None), or of some shards of one on the hub."""
    if subset is None:
        rows = _saved(name, split, field).select(range(start, stop)).iter(ROWS)
    else:
        found = hub_set(name, subset, split, field)
        shards = (found.shard(found.num_shards, index) for index in range(start, stop))
        rows = (rows for shard in shards for rows in shard.iter(ROWS))
    with _of_datasets(name, split):
        for batch in rows:
            for text in batch[field]:
                yield from _text_of({field: text}, field, f"a row of {name}")
