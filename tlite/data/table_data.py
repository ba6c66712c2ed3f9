"""What labelled texts and pairs of sentences have in common: tables, their parts and columns."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Literal

from tlite.config import Config
from tlite.data.reading import Split, find, is_table, kind_of, locate
from tlite.data.tables import (
    file_rows,
    held_out,
    hub_rows,
    import_datasets,
    is_saved,
    need_columns,
    side_of,
)
from tlite.errors import UserError

NAMES = {  # of the splits of a set
    "training": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}


SHARD = re.compile(r"-\d+-of-\d+\.|\.")  # what follows the name of a split
SHARD_NUMBER = re.compile(r"-\d+(?=-of-\d+\.)")


@dataclass(frozen=True)
class TableData(Config):
    """Tables (CSV, TSV, JSON Lines, Parquet), or a set on the hub, in parts."""

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
    """Names of the columns of CSV or TSV files whose first line is a row."""
    encoding: str = "utf-8"
    """How the text files are encoded."""
    validation_fraction: float = 0.1
    """Share of the training part that is kept for validation where no files are given."""
    split_by: Literal["label", "row", "text"] = "row"
    """Which rows are held out for validation. label: rows at even distances among those with the
    same label; row: rows at even distances; text: by the hash of the text, so that copies of a text
    are on one side, and rows that are added move no others."""
    stream: ClassVar[bool] = False
    what: ClassVar[str] = "texts"
    """What it has, for messages."""
    lines: ClassVar[tuple[str, ...]] = ("text",)
    """The kinds of its files without columns."""
    all_rows: ClassVar[Callable[..., Iterator[tuple[str, ...]]]]
    """Of a kind of rows a method: those of the files, or splits, that are given for a part."""

    def input_paths(self, part: Split, more: tuple[str, ...] = ()) -> list[str]:
        """The files, or the parts of a set on the hub, that a part is read from, and some more.

        Raises:
            UserError: one is not there, or no regular file.
        """
        names = getattr(self, part) or (self.training if part == "validation" else ())
        if not (hub := self.hub):
            return [os.path.realpath(find(name)) for name in (*names, *more)]
        place = os.path.realpath(hub) if os.path.isdir(hub) else f"the set {hub}"
        return [f"{place} ({name})" for name in (*names, *more)]

    def with_absolute_paths(self, moved: bool = False) -> "TableData":
        """Return the same data with absolute paths, so that any folder can read it.

        Args:
            moved: search the data folder for files that have moved since a run began. The test part
                is never searched for: no fingerprint of the run says what was in it.
        """
        if self.hub:  # a name on the hub may be that of something else in the data folder
            return dataclasses.replace(self, hub=locate(self.hub, in_data=False))
        path = locate(self.path, moved=moved)
        if path and os.path.isdir(path):  # the parts are its splits
            return dataclasses.replace(self, path=path)
        parts = {
            name: tuple(locate(n, moved=moved and name != "test") for n in getattr(self, name))
            for name in NAMES
        }
        return dataclasses.replace(self, path=path, **parts)

    def with_path(self) -> "TableData":
        """The same, with parts instead of a path to all of it.

        Raises:
            UserError: there are other parts, it is a folder without one to train on, or several
                files may be the same part.
        """
        if not self.path:
            return self
        if self.hub or self.training:
            raise UserError("give --path, or --training and --hub: not both")
        if not os.path.isdir(self.path):
            return dataclasses.replace(self, path="", training=(str(find(self.path)),))
        given = {part: names for part in NAMES if (names := getattr(self, part))}
        if saved := is_saved(self.path):
            sets = import_datasets().load_from_disk(self.path)
            files = [*sets] if isinstance(sets, dict) else ["train"]
        else:  # tables that are named by their parts
            files = sorted(name for name in os.listdir(self.path) if is_table(Path(name)))
            given = {part: tuple(map(locate, names)) for part, names in given.items()}
        found = {part: self._split_files(part, files) for part in NAMES if part not in given}
        if not saved:
            found = {p: tuple(os.path.join(self.path, n) for n in found[p]) for p in found}
        if not (found | given)["training"]:
            raise UserError(
                f"{self.path} has no table to train on (train.csv, say) and is no folder of "
                f"save_to_disk that has one: say --hub {self.path} --training SPLIT"
            )
        return dataclasses.replace(self, path="", hub=self.path * saved, **(found | given))

    def _split_files(self, part: Split, files: Iterable[str]) -> tuple[str, ...]:
        """The split of this part, or its file, or all its shards (train-00000-of-00002.parquet).

        Raises:
            UserError: there are several, of which one would be ignored.
        """
        named = [name for name in files if SHARD.split(name.lower())[0] in NAMES[part]]
        if len({SHARD_NUMBER.sub("", name) for name in named}) > 1:
            raise UserError(
                f"{self.path} has several {part} parts, {', '.join(named)}: name one with --{part}"
            )
        return tuple(named)

    def has_columns(self, source: str) -> bool:
        """Whether it is a table or a split, and no file of lines."""
        return bool(self.hub) or kind_of(find(source)) not in self.lines

    def first_row(self) -> tuple[dict[str, Any], str]:
        """The first row of the training part, and where it is.

        Raises:
            UserError: there is none.
        """
        if (row := next(self.table_rows(source := self.training[0]), None)) is None:
            raise UserError(f"{self.place(source)} has no rows")
        return row, self.place(source)

    def place(self, source: str) -> str:
        """Where the rows of a table or split are, for messages."""
        return f"{self.hub} ({source})" if self.hub else source

    def table_rows(self, source: str) -> Iterator[dict[str, Any]]:
        """The rows of a table or split.

        A pair that is in one column, {"translation": {"en": ..., "de": ...}}, is two columns.
        """
        if self.hub:
            rows = hub_rows(self.hub, source, self.stream)
        else:
            rows = file_rows(find(source), self.encoding, self.columns, any_size=self.stream)
        for row in rows:
            pair = row.get("translation")
            yield row | pair if isinstance(pair, dict) else row

    def cells(self, source: str, *columns: str) -> Iterator[tuple[str, ...]]:
        """These columns of each row, as texts; "" for what is null, or not a number.

        Raises:
            UserError: the first row has no such column.
        """
        for number, row in enumerate(self.table_rows(source)):
            if not number:
                need_columns(row, columns, self.place(source))
            values = map(row.get, columns)
            yield tuple("" if v is None or v != v else str(v) for v in values)

    def rows(self, part: Split) -> Iterator[tuple[str, ...]]:
        """The rows of a part, each with its text first.

        Raises:
            UserError: none are given, or not a fraction of them.
        """
        if not 0 < (fraction := self.validation_fraction) < 1:
            raise UserError(f"the validation fraction must be between 0 and 1, not {fraction}")
        own = part == "test" or bool(self.validation)
        source: Split = part if own else "training"
        if not getattr(self, source):
            raise UserError(f"no {source} {self.what} given: name them with --{source}")
        rows = self.all_rows(source)
        if own:
            return rows
        if self.split_by == "text":
            return (row for row in rows if side_of(row[0], fraction) == part)
        by_label = {"stratum": itemgetter(1)} if self.split_by == "label" else {}
        return held_out(rows, fraction, held=part == "validation", **by_label)

    def nothing(self, part: Split) -> UserError:
        """What is wrong where a part has nothing, and what to do if it was to be drawn."""
        return UserError(
            f"the {part} part has no {self.what}: of so few different ones none may be drawn for "
            "validation; give more, a larger --validation-fraction, or a file with --validation"
        )
