"""Rows of tables as dictionaries, in one pass, and which of their columns holds what."""

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
    KINDS,
    ending,
    is_table,
    is_there,
    json_object,
    kind_of,
    text_lines,
)
from tlite.errors import UserError, needs_extra, printable

Side = Literal["training", "validation"]
Row = TypeVar("Row")
SAVED = ("dataset_dict.json", "dataset_info.json")  # one of them is in what save_to_disk writes
TEXT = (
    "text", "review", "sentence", "content", "body", "comment", "message", "document", "question",
    "tweet", "review_body", "review_text", "reviewtext",
)  # fmt: skip
LABEL = (
    "label", "labels", "class", "category", "stars", "rating", "star_rating", "overall",
    "sentiment", "polarity", "topic", "intent", "emotion", "target",
)  # fmt: skip
SIDES = ("source", "target"), ("src", "tgt"), ("src", "trg")
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
    path: Path, encoding: str = "utf-8", columns: tuple[str, ...] = (), *, any_size: bool = False
) -> Iterator[dict[str, Any]]:
    """The rows of a JSON Lines, CSV, TSV or Parquet file, one after another.

    Args:
        columns: the names of a CSV's or TSV's columns, where its first line is a row.
        any_size: as it is not kept in memory.

    Raises:
        UserError: it is too large, or not what its ending says (the line is named where there is
            one).
    """
    if not is_table(path):
        raise UserError(f"{path} has none of the endings that are known: {', '.join(KINDS)}")
    if (kind := kind_of(path)) == "parquet":
        with parquet_file(path) as file:
            for batch in file.iter_batches(1000):
                yield from batch.to_pylist()
        return
    lines = text_lines(path, encoding, any_size=any_size)
    yield from _json_rows(lines, path) if kind == "json" else _csv_rows(lines, path, columns)


