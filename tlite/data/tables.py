"""Rows of tables, as dictionaries: files of your own in one pass, saved sets, or the hub's."""

import contextlib
import csv
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeVar

from tlite.data.files import kind_of
from tlite.data.reading import is_there, open_file, text_lines
from tlite.errors import UserError, needs_extra
from tlite.terminal import printable

Part = Literal["training", "validation", "test"]
Side = Literal["training", "validation"]
Row = TypeVar("Row")
SAVED = ("dataset_dict.json", "dataset_info.json")  # one of them is in what save_to_disk writes
END = "\0"  # a line after the last one: a quotation mark that is open still takes it in
SAMPLE = 1000  # rows of JSON Lines whose fields are a table's columns


def file_rows(
    path: Path, encoding: str = "utf-8", columns: tuple[str, ...] = (), *, any_size: bool = False
) -> Iterator[dict[str, Any]]:
    """The rows of a JSON Lines, CSV, TSV, Parquet or Arrow file, one after another.

    Args:
        columns: the names of a CSV's or TSV's columns, where its first line is a row.
        any_size: as it is not kept in memory.

    Raises:
        UserError: it is too large, or not what its ending says (the line is named where there is
            one).
    """
    if (kind := kind_of(path)) == "parquet":
        yield from parquet_rows(parquet_file(path), path)
    elif kind == "arrow":
        with open_file(path) as file, _of_pyarrow(path):
            for batch in _arrow(file)[1]:
                yield from batch.to_pylist()
    else:
        lines = text_lines(path, encoding, any_size=any_size)
        yield from _json_rows(lines, path) if kind == "json" else _csv_rows(lines, path, columns)


