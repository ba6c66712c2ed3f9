"""Rows of tables, through Hugging Face `datasets`: files of your own, saved sets, or its hub."""

import contextlib
import csv
import glob
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from tlite.data.files import explain, kind_of
from tlite.data.reading import check_file, is_there
from tlite.errors import UserError, needs_extra
from tlite.terminal import printable

Part = Literal["training", "validation", "test"]
Side = Literal["training", "validation"]
Row = TypeVar("Row")
SAVED = ("dataset_dict.json", "dataset_info.json")  # one of them is in what save_to_disk writes


def file_rows(
    path: Path, encoding: str, columns: tuple[str, ...] = (), max_megabytes: int | None = None
) -> Iterator[dict[str, Any]]:
    """The rows of a JSON Lines, CSV, TSV, Parquet or Arrow file.

    Args:
        columns: the names of a CSV's or TSV's columns, where its first line does not have them.

    Raises:
        UserError: it is too large, or not what its ending says (the line is named where there is
            one).
    """
    kind = kind_of(path)
    check_file(path, max_megabytes if kind in ("csv", "json") else None)
    try:
        rows = _file(path, encoding, columns)
        yield from _strict(rows) if kind == "csv" else rows
    except UserError:
        raise
    except Exception as error:  # pandas', pyarrow's, or the codec's
        raise UserError(explain(path, kind, encoding, error, columns, max_megabytes)) from error


def _strict(rows: Iterable[Row]) -> Iterator[Row]:
    """Rows of a CSV; pandas only warns where it drops columns of a line that has too many."""
    import pandas.errors

    rows = iter(rows)
    while True:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", category=pandas.errors.ParserWarning)
            some = list(islice(rows, 100))
        if not some:
            return
        yield from some


def _file(path: Path, encoding: str = "utf-8", columns: tuple[str, ...] = ()) -> Any:
    kind, options = kind_of(path), {}
    if kind in ("csv", "json"):
        options["encoding"] = encoding
    if kind == "csv":
        options["keep_default_na"] = False  # a text may be the word null
        options["index_col"] = False  # or a column too many would be taken for an index
        if ".tsv" in path.suffixes:
            options |= {"sep": "\t", "quoting": csv.QUOTE_NONE}
        if columns:
            options["column_names"] = list(columns)
    # Streaming reads the file as it is, without a copy in the cache of `datasets`.
    files = glob.escape(str(path))
    return import_datasets().load_dataset(
        kind, data_files=files, split="train", streaming=True, **options
    )


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
        import pyarrow.parquet
    is_there(path)
    try:
        file = pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
    except (OSError, ValueError) as error:  # pyarrow's own are of these kinds
        raise UserError(f"{path} is not a whole Parquet file") from error
    need_columns(file.schema_arrow.names, columns, str(path))
    return file


def parquet_rows(file: Any, path: Path, at_once: int = 1000, **which: Any) -> Iterator[dict]:
    """The rows of a Parquet file, or `which` `iter_batches` is asked for, some read at a time."""
    try:
        for batch in file.iter_batches(at_once, **which):
            yield from batch.to_pylist()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a whole Parquet file") from error


@contextlib.contextmanager
def reading_set(name: str, split: str) -> Iterator[None]:
    """Turn what `datasets` raises into a sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of the hub, the network, or a loader's own kind
        raise unreadable(name, split, error) from error


def hub_rows(name: str, split: str, stream: bool = False) -> Iterator[dict[str, Any]]:
    """The rows of a split of a set on huggingface.co, of its folder here, or of a saved one."""
    if not os.path.isdir(name):
        print(printable(f"reading {split} of the set {name}"), flush=True)
    try:
        yield from open_set(name, split, stream)
    except UserError:
        raise
    except Exception as error:  # of the hub, the network, or a loader's own kind
        raise unreadable(name, split, error) from error


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
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(
            f"{folder} is neither a folder of save_to_disk nor of tables ({reason})"
        ) from error


def names_of_classes(source: Callable[[], Any], column: str) -> dict[str, str]:
    """The names that `datasets` knows of a column's numbers, {"0": "negative", ...}; or none."""
    try:
        feature = (source().features or {}).get(column)
    except Exception:  # what is wrong is told where the rows are read
        return {}
    return {str(number): name for number, name in enumerate(getattr(feature, "names", []))}


def open_table(path: Path) -> Any:
    """A Parquet or Arrow file as `datasets` has it; of others nothing is known beside their rows.

    Raises:
        ValueError: it is another kind of file.
    """
    if kind_of(path) not in ("parquet", "arrow"):
        raise ValueError(f"{path} says nothing of its columns")
    return _file(path)


def unreadable(name: str, split: str, error: Exception) -> UserError:
    """In a sentence what the hub, the network or a loader has raised."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    if isinstance(error, ConnectionError):
        reason = "huggingface.co can't be reached"
    elif isinstance(error, FileNotFoundError):
        reason = "there is no such set, or it is not public"
    return UserError(f"can't read {split!r} of the set {name!r} ({reason})")


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