def _csv_rows(lines: Iterator[str], path: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Each row by the names in the first line, or by those given; empty lines are none."""
    csv.field_size_limit(2**31 - 1)  # for all of the process: a longer text is no fault anywhere
    of_tabs = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    # Strict: a quotation mark that is open at the end is told, and takes in nothing.
    rows, line = csv.reader(lines, strict=True, **(of_tabs if ending(path) == ".tsv" else {})), 1
    _need_distinct(names, path)
    try:
        for cells in rows:
            if not names:
                names = cells if any(map(str.strip, cells)) else ()
                _need_distinct(names, path)
            elif len(cells) > len(names):
                told = f"line {line} has {len(cells)} columns, not {len(names)}"
                raise UserError(f"{path} is not a table: {told}")
            elif len(cells) > 1 or any(map(str.strip, cells)):
                yield dict(itertools.zip_longest(names, cells))
            line = rows.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path} is not a table: from line {line} on, {error}") from error
    if not names:
        raise UserError(f"{path} is empty")


def _need_distinct(names: Sequence[str], path: Path) -> None:
    """Raise a `UserError` for two columns of one name: one would overwrite the other."""
    if repeated := [name for name, count in Counter(filter(None, names)).items() if count > 1]:
        raise UserError(f"{path} has two columns named {repeated[0]!r}: rename one")


def _json_rows(lines: Iterator[str], path: Path) -> Iterator[dict[str, Any]]:
    """Objects, a line each or all in a list."""
    if not (first := next(lines, "")):
        raise UserError(f"{path} is empty")
    if first.lstrip().startswith("["):
        whole = json_object(f'{{"rows": {first}{"".join(lines)}}}', f"{path}, a list,")
        if not all(isinstance(row, dict) for row in whole["rows"]):
            raise UserError(f"{path} is not a list of JSON objects")
        yield from whole["rows"]
        return
    for number, line in enumerate(itertools.chain([first], lines), 1):
        if line.strip():
            yield json_object(line, f"{path} is not JSON Lines: line {number}")


@contextlib.contextmanager
def parquet_file(path: Path, columns: Sequence[str] = ()) -> Iterator[Any]:
    """A Parquet file that has columns of these names, as `pyarrow` has it.

    Raises:
        UserError: it has them not, or is damaged: also where that shows within the context.
    """
    with needs_extra("text"):
        from pyarrow import parquet
    is_there(path)
    try:
        with parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
            need_columns(file.schema_arrow.names, columns, str(path))
            yield file
    except (OSError, ValueError) as error:  # of these kinds are pyarrow's
        raise UserError(f"{path} is not a whole Parquet file") from error


@contextlib.contextmanager
def reading_set(name: str, split: str) -> Iterator[None]:
    """Turn what `datasets` raises, of the hub, the network or a loader's own, into a sentence."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"can't read {split!r} of the set {name!r} ({reason})") from error


def open_set(name: str, split: str, stream: bool = False, subset: str | None = None) -> Any:
    """A split as `datasets` has it: of the hub, a folder, or what `save_to_disk` has written."""
    datasets = import_datasets()
    with reading_set(name, split):
        if not is_saved(name):
            return datasets.load_dataset(name, subset, split=split, streaming=stream)
        saved = datasets.load_from_disk(name)
        return saved[split] if isinstance(saved, dict) else {"train": saved}[split]


def hub_rows(name: str, split: str, stream: bool = False) -> Iterator[dict[str, Any]]:
    """The rows of such a split."""
    if not os.path.isdir(name):
        print(printable(f"reading {split} of the set {name}"), flush=True)
    rows = open_set(name, split, stream)
    with reading_set(name, split):
        yield from rows


def hub_commit(name: str, split: str) -> str:
    """The commit that a set on the hub is at now."""
    with needs_extra("text"):
        from huggingface_hub import dataset_info
    with reading_set(name, split):
        return dataset_info(name).sha


def is_saved(folder: str | Path) -> bool:
    """Whether it is a folder of `save_to_disk`, of one set or of several splits."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in SAVED)


def import_datasets():
    with needs_extra("text"):
        import datasets
    return datasets


# Columns


def need_columns(row: Iterable[str], columns: Iterable[str], where: str) -> None:
    """Raises a `UserError` that lists the columns there are, if one of these is not among them."""
    for column in columns:
        if column not in row:
            raise UserError(f"{where} has no column {column!r}: it has {', '.join(row)}")


def column_of(names: Iterable[str], where: str, what: str, other: str = "") -> str:
    """The column with the "text" or the "label": the one whose name is the first of the known ones,
    or any of them; or else the only one that is not the other, nor called as the other is.

    Raises:
        UserError: there is none, or there are several; the option is named.
    """
    known, not_so = (TEXT, LABEL) if what == "text" else (LABEL, TEXT)
    rest = {name: _plain(name) for name in names if name != other}
    for some in (known[:1], known, {*rest.values()} - {*not_so}):
        if found := [name for name, plain in rest.items() if plain in some]:
            break
    if len(found) != 1:
        columns = ", ".join(map(repr, names))
        raise UserError(
            f"{where} has the columns {columns}: say which is the {what} by --{what}-column (and "
            "their names by --columns, if these are its first row)"
        )
    return found[0]


def pair_columns(names: Iterable[str], where: str) -> tuple[str, str]:
    """The columns with a sentence and its translation: two that are called so, or by the codes of
    languages; or, of two, the first and the second.

    Raises:
        UserError: there are none, or more.
    """
    plain = {_plain(name): name for name in names}
    for sides in SIDES:
        if plain.keys() >= {*sides}:
            return plain[sides[0]], plain[sides[1]]
    coded = [name for code, name in plain.items() if REGION.sub("", code) in LANGUAGES.split()]
    for pair in (coded, [*names]):
        if len(pair) == 2:
            return pair[0], pair[1]
    columns = ", ".join(map(repr, names))
    asked = "--source-column and --target-column"
    raise UserError(f"{where} has the columns {columns}: say which with {asked}")


def in_order(values: Iterable[str]) -> list[str]:
    """Sort numbers by size and words by the alphabet, whatever order they come in."""
    values = sorted(values)
    with contextlib.suppress(ValueError):
        if not any(map(math.isnan, map(float, values))):
            return sorted(values, key=float)
    return values


def _plain(name: str) -> str:
    return str(name).strip().lower().replace(" ", "_").replace("-", "_")


# Which rows are held out


def held_out(
    rows: Iterable[Row],
    fraction: float,
    *,
    held: bool,
    stratum: Callable[[Row], Hashable] = lambda row: None,
) -> Iterator[Row]:
    """The share of the rows that is held out for validation, at even distances; or all others.

    Each stratum is split by itself: floor(n * fraction) of its n rows, or one more, are held out.

    Args:
        stratum: the stratum of a row: its label, say.
    """
    share, due = Fraction(str(fraction)), {}
    for row in rows:
        # A row is held out when a whole row is due. The strata start at multiples of the golden
        # ratio, the first at 0, so that many small ones hold out the right share together.
        if (key := stratum(row)) not in due:
            due[key] = Fraction(618 * len(due) % 1000, 1000) * (1 - share)
        due[key] += share
        is_held = due[key] >= 1
        due[key] -= is_held
        if is_held == held:
            yield row


def side_of(text: str, fraction: float) -> Side:
    """The side of a text, by its hash: that of equal texts is the same."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return "validation" if int.from_bytes(digest, "little") < fraction * 2**64 else "training"
