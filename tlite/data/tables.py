"""Rows of tables and data sets, the detection of their columns, and splits for validation."""

import contextlib
import csv
import hashlib
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeVar

from tlite.data.reading import (
    FORMATS,
    format_of,
    is_regular_file,
    is_table,
    parse_json_object,
    suffix_of,
    text_lines,
)
from tlite.errors import UserError, first_line, needs_extra, printable

Row = TypeVar("Row")
SAVED_FILES = ("dataset_dict.json", "dataset_info.json")  # `save_to_disk` writes one of them
TEXT_NAMES = (
    "text", "review", "sentence", "content", "body", "comment", "message", "document", "question",
    "tweet", "review_body", "review_text", "reviewtext",
)  # fmt: skip
LABEL_NAMES = (
    "label", "labels", "class", "category", "stars", "rating", "star_rating", "overall",
    "sentiment", "polarity", "topic", "intent", "emotion", "target",
)  # fmt: skip
PAIR_NAMES = ("source", "target"), ("src", "tgt"), ("src", "trg")
# ISO 639-1, and ISO 639-2 for some; without id and no, which name a column of numbers.
LANGUAGES = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy "
    "da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu "
    "hy hz ia ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg "
    "li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn nr nv ny oc oj om or os "
    "pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te "
    "tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu ara ces chi "
    "cze dan deu dut ell eng fin fra fre ger gre heb hin hun ita jpn kor nld nor pol por ron rum "
    "rus spa swe tur ukr vie zho"
)
REGION = re.compile(r"_([a-z]{2}|arab|cyrl|hans|hant|latn)$")  # of de_at, zh_hant


def file_rows(
    path: Path, encoding: str = "utf-8", columns: Sequence[str] = (), *, unlimited: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON Lines, CSV, TSV or Parquet file.

    Args:
        columns: column names for CSV or TSV that has no header line.
        unlimited: allow any size.

    Raises:
        UserError: it is too large, or has another format; the line is named if there is one.
    """
    if not is_table(path):
        raise UserError(f"{path} has none of the endings that are known: {', '.join(FORMATS)}")
    if (format := format_of(path)) == "parquet":
        with open_parquet(path) as file:
            for batch in file.iter_batches(1000):
                yield from batch.to_pylist()
        return
    lines = text_lines(path, encoding, unlimited=unlimited)
    yield from _json_rows(lines, path) if format == "json" else _csv_rows(lines, path, columns)


def _csv_rows(lines: Iterator[str], path: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield rows by the names in the first line or those given; empty lines are skipped."""
    csv.field_size_limit(2**31 - 1)  # a setting of the process: longer texts are valid anywhere
    if not (first := next(lines, "")).strip():
        fault = "has no columns in its first line" if first else "is empty"
        raise UserError(f"{path} {fault}")
    # Strict: an open quotation mark at the end is an error.
    head = [first, *itertools.islice(lines, 99)]
    settings: dict[str, Any] = {"delimiter": _delimiter(head, len(names))}
    if suffix_of(path) == ".tsv":
        settings = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    rows, line = csv.reader(itertools.chain(head, lines), strict=True, **settings), 1
    _check_distinct(names, path)
    try:
        for cells in rows:
            if not names:
                _check_distinct(names := cells, path)
            elif len(cells) > len(names):
                fault = f"line {line} has {len(cells)} columns, not {len(names)}"
                raise UserError(f"{path} is not a table: {fault}")
            elif len(cells) > 1 or any(map(str.strip, cells)):
                yield dict(itertools.zip_longest(names, cells))
            line = rows.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path} is not a table: from line {line} on, {error}") from error


def _delimiter(lines: list[str], num_columns: int) -> str:
    """Return the delimiter in line 1 that gives the most rows with `num_columns` cells.

    Ties, and files with a header (`num_columns` 0), take the first of comma, semicolon and tab; the
    default is a comma.
    """
    delimiters = [d for d in ",;\t" if d in lines[0]] or [","]

    def num_complete_rows(delimiter: str) -> int:
        with contextlib.suppress(csv.Error):  # the caller reports it
            return sum(len(row) == num_columns for row in csv.reader(lines, delimiter=delimiter))
        return 0

    return max(delimiters, key=num_complete_rows) if num_columns else delimiters[0]


def _check_distinct(names: Sequence[str], path: Path) -> None:
    """Raise a `UserError` for two columns with one name: one would overwrite the other."""
    if repeated := [name for name, count in Counter(filter(None, names)).items() if count > 1]:
        raise UserError(f"{path} has two columns named {repeated[0]!r}: rename one")


def _json_rows(lines: Iterator[str], path: Path) -> Iterator[dict[str, Any]]:
    """Yield JSON objects, one per line or all in a list."""
    if not (first := next(lines, "")):
        raise UserError(f"{path} is empty")
    if first.lstrip().startswith("["):
        content = f'{{"rows": {first}{"".join(lines)}}}'
        rows = parse_json_object(content, f"{path}, a list,")["rows"]
        if not all(isinstance(row, dict) for row in rows):
            raise UserError(f"{path} is not a list of JSON objects")
        yield from rows
        return
    for number, line in enumerate(itertools.chain([first], lines), 1):
        if line.strip():
            yield parse_json_object(line, f"{path} is not JSON Lines: line {number}")


