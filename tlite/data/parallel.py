"""Pairs of sentences to translate between: files side by side, tables, or a set on the hub."""

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from tlite.data.columns import known_sides, pair_columns
from tlite.data.files import find, is_table
from tlite.data.reading import read_lines
from tlite.data.table_data import TableData
from tlite.data.tables import Part, need_columns
from tlite.errors import UserError
from tlite.terminal import printable


class Pair(NamedTuple):
    """A sentence, its translation, and where they were read, for messages."""

    source: str
    target: str
    where: str


@dataclass(frozen=True)
class ParallelText(TableData):
    """Two text files with a sentence a line, or tables (JSON Lines, CSV, TSV, ...), or the hub."""

    training: tuple[str, ...] = ()
    """Tables, or pairs of text files (source, target, source, ...), here or in TLITE_DATA."""
    validation_fraction: float = 0.05
    """Share of the training pairs that is kept for validation where no files are given."""
    source_column: str = field(default="", metadata={"was": "source"})
    """The column with the sentence; of two the first, unless it is known or given."""
    target_column: str = field(default="", metadata={"was": "target"})
    """The column with its translation; of two the second, unless it is known or given."""
    what: ClassVar[str] = "sentences"

    def found(self) -> "ParallelText":
        """The same with the columns that its tables have; they are printed.

        Raises:
            UserError: they can't be told; the option is named that does.
        """
        data = self.with_path()
        if not data.training or (not data.hub and not is_table(find(data.training[0]))):
            return data
        given = tuple(filter(None, (data.source_column, data.target_column)))
        data = data.with_columns(given)
        if len(given) == 2:
            return data
        row, where = data.first_row()
        names = [*_flat(row)]
        need_columns(names, given, where)
        source, target = pair_columns(names, data.source_column, data.target_column, where)
        known = given or {source, target} == {*(known_sides(names) or ())}
        how = "" if known else ", as of two columns the first is the source"
        print(printable(f"source: {source!r}, target: {target!r}{how}"), flush=True)
        return dataclasses.replace(data, source_column=source, target_column=target)

    def pairs(self, part: Part) -> list[Pair]:
        """The pairs of a part. Those with an empty side are left out, with a warning.

        Raises:
            UserError: files of different lengths, a column that is not there, a file that is not
                what it should be, or no pair.
        """
        found = list(self.rows(part))
        pairs = [pair for pair in found if pair.source.strip() and pair.target.strip()]
        if len(pairs) < len(found):
            first = next(p for p in found if not (p.source.strip() and p.target.strip()))
            what = f"{len(found) - len(pairs):,} of the {len(found):,} {part} pairs are left out"
            warning = f"warning: {what}, as a side is empty; the first is {first.where}"
            print(printable(warning), file=sys.stderr)
        if not pairs:
            raise self.nothing(part)
        return pairs

    def all_rows(self, part: Part) -> Iterator[Pair]:
        names = getattr(self, part)
        paths = [] if self.hub else [find(name) for name in names]
        tables = [is_table(path) for path in paths]
        if all(tables):
            for name in names:
                yield from self._pairs_of_table(name)
            return
        if any(tables) or len(paths) % 2:
            raise UserError(
                f"the {part} part needs tables, or text files by twos, a source and its target: "
                f"not {', '.join(names)}"
            )
        for source, target in zip(paths[::2], paths[1::2], strict=True):
            sides = [read_lines(path, self.encoding) for path in (source, target)]
            if len(sides[0]) != len(sides[1]):
                raise UserError(
                    f"{source} has {len(sides[0]):,} lines, but {target} has {len(sides[1]):,}"
                )
            for number, pair in enumerate(zip(*sides, strict=True), 1):
                yield Pair(*pair, f"line {number} of {source} and {target}")

    def _pairs_of_table(self, name: str) -> Iterator[Pair]:
        columns = self.source_column or "source", self.target_column or "target"
        rows, where = self.table_rows(name)
        for number, row in enumerate(map(_flat, rows), 1):
            need_columns(row, columns, where)
            texts = ("" if row[c] is None else str(row[c]) for c in columns)
            yield Pair(*texts, f"row {number} of {where}")


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose pair is in one column, {"translation": {"en": ..., "de": ...}}, as columns."""
    inner = row.get("translation")
    return row | inner if isinstance(inner, dict) else row
