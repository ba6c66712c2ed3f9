"""Pairs of sentences to translate between: files side by side, tables, or a set on the hub."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tlite.data.files import KINDS, describe, find, kind_of
from tlite.data.reading import MAX_MEGABYTES, read_lines
from tlite.data.tables import (
    Part,
    check_fraction,
    file_rows,
    held_out,
    hub_rows,
    need_columns,
)
from tlite.errors import UserError


class Pair(NamedTuple):
    """A sentence, its translation, and where they were read, for messages."""

    source: str
    target: str
    where: str


@dataclass(frozen=True)
class ParallelText:
    """Two text files with a sentence a line, or tables (JSON Lines, CSV, TSV, ...), or the hub."""

    hub: str = ""
    """Name of a set on huggingface.co, or its folder; the parts below are then its splits."""
    training: tuple[str, ...] = ()
    """Tables, or pairs of text files (source, target, source, ...), here or in TLITE_DATA."""
    validation: tuple[str, ...] = ()
    """Files to choose a checkpoint by; unless given, a part of the training pairs."""
    test: tuple[str, ...] = ()
    """Files that only `tlite evaluate --split test` reads."""
    source: str = "source"
    """The column with the sentence."""
    target: str = "target"
    """The column with its translation."""
    columns: tuple[str, ...] = ()
    """Names of the columns of CSV or TSV files whose first line does not name them."""
    encoding: str = "utf-8"
    """How the text files are encoded."""
    validation_fraction: float = 0.05
    """Share of the training pairs that is kept for validation where no files are given."""
    max_megabytes: int = MAX_MEGABYTES
    """Size of the largest file that is read, unpacked."""

    def pairs(self, part: Part) -> list[Pair]:
        """The pairs of a part.

        Raises:
            UserError: files of different lengths, an empty sentence, a column that is not there, or
                a file that is not what it should be.
        """
        check_fraction(self.validation_fraction)
        if part == "test" or self.validation:
            pairs = list(self._read(part))
        else:
            pairs = self._read("training")
            pairs = list(held_out(pairs, self.validation_fraction, held=part == "validation"))
        if not pairs:
            raise UserError(f"the {part} part has no sentences")
        return pairs

    def reads(self, part: Part) -> list[str]:
        """The files, or the parts of a set on the hub, that a part is read from."""
        names = getattr(self, part) or (self.training if part == "validation" else ())
        return describe(self.hub, names)

    def _read(self, part: Part) -> Iterator[Pair]:
        names = getattr(self, part)
        if not names:
            raise UserError(f"no {part} sentences given: name files with --{part}")
        for pair in self._rows(part, names):
            for side in ("source", "target"):
                if not getattr(pair, side).strip():
                    raise UserError(f"{pair.where} has an empty {side} sentence")
            yield pair

    def _rows(self, part: Part, names: tuple[str, ...]) -> Iterator[Pair]:
        if self.hub:
            for split in names:
                rows = hub_rows(self.hub, split)
                yield from self._pairs_of_table(rows, f"{self.hub} ({split})")
            return
        paths = [find(name) for name in names]
        # A file without a known ending (train.en) has a sentence a line, like one in .txt.
        unpacked = [path.with_suffix("") if path.suffix == ".gz" else path for path in paths]
        is_text = [path.suffix not in KINDS.keys() - {".txt"} for path in unpacked]
        if not any(is_text):
            for path in paths:
                kind_of(path)
                rows = file_rows(path, self.encoding, self.columns, self.max_megabytes)
                yield from self._pairs_of_table(rows, str(path))
            return
        if not all(is_text) or len(paths) % 2:
            raise UserError(
                f"the {part} part needs tables, or text files by twos, a source and its target: "
                f"not {', '.join(names)}"
            )
        for source, target in zip(paths[::2], paths[1::2], strict=True):
            sides = [
                read_lines(path, self.encoding, self.max_megabytes) for path in (source, target)
            ]
            if len(sides[0]) != len(sides[1]):
                raise UserError(
                    f"{source} has {len(sides[0]):,} lines, but {target} has {len(sides[1]):,}"
                )
            for number, pair in enumerate(zip(*sides, strict=True), 1):
                yield Pair(*pair, f"line {number} of {source} and {target}")

    def _pairs_of_table(self, rows: Iterator[dict], where: str) -> Iterator[Pair]:
        for number, row in enumerate(rows, 1):
            need_columns(row, (self.source, self.target), where)
            texts = (row[column] for column in (self.source, self.target))
            texts = ("" if text is None else str(text) for text in texts)
            yield Pair(*texts, f"row {number} of {where}")