@contextlib.contextmanager
def open_parquet(path: Path, columns: Sequence[str] = ()) -> Iterator[Any]:
    """Open a `pyarrow.parquet.ParquetFile`; damage found within the context is a `UserError`."""
    with needs_extra("text"):
        from pyarrow import parquet
    is_regular_file(path)
    try:
        with parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
            check_columns(file.schema_arrow.names, columns, str(path))
            yield file
    except NotImplementedError as error:  # a type or codec that this pyarrow can't read
        raise UserError(f"can't read {path}: {first_line(error)}") from error
    except (OSError, ValueError) as error:  # the base classes of pyarrow's
        if reason := isinstance(error, OSError) and error.strerror:
            raise UserError(f"can't read {path}: {reason}") from error
        raise UserError(f"{path} is not a complete Parquet file") from error


# Data sets by the library `datasets`


@contextlib.contextmanager
def dataset_errors(name: str, split: str) -> Iterator[None]:
    """Turn errors of `datasets`, the hub, the network or a loader into a `UserError`."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"can't read {split!r} of the set {name!r} ({reason})") from error


def import_datasets() -> Any:
    with needs_extra("text"):
        import datasets
    return datasets


def open_dataset(name: str, split: str, stream: bool = False, subset: str = "") -> Any:
    """Return a split of a set on the hub, in a folder, or written by `save_to_disk`."""
    datasets = import_datasets()
    with dataset_errors(name, split):
        if not is_saved_dataset(name):
            return datasets.load_dataset(name, subset or None, split=split, streaming=stream)
        saved = datasets.load_from_disk(name)
        return saved[split] if isinstance(saved, dict) else {"train": saved}[split]


def dataset_rows(
    name: str, split: str, stream: bool = False, subset: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a split of `open_dataset`."""
    if not os.path.isdir(name):
        print(printable(f"reading {split} of the set {name}"), flush=True)
    rows = open_dataset(name, split, stream, subset)
    with dataset_errors(name, split):
        yield from rows


def is_saved_dataset(folder: str | Path) -> bool:
    """True for a folder of `save_to_disk`, of one split or several."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in SAVED_FILES)


# Columns


def check_columns(row: Iterable[str], columns: Iterable[str], place: str) -> None:
    """Raise a `UserError` that lists the columns of a row if one is missing."""
    for column in columns:
        if column not in row:
            raise UserError(f"{place} has no column {column!r}: it has {', '.join(row)}")


def detect_column(
    names: Sequence[str], place: str, role: Literal["text", "label"], other: str = ""
) -> str:
    """Return the column of the texts or labels.

    It is named by the first of the known names, or by any of them; or else it is the only one that
    is neither `other` nor has a name of the other role.

    Raises:
        UserError: there is no such column, or there are several.
    """
    known, foreign = (TEXT_NAMES, LABEL_NAMES) if role == "text" else (LABEL_NAMES, TEXT_NAMES)
    simple = {name: _simple(name) for name in names if name != other}
    for candidates in (known[:1], known, {*simple.values()} - {*foreign}):
        if columns := [name for name in simple if simple[name] in candidates]:
            break
    if len(columns) != 1:
        raise UserError(
            f"{place} has the columns {', '.join(map(repr, names))}: name that of the {role} with "
            f"--{role}-column (and all with --columns, if these are its first row)"
        )
    return columns[0]


def detect_pair_columns(names: Sequence[str], place: str) -> tuple[str, str]:
    """Return the columns of sentences and translations: by name, by language code, or of two."""
    simple = {_simple(name): name for name in names}
    for source, target in PAIR_NAMES:
        if source in simple and target in simple:
            return simple[source], simple[target]
    coded = [name for code, name in simple.items() if REGION.sub("", code) in LANGUAGES.split()]
    for columns in (coded, list(names)):
        if len(columns) == 2:
            return columns[0], columns[1]
    raise UserError(
        f"{place} has the columns {', '.join(map(repr, names))}: name two with --source-column and "
        "--target-column"
    )


def _simple(name: str) -> str:
    return str(name).strip().lower().replace(" ", "_").replace("-", "_")


def sort_labels(values: Iterable[str]) -> list[str]:
    """Return the values sorted as numbers if all are, else as text."""
    values = sorted(values)
    with contextlib.suppress(ValueError):
        if not any(map(math.isnan, map(float, values))):
            return sorted(values, key=float)
    return values


# Splits


def stratified_split(
    rows: Iterable[Row],
    fraction: float,
    split: str,
    stratum: Callable[[Row], Hashable] = lambda row: None,
) -> Iterator[Row]:
    """Yield the rows of the validation split, at even distances, or those of the training split.

    Of the n rows of a stratum floor(n * fraction) or one more are for validation.

    Args:
        stratum: function from a row to its stratum, such as its label.
    """
    share, due = Fraction(str(fraction)), {}
    for row in rows:
        # A row is for validation when a whole row is due. The strata start at multiples of the
        # golden ratio, so that many small ones have the right share together; the first at 0.
        if (key := stratum(row)) not in due:
            due[key] = Fraction(618 * len(due) % 1000, 1000) * (1 - share)
        due[key] += share
        is_validation = due[key] >= 1
        due[key] -= is_validation
        if is_validation == (split == "validation"):
            yield row


def hash_split(text: str, fraction: float) -> Literal["training", "validation"]:
    """Return the split of a text by its hash, so that copies are in one split."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return "validation" if int.from_bytes(digest, "little") < fraction * 2**64 else "training"
