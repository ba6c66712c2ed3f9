"""Which columns of a table hold the texts, their classes, or the two sides of a translation."""

import csv
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tlite.errors import UserError

TEXT = (
    "text", "review", "sentence", "content", "body", "comment", "message", "document", "question",
    "tweet", "review_body", "review_text", "reviewtext",
)  # fmt: skip
CLASS = (
    "label", "labels", "class", "category", "stars", "rating", "star_rating", "overall",
    "sentiment", "polarity", "topic", "intent", "emotion", "target",
)  # fmt: skip
SIDES = ("source", "target"), ("src", "tgt"), ("src", "trg")
LANGUAGE = re.compile(r"[a-z]{2,3}([_-][a-z]{2,4})?")  # en, de_at
MOST_FEW = 50  # different values of a column that may be the classes, whatever it is called
MOST_CLASSES = 1000

Rows = Sequence[dict[str, Any]]


def text_column(rows: Rows, where: str) -> str:
    """The column with the text: the one that is called so, or the one with the longest strings.

    Raises:
        UserError: there is none, or there are several.
    """
    sizes = {name: size for name in rows[0] if (size := _letters(rows, name))}
    if known := _known(sizes, TEXT):
        return _the_one(known, "the text", "--text-column", where)
    longest = max(sizes.values(), default=0)
    near = [name for name, size in sizes.items() if 2 * size > longest]
    return _the_one(near, "the text", "--text-column", where, rows[0])


def class_column(rows: Rows, text: str, where: str) -> str:
    """The column with the class: the one that is called so, or the one with few different values.

    Raises:
        UserError: there is none, or there are several.
    """
    others = [name for name in rows[0] if name != text]
    if known := _known(others, CLASS):
        return _the_one(known, "the class", "--label-column", where)
    few = []
    for name in others:
        values = [str(row.get(name)) for row in rows if _is_plain(row.get(name))]
        if 2 <= len(set(values)) <= min(MOST_FEW, len(values) / 2):
            few.append(name)
    return _the_one(few, "the class", "--label-column", where, rows[0])


def pair_columns(rows: Rows, source: str, target: str, where: str) -> tuple[str, str]:
    """The columns with a sentence and its translation, of which one may be given.

    Those that are called so; or two languages; or the two with strings, in their order.

    Raises:
        UserError: there are none, or more.
    """
    if source and source == target:
        raise UserError(f"the source and the target can't both be the column {source!r}")
    names = {_plain(name): name for name in rows[0]}
    if not source and not target:
        for left, right in SIDES:
            if left in names and right in names:
                return names[left], names[right]
    given = {source, target} - {""}
    free = [name for name in rows[0] if name not in given and _letters(rows, name)]
    languages = [name for name in free if LANGUAGE.fullmatch(_plain(name))]
    wanted = 2 - len(given)
    if len(languages) == wanted:
        free = languages
    if len(free) != wanted:
        columns = ", ".join(map(repr, rows[0]))
        missing = " and ".join(
            option
            for option, name in (("--source-column", source), ("--target-column", target))
            if not name
        )
        raise UserError(f"{where} has the columns {columns}: say which with {missing}")
    left = iter(free)
    return source or next(left), target or next(left)


def missing_names(lines: Iterable[str], *, tabs: bool) -> tuple[str, ...]:
    """Names for the columns of a table, if its first line is a row and does not name them.

    A line names columns if one of its words is a column's known name. Else it does not where a
    part of it is empty, a number or a sentence, or stands below it again, as a class does.
    """
    dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}
    try:
        first, *rest = csv.reader(lines, **dialect)
    except (ValueError, csv.Error):  # it is empty, or no table
        return ()
    if has_known_names(first):
        return ()
    below = [{row[place] for row in rest if place < len(row)} for place in range(len(first))]
    named = [_may_be_name(cell) and cell not in b for cell, b in zip(first, below, strict=True)]
    named[0] |= not first[0]  # pandas leaves it empty over the numbers of rows
    return () if all(named) else tuple(f"column {n}" for n in range(1, len(first) + 1))


def has_known_names(names: Iterable[str]) -> bool:
    """Whether one is a column's known name, or all are languages."""
    known = {*TEXT, *CLASS, "id", *(name for pair in SIDES for name in pair)}
    words = [_plain(name) for name in names]
    return bool(known & {*words}) or all(map(LANGUAGE.fullmatch, words))


def in_order(values: Iterable[str]) -> list[str]:
    """Numbers by their size, words by the alphabet."""
    values = list(values)
    try:
        return sorted(values, key=float)
    except ValueError:
        return sorted(values)


def _plain(name: str) -> str:
    return str(name).strip().lower().replace(" ", "_").replace("-", "_")


def _known(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """Those of the names that are known; the first of the known ones goes before all others."""
    found = [name for name in names if _plain(name) in known]
    first = [name for name in found if _plain(name) == known[0]]
    return first or found


def _the_one(found: list[str], what: str, option: str, where: str, row: Iterable[str] = ()) -> str:
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(map(repr, found))
        raise UserError(f"{where} has several columns that may be {what}, {names}: say {option}")
    names = ", ".join(map(repr, row))
    raise UserError(f"{where} has no column that may be {what}, only {names}: say {option}")


def _letters(rows: Rows, name: str) -> float:
    """The mean length of a column's strings; 0 if most of it has no letter."""
    values = [value for row in rows if (value := row.get(name)) not in (None, "")]
    texts = [v for v in values if isinstance(v, str) and any(map(str.isalpha, v))]
    return sum(map(len, texts)) / len(texts) if 2 * len(texts) > len(values) else 0.0


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and value != ""


def _may_be_name(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        words = cell.split()
        return 0 < len(words) < 4 and len(cell) <= 40 and cell.strip()[-1] not in ".!?\"'"
    return False
