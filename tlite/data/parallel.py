"""Pairs of sentences to translate between: files side by side, tables, or a set on the hub."""

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from tlite.data.reading import find, read_lines
from tlite.data.table_data import TableData
from tlite.data.tables import Part, pair_columns
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
    lines: ClassVar[tuple[str, ...]] = ("text", "")

    def found(self) -> "ParallelText":
        """The same with the columns that its tables have; they are printed.

        Raises:
            UserError: they can't be told; the option is named that does.
        """
        data = self.with_path()
        if not data.training or not data.has_columns(data.training[0]):
            return data
        if data.source_column and data.target_column:
            return data
        if data.source_column or data.target_column:
            raise UserError("give --source-column and --target-column together")
        source, target = pair_columns(*data.first_row())
        told = f"source: {source!r}, target: {target!r}"
        print(printable(f"{told} (--columns, if this is the first row)"), flush=True)
        return dataclasses.replace(data, source_column=source, target_column=target)

    def pairs(self, part: Part) -> list[Pair]:
        """The pairs of a part. Those with an empty side are left out, with a warning.

        Raises:
            UserError: files of different lengths, a column that is not there, a file that is not
                what it should be, or no pair.
        """
        pairs, empty = [], []
        for pair in self.rows(part):
            (pairs if pair.source.strip() and pair.target.strip() else empty).append(pair)
        if empty:
            what = f"{len(empty):,} of the {len(pairs) + len(empty):,} {part} pairs are left out"
            warning = f"warning: {what}, as a side is empty; the first is {empty[0].where}"
            print(printable(warning), file=sys.stderr)
        if not pairs:
            raise self.nothing(part)
        return pairs

    def all_rows(self, part: Part) -> Iterator[Pair]:
        names = getattr(self, part)
        if all(tables := [*map(self.has_columns, names)]):
            columns = self.source_column or "source", self.target_column or "target"
            for name in names:
                where = f"{self.hub} ({name})" if self.hub else name
                for number, texts in enumerate(self.cells(name, *columns), 1):
                    yield Pair(*texts, f"row {number} of {where}")
            return
        if any(tables) or len(names) % 2:
            raise UserError(
                f"the {part} part needs tables, or text files by twos, a source and its target: "
                f"not {', '.join(names)}"
            )
        for source, target in zip(names[::2], names[1::2], strict=True):
            sides = [read_lines(find(name), self.encoding) for name in (source, target)]
            if len(sides[0]) != len(sides[1]):
                raise UserError(
                    f"{source} has {len(sides[0]):,} lines, but {target} has {len(sides[1]):,}"
                )
            for number, pair in enumerate(zip(*sides, strict=True), 1):
                yield Pair(*pair, f"line {number} of {source} and {target}")
