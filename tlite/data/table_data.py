"""What labelled texts and pairs of sentences have in common: tables, their parts and columns."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tlite.data.columns import has_known_names
from tlite.data.files import KINDS, find, kind_of, locate
from tlite.data.tables import (
    Part,
    check_fraction,
    features_of,
    file_rows,
    first_line,
    held_out,
    hub_rows,
    is_saved,
    need_columns,
    numbered,
    open_set,
    reading_set,
    side_of,
    splits_of,
)
from tlite.errors import UserError
from tlite.terminal import printable

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
    """Names of the columns of CSV or TSV files whose first line is a row; it is one where no name
    in it is known or given: then they are column 1, column 2, ..."""
    encoding: str = "utf-8"
    """How the text files are encoded."""
    validation_fraction: float = 0.1
    """Share of the training part that is kept for validation where no files are given."""
    split_by: Literal["row", "text"] = "row"
    """Rows at even distances are kept, or those whose text's hash says so: then what stands there
    twice is on one side, and rows that are added move no others."""
    stream: ClassVar[bool] = False
    what: ClassVar[str] = "texts"
    """What it has, for messages."""

    @staticmethod
    def read_earlier(values: dict[str, Any]) -> dict[str, Any]:
        """The fields of a config of 0.2.0, which said how large a file may be."""
        return {name: value for name, value in values.items() if name != "max_megabytes"}

    def reads(self, part: Part, more: tuple[str, ...] = ()) -> list[str]:
        """The files, or the parts of a set on the hub, that a part is read from, and some more.

        Raises:
            UserError: one is not there, or no regular file.
        """
        names = getattr(self, part) or (self.training if part == "validation" else ())
        if not (hub := self.hub):
            return [os.path.realpath(find(name)) for name in (*names, *more)]
        place = os.path.realpath(hub) if os.path.isdir(hub) else f"the set {hub}"
        return [f"{place} ({name})" for name in (*names, *more)]

    def located(self) -> "TableData":
        """The same, from whatever folder it is read: with the absolute paths of what is there."""
        if self.hub:  # a name on the hub may be that of something else in the data folder
            return dataclasses.replace(self, hub=locate(self.hub, in_data=False))
        path = locate(self.path)
        if path and os.path.isdir(path):  # the parts are its splits
            return dataclasses.replace(self, path=path)
        parts = {name: tuple(map(locate, getattr(self, name))) for name in NAMES}
        # A run knows its other parts again, but not the test part: no other file of that name.
        if self.training and os.path.isabs(self.training[0]) and parts["training"] == self.training:
            parts["test"] = tuple(n if os.path.isabs(n) else locate(n) for n in self.test)
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

    def with_columns(self, given: Sequence[str]) -> "TableData":
        """The same, with names for the columns where the first table's first line is a row.

        It is where it has no name that is known or given; where nothing is given, that is printed.

        Raises:
            UserError: the table has none that are given.
        """
        if self.columns or self.hub or kind_of(path := find(self.training[0])) != "csv":
            return self
        names = first_line(path, self.encoding)
        columns = tuple(map(numbered, range(1, 1 + len(names))))
        if has_known_names(names) or {*given} & {*names} - {*columns}:
            return self
        need_columns({**dict.fromkeys(names), **dict.fromkeys(columns)}, given, str(path))
        if not given:
            told = f"{path}: no name of a column in its first line is known, so it is a row: "
            cells = zip(columns, names, strict=True)
            told += ", ".join(f"{column} {cell[:40]!r}" for column, cell in cells)
            print(printable(told), flush=True)
        return dataclasses.replace(self, columns=columns)

    def first_row(self) -> tuple[dict[str, Any], str]:
        """The first row of the training part, and where it is.

        Raises:
            UserError: there is none.
        """
        rows, where = self.table_rows(self.training[0])
        if (row := next(rows, None)) is None:
            raise UserError("the training part has no rows")
        return row, where

    def names_of_classes(self, column: str) -> dict[str, str]:
        """The names that `datasets` knows of a column's numbers in the first of the training
        tables, {"0": "negative", ...}; or none."""
        first = self.training[0]
        if self.hub:
            with reading_set(self.hub, first):
                features = open_set(self.hub, first, self.stream).features
        else:
            features = features_of(find(first))
        names = getattr((features or {}).get(column), "names", [])
        return {str(number): name for number, name in enumerate(names)}

    def table_rows(self, source: str) -> tuple[Iterator[dict[str, Any]], str]:
        """The rows of a table or split, and where they are, for messages."""
        if self.hub:
            return hub_rows(self.hub, source, self.stream), f"{self.hub} ({source})"
        path = find(source)
        return file_rows(path, self.encoding, self.columns, any_size=self.stream), str(path)

    def rows(self, part: Part) -> Iterator[tuple[str, ...]]:
        """The rows of a part, each with its text first.

        Raises:
            UserError: none are given, or not a fraction of them.
        """
        check_fraction(fraction := self.validation_fraction)
        own = part == "test" or bool(self.validation)
        source: Part = part if own else "training"
        if not getattr(self, source):
            raise UserError(f"no {source} {self.what} given: name them with --{source}")
        rows = self.all_rows(source)
        if own:
            return rows
        if self.split_by == "text":
            return (row for row in rows if side_of(row[0], fraction) == part)
        return held_out(rows, fraction, held=part == "validation")

    def all_rows(self, part: Part) -> Iterator[tuple[str, ...]]:
        """Those of the files, or splits, that are given for a part."""
        raise NotImplementedError

    def nothing(self, part: Part) -> UserError:
        """What is wrong where a part has nothing; what to do if it was to be drawn from another."""
        drawn = part == "validation" and not self.validation
        advice = (
            ": of so few different ones none was drawn for it; give more, a larger "
            "--validation-fraction, or a file of its own with --validation"
        )
        return UserError(f"the {part} part has no {self.what}{advice if drawn else ''}")
