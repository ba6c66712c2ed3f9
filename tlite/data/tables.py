"""Rows of tables, through Hugging Face `datasets`: files of your own, or a set on its hub."""

import csv
import glob
import logging
import warnings
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeVar

from tlite.data.files import explain, kind_of
from tlite.data.reading import check_file
from tlite.errors import UserError, needs_extra
from tlite.terminal import printable

Part = Literal["training", "validation", "test"]
Row = TypeVar("Row")


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
    options: dict[str, Any] = {}
    if kind in ("csv", "json"):
        options["encoding"] = encoding
    if kind == "csv":
        options["keep_default_na"] = False  # a text may be the word null
        options["index_col"] = False  # or a column too many would be taken for an index
        if ".tsv" in path.suffixes:
            options |= {"sep": "\t", "quoting": csv.QUOTE_NONE}
        if columns:
            options["column_names"] = list(columns)
    datasets = import_datasets()
    try:
        # Streaming reads the file as it is, without a copy in the cache of `datasets`.
        rows = datasets.load_dataset(
            kind, data_files=glob.escape(str(path)), split="train", streaming=True, **options
        )
        yield from rows
    except Exception as error:  # pandas', pyarrow's, or the codec's
        raise UserError(explain(path, kind, encoding, error, columns, max_megabytes)) from error


def hub_rows(name: str, split: str, stream: bool = False) -> Iterator[dict[str, Any]]:
    """The rows of a split of a set on huggingface.co, or of its folder here."""
    datasets = import_datasets()
    print(printable(f"reading {split} of the set {name}"), flush=True)
    try:
        yield from datasets.load_dataset(name, split=split, streaming=stream)
    except Exception as error:  # of the hub, the network, or a loader's own kind
        raise unreadable(name, split, error) from error


def unreadable(name: str, split: str, error: Exception) -> UserError:
    """In a sentence what the hub, the network or a loader has raised."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    if isinstance(error, ConnectionError):
        reason = "huggingface.co can't be reached"
    elif isinstance(error, FileNotFoundError):
        reason = "there is no such set, or it is not public"
    return UserError(f"can't read {split!r} of the set {name!r} ({reason})")


def need_columns(row: dict, columns: tuple[str, ...], where: str) -> None:
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


def check_fraction(fraction: float) -> None:
    if not 0 < fraction < 1:
        raise UserError(f"the validation fraction must be between 0 and 1, not {fraction}")


def import_datasets():
    with needs_extra("text"):
        import datasets
        import pandas.errors
    # pandas only warns where it drops columns of a line that has too many.
    warnings.filterwarnings("error", category=pandas.errors.ParserWarning)
    for name in ("datasets", "huggingface_hub"):  # what they log they also raise
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return datasets
