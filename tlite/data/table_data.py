"""What labelled texts and pairs of sentences have in common: tables, their parts and columns."""

import dataclasses
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from tlite.data.columns import has_known_names, missing_names
from tlite.data.files import KINDS, describe, find, follow, kind_of, locate
from tlite.data.reading import MAX_MEGABYTES, pieces
from tlite.data.tables import (
    Part,
    check_fraction,
    file_rows,
    held_out,
    hub_rows,
    is_saved,
    open_set,
    open_table,
    side_of,
    splits_of,
)
from tlite.errors import UserError
from tlite.terminal import printable

SAMPLE = 1000  # rows that columns are found by
NAMES = {  # of the splits of a set
    "training": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}


@dataclass(frozen=True)
class TableData:
    """Tables (CSV, TSV, JSON Lines, Parquet, Arrow), or a set on the hub, in parts."""

    path: str = ""
    """All of it: a table, a folder of `save_to_disk`, or one of tables (train.csv, test.csv)."""
    hub: str = ""
    """Name of a set on huggingface.co, or its folder; the parts below are then its splits."""
    training: tuple[str, ...] = ()
    """Files to train on, themselves or in the data folder (TLITE_DATA)."""
    validation: tuple[str, ...] = ()
    """Files to choose a checkpoint by; unless given, a part of those to train on."""
    test: tuple[str, ...] = ()
    """Files that only `tlite evaluate --split test` reads."""
    columns: tuple[str, ...] = ()
    """Names of the columns of CSV or TSV files whose first line does not name them."""
    encoding: str = "utf-8"
    """How the text files are encoded."""
    validation_fraction: float = 0.1
    """Share of the training part that is kept for validation where no files are given."""
    split_by: Literal["row", "text"] = "row"
    """Rows at even distances are kept, or those whose text's hash says so: then what stands there
    twice is on one side, and rows that are added move no others."""
    max_megabytes: int = MAX_MEGABYTES
    """Size of the largest file that is read, unpacked; any where it is streamed."""
    stream: ClassVar[bool] = False

    def reads(self, part: Part, more: tuple[str, ...] = ()) -> list[str]:
        """The files, or the parts of a set on the hub, that a part is read from, and some more."""
        names = getattr(self, part) or (self.training if part == "validation" else ())
        return describe(self.hub, [*names, *more])

    def located(self, folders: Sequence[Path] = ()) -> "TableData":
        """The same, from whatever folder it is read: with the absolute paths of what is there.

        Args:
            folders: where it is looked for too.
        """
        if self.hub:  # a name on the hub may be that of something else in the data folder
            return dataclasses.replace(self, hub=locate(self.hub, folders, in_data=False))
        path = locate(self.path, folders)
        if path and os.path.isdir(path):  # the parts are its splits
            return dataclasses.replace(self, path=path)
        parts = {name: tuple(locate(n, folders) for n in getattr(self, name)) for name in NAMES}
        # The run knows its other parts again, but not the test part: no other file of that name.
        if self.training and os.path.isabs(self.training[0]):
            moved = self.training[0], parts["training"][0]
            parts["test"] = tuple(
                name if os.path.lexists(name) else follow(name, *moved) for name in self.test
            )
        return dataclasses.replace(self, path=path, **parts)

    def with_path(self) -> "TableData":
        """The same, with parts instead of a path to all of it.

        Raises:
            UserError: there are other parts, or it is a folder without one to train on.
        """
        if not self.path:
            return self
        if self.hub or self.training:
            raise UserError("give --path, or --training and --hub: not both")
        if not os.path.isdir(self.path):
            return dataclasses.replace(self, path="", training=(str(find(self.path)),))
        given = {part: names for part in NAMES if (names := getattr(self, part))}
        if not is_saved(self.path) and (files := self._files()):
            given = {part: tuple(map(locate, names)) for part, names in given.items()}
            return dataclasses.replace(self, path="", **(files | given))
        splits = splits_of(self.path)
        for part, names in given.items():
            if strange := [name for name in names if name not in splits]:
                raise UserError(
                    f"{self.path} has no split {strange[0]!r} for --{part}: it has "
                    f"{', '.join(splits)}"
                )
        parts = {
            part: next(((name,) for name in names if name in splits), ())
            for part, names in NAMES.items()
        }
        if len(splits) == 1:
            parts = {"training": tuple(splits)}
        if not parts["training"]:
            raise UserError(
                f"{self.path} has the splits {', '.join(splits)}: say --hub {self.path} --training "
                "SPLIT --validation SPLIT"
            )
        return dataclasses.replace(self, path="", hub=self.path, **(parts | given))

    def _files(self) -> dict[str, tuple[str, ...]]:
        """The tables of the folder that are named by their part: train.csv, test.csv; or none."""
        found = {}
        for part, names in NAMES.items():
            ends = (name + end for name in names for end in KINDS if end != ".txt")
            paths = (os.path.join(self.path, name) for name in ends)
            found[part] = tuple(path for path in paths if os.path.isfile(path))[:1]
        return found if found["training"] else {}

    def with_columns(self) -> "TableData":
        """The same, with names for the columns where the first table's first line has none."""
        if self.columns or self.hub or not self.training:
            return self
        path = find(self.training[0])
        if kind_of(path) != "csv":
            return self
        beginning = bytes(next(pieces(path), b""))[: 2**16]
        text = beginning.decode(self.encoding, "replace").removeprefix("\ufeff")
        lines = itertools.islice(io.StringIO(text, newline=""), SAMPLE)
        return dataclasses.replace(self, columns=missing_names(lines, tabs=".tsv" in path.suffixes))

    def sample(self) -> tuple[list[dict[str, Any]], str]:
        """Rows from the beginning of the training part, and where they are.

        Raises:
            UserError: there are none.
        """
        rows, where = self.table_rows(self.training[0])
        if not (found := list(itertools.islice(rows, SAMPLE))):
            raise UserError("the training part has no rows")
        return found, where

    def tell_guess(self, names: Iterable[str], where: str) -> None:
        """Print that the first line is taken as the names of columns, where it may be a row."""
        of_first_line = not (self.columns or self.hub) and kind_of(find(self.training[0])) == "csv"
        if of_first_line and not has_known_names(names):
            line = f"its first line, {', '.join(map(repr, names))}, is taken as the names of"
            told = f"{where}: {line} its columns; if it is a row, name them with --columns"
            print(printable(told), flush=True)

    def opened(self) -> Callable[[], Any]:
        """What opens the first of the training tables as `datasets` has it."""
        first = self.training[0]
        if self.hub:
            return lambda: open_set(self.hub, first, self.stream)
        return lambda: open_table(find(first))

    def table_rows(self, source: str) -> tuple[Iterator[dict[str, Any]], str]:
        """The rows of a table or split, and where they are, for messages."""
        if self.hub:
            return hub_rows(self.hub, source, self.stream), f"{self.hub} ({source})"
        path = find(source)
        limit = None if self.stream else self.max_megabytes
        return file_rows(path, self.encoding, self.columns, limit), str(path)

    def split(self, part: Part, rows: Iterable[Any], text: Callable[[Any], str]) -> Iterator[Any]:
        """Of the training rows those of the training or of the validation part."""
        check_fraction(self.validation_fraction)
        fraction = self.validation_fraction
        if self.split_by == "text":
            return (row for row in rows if side_of(text(row), fraction) == part)
        return held_out(rows, fraction, held=part == "validation")

    def advice(self, part: Part) -> str:
        """What to do where a part has nothing that was to be drawn from the training part."""
        if part != "validation" or self.validation:
            return ""
        return (
            ": of so few different ones none was drawn for it; give more, a larger "
            "--validation-fraction, or a file of its own with --validation"
        )