def _csv_rows(
    lines: Iterator[str], path: Path, columns: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    cells = _cells(lines, path)
    names = columns or _names(cells, path)
    for number, row in cells:
        if len(row) > len(names):
            told = f"line {number} has {len(row)} columns, not {len(names)}"
            raise UserError(f"{path} is not a table: {told}")
        yield dict(itertools.zip_longest(names, row))


def _cells(lines: Iterable[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row of a CSV or TSV, and the line that it ends in; empty lines are none."""
    of_row: list[str] = []  # its lines

    def noted() -> Iterator[str]:
        for line in itertools.chain(lines, [END]):
            of_row.append(line)
            yield line

    tabs = ".tsv" in path.suffixes
    csv.field_size_limit(2**31 - 1)  # for all of the process: a longer text is no fault anywhere
    rows = csv.reader(noted(), **({"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}))
    try:
        for row in rows:
            text, start = "".join(of_row), rows.line_num + 1 - len(of_row)
            of_row.clear()
            if text == END:
                return
            if text.endswith(END):
                told = f"the quotation mark in line {start} has no second one"
                raise UserError(f"{path} is not a table: {told}")
            if text.strip(" \r\n" if tabs else None):
                yield rows.line_num, row
    except csv.Error as error:
        told = f"line {rows.line_num} has a carriage return within"
        raise UserError(f"{path} is not a table: {told}") from error


def first_line(path: Path, encoding: str) -> tuple[str, ...]:
    """The cells of the first line of a CSV or TSV, as names; raises as `file_rows`."""
    return _names(_cells(text_lines(path, encoding), path), path)


def _names(rows: Iterator[tuple[int, list[str]]], path: Path) -> tuple[str, ...]:
    """What the first row calls the columns, by their numbers where it does not."""
    _, first = next(rows, (0, []))
    if not first:
        raise UserError(f"{path} is empty")
    names: list[str] = []
    for number, name in enumerate(first, 1):
        names.append(name if name and name not in names else numbered(number))
    return tuple(names)


def numbered(number: int) -> str:
    """The name of a column that has none."""
    return f"column {number}"


def _json_rows(lines: Iterator[str], path: Path) -> Iterator[dict[str, Any]]:
    """Objects, a line each or all in a list; a field that one has is a column of all."""
    rows = _objects(lines, path)
    sample = list(itertools.islice(rows, SAMPLE))
    if not sample:
        raise UserError(f"{path} is empty")
    names = dict.fromkeys(itertools.chain.from_iterable(sample))
    for row in itertools.chain(sample, rows):
        yield names | row


def _objects(lines: Iterator[str], path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if number == 1 and line.lstrip().startswith("["):
            whole = json_object(f'{{"rows": {line}{"".join(lines)}}}', f"{path}, a list,")
            rows = whole["rows"] if isinstance(whole["rows"], list) else [None]
            if not all(isinstance(row, dict) for row in rows):
                raise UserError(f"{path} is not a list of JSON objects")
            yield from rows
        elif line.strip():
            yield json_object(line, f"{path} is not JSON Lines: line {number}")


@contextlib.contextmanager
def _of_pyarrow(path: Path) -> Iterator[None]:
    """Turn what `pyarrow` raises, whose errors are of these kinds, into a sentence."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a whole {kind_of(path).capitalize()} file") from error


def _arrow(file: Any) -> tuple[Any, Iterable[Any]]:
    """The schema and the parts of an Arrow file, or of a stream such as `datasets` writes."""
    with needs_extra("text"):
        import pyarrow
    try:
        stream = pyarrow.ipc.open_stream(file)
        return stream.schema, stream
    except (OSError, ValueError):
        file.seek(0)
    whole = pyarrow.ipc.open_file(file)
    return whole.schema, map(whole.get_batch, range(whole.num_record_batches))


def json_object(line: str | bytes, where: str) -> dict[str, Any]:
    """The object that a line of JSON is.

    Raises:
        UserError: it is none; `where` begins the sentence.
    """
    try:
        text = line.decode() if isinstance(line, bytes) else line
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where} has half of a surrogate pair, which is no character") from error
    except RecursionError as error:
        raise UserError(f"{where} is nested too deeply") from error
    except ValueError as error:
        raise UserError(f"{where} is not JSON") from error
    if not isinstance(value, dict):
        raise UserError(f"{where} is not a JSON object")
    return value


def parquet_file(path: Path, columns: Sequence[str] = ()) -> Any:
    """A Parquet file that has columns of these names, as `pyarrow` has it.

    Raises:
        UserError: it has them not, or is damaged.
    """
    with needs_extra("text"):
        from pyarrow import parquet
    is_there(path)
    with _of_pyarrow(path):
        file = parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
    need_columns(file.schema_arrow.names, columns, str(path))
    return file


def parquet_rows(file: Any, path: Path, at_once: int = 1000, **which: Any) -> Iterator[dict]:
    """The rows of a Parquet file, or `which` `iter_batches` is asked for, some read at a time."""
    with _of_pyarrow(path):
        for batch in file.iter_batches(at_once, **which):
            yield from batch.to_pylist()


@contextlib.contextmanager
def reading_set(name: str, split: str) -> Iterator[None]:
    """Turn what `datasets` raises into a sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of the hub, the network, or a loader's own kind
        reason = _reason(error)
        if isinstance(error, ConnectionError):
            reason = "huggingface.co can't be reached"
        elif isinstance(error, FileNotFoundError):
            reason = "there is no such set, or it is not public"
        raise UserError(f"can't read {split!r} of the set {name!r} ({reason})") from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def hub_rows(name: str, split: str, stream: bool = False) -> Iterator[dict[str, Any]]:
    """The rows of a split of a set on huggingface.co, of its folder here, or of a saved one."""
    if not os.path.isdir(name):
        print(printable(f"reading {split} of the set {name}"), flush=True)
    with reading_set(name, split):
        yield from open_set(name, split, stream)


def open_set(name: str, split: str, stream: bool = False) -> Any:
    """A split as `datasets` has it. What `save_to_disk` has written of one set is its "train"."""
    datasets = import_datasets()
    if not is_saved(name):
        return datasets.load_dataset(name, split=split, streaming=stream)
    found = datasets.load_from_disk(name)
    known = found if isinstance(found, dict) else {"train": found, str(found.split): found}
    if split not in known:
        there = ", ".join(found) if isinstance(found, dict) else "train"
        raise UserError(f"{name} has no split {split!r}: it has {there}")
    return known[split]


def is_saved(folder: str | Path) -> bool:
    """Whether it is a folder of `save_to_disk`, of one set or of several splits."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in SAVED)


def splits_of(folder: str) -> list[str]:
    """The splits of a folder of `save_to_disk`, or of one with files such as train.csv.

    Raises:
        UserError: there are none.
    """
    datasets = import_datasets()
    try:
        if not is_saved(folder):
            return list(datasets.get_dataset_split_names(folder))
        found = datasets.load_from_disk(folder)
        return list(found) if isinstance(found, dict) else ["train"]
    except Exception as error:  # a loader's own kind
        told = f"{folder} is neither a folder of save_to_disk nor of tables ({_reason(error)})"
        raise UserError(told) from error


def features_of(path: Path) -> Any:
    """What `datasets` has written of the columns of a Parquet or Arrow file; None of others."""
    if (kind := kind_of(path)) == "parquet":
        schema = parquet_file(path).schema_arrow
    elif kind == "arrow":
        with open_file(path) as file, _of_pyarrow(path):
            schema = _arrow(file)[0]
    if kind not in ("parquet", "arrow") or b"huggingface" not in (schema.metadata or {}):
        return None
    return import_datasets().Features.from_arrow_schema(schema)


def need_columns(row: Iterable[str], columns: Iterable[str], where: str) -> None:
    """Raises a `UserError` that lists the columns there are, if one of these is not among them."""
    for column in columns:
        if column not in row:
            raise UserError(f"{where} has no column {column!r}: it has {', '.join(row)}")


def held_out(rows: Iterable[Row], fraction: float, *, held: bool) -> Iterator[Row]:
    """The share of the rows that is kept for validation, at even distances; or all others."""
    share = Fraction(str(fraction))
    for index, row in enumerate(rows):
        # A row is held out where its number times the share gets a new whole part.
        if (int((index + 1) * share) > int(index * share)) == held:
            yield row


def side_of(text: str, fraction: float) -> Side:
    """The side of a text, by its hash: that of equal texts is the same."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return "validation" if int.from_bytes(digest, "little") < fraction * 2**64 else "training"


def check_fraction(fraction: float) -> None:
    if not 0 < fraction < 1:
        raise UserError(f"the validation fraction must be between 0 and 1, not {fraction}")


def import_datasets():
    with needs_extra("text"):
        import datasets
    return datasets
