"""Tables and data sets with splits: the base class of labelled texts and sentence pairs."""

import dataclasses
import os
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Literal

from tlite.config import Config
from tlite.data.reading import Split, find, format_of, is_table, locate
from tlite.data.tables import (
    check_columns,
    dataset_rows,
    file_rows,
    hash_split,
    import_datasets,
    is_saved_dataset,
    stratified_split,
)
from tlite.errors import UserError

SPLIT_NAMES = {  # of data sets
    "training": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
SHARD = re.compile(r"-\d+-of-\d+\.|\.")  # what follows the name of a split
SHARD_NUMBER = re.compile(r"-\d+(?=-of-\d+\.)")


@dataclass(frozen=True)
class TableData(Config):
    """Tables (CSV, TSV, JSON Lines, Parquet), or a data set on the hub, in splits."""

    path: str = ""
    """All of it: a table, a folder of `save_to_disk`, or one of tables (train.csv, test.csv)."""
    hub: str = ""
    """Name of a data set on huggingface.co, or its folder; the fields below are then its splits."""
    training: tuple[str, ...] = ()
    """Training files, here or in the data folder (TLITE_DATA)."""
    validation: tuple[str, ...] = ()
    """Validation files; (): a fraction of the training split."""
    test: tuple[str, ...] = ()
    """Test files, which only `tlite evaluate --split test` reads."""
    columns: tuple[str, ...] = ()
    """Names of the columns of CSV or TSV files whose first line is a row."""
    encoding: str = "utf-8"
    """Encoding of text files."""
    validation_fraction: float = 0.1
    """Fraction of the training split for validation, without validation files."""
    split_by: Literal["label", "row", "text"] = "row"
    """Which rows are for validation. label: at even distances among those with the same label; row:
    at even distances; text: by the hash of the text, so that copies are in one split, and
    additional rows move no others."""
    subset: str = ""
    """Configuration of a data set on the hub, such as sst2 of glue."""
    stream: ClassVar[bool] = False
    noun: ClassVar[str] = "texts"
    """Its examples, in messages."""
    plain_formats: ClassVar[tuple[str, ...]] = ("text",)
    """Formats of its files without columns."""

    @abstractmethod
    def split_rows(self, split: Split) -> Iterator[tuple[str, ...]]:
        """Yield the rows of the files or data-set splits in the field `split`, their text first."""

    def input_paths(self, split: Split, more: tuple[str, ...] = ()) -> list[str]:
        """Return the files, or splits of a set on the hub, of a split, and some more.

        Raises:
            UserError: one is missing, or is not a regular file.
        """
        names = getattr(self, split) or (self.training if split == "validation" else ())
        if not (hub := self.hub):
            return [os.path.realpath(find(name)) for name in (*names, *more)]
        place = os.path.realpath(hub) if os.path.isdir(hub) else f"the set {hub}"
        return [f"{place} ({name})" for name in (*names, *more)]

    def with_absolute_paths(self, moved: bool = False) -> "TableData":
        """Return the same data with absolute paths, so that it can be read from any folder.

        Args:
            moved: search the data folder for files that have moved since a run began, but not for
                test files, which no fingerprint of a run covers.
        """
        if self.hub:  # the data folder may have something else of this name
            return dataclasses.replace(self, hub=locate(self.hub, in_data=False))
        path = locate(self.path, moved=moved)
        if path and os.path.isdir(path):  # the fields are its splits
            return dataclasses.replace(self, path=path)
        splits = {
            name: tuple(locate(n, moved=moved and name != "test") for n in getattr(self, name))
            for name in SPLIT_NAMES
        }
        return dataclasses.replace(self, path=path, **splits)

    def with_splits(self) -> "TableData":
        """Return the same data with files of splits instead of a `path` to all of it.

        Raises:
            UserError: other files are named too, there are none for training, or several files may
                be the same split.
        """
        if not self.path:
            return self
        if self.hub or self.training:
            raise UserError("--path excludes --training and --hub: leave one out")
        if not os.path.isdir(self.path):
            return dataclasses.replace(self, path="", training=(str(find(self.path)),))
        splits = {split: names for split in SPLIT_NAMES if (names := getattr(self, split))}
        if is_saved := is_saved_dataset(self.path):
            saved = import_datasets().load_from_disk(self.path)
            names, folder = list(saved) if isinstance(saved, dict) else ["train"], ""
        else:  # tables that are named by their splits
            names, folder = sorted(n for n in os.listdir(self.path) if is_table(Path(n))), self.path
            splits = {split: tuple(map(locate, files)) for split, files in splits.items()}
        for split in SPLIT_NAMES.keys() - splits.keys():
            splits[split] = tuple(os.path.join(folder, n) for n in self._names_of(split, names))
        if not splits["training"]:
            raise UserError(
                f"{self.path} has no table to train on, such as train.csv, and no such split by "
                f"save_to_disk: set --hub {self.path} --training SPLIT"
            )
        return dataclasses.replace(self, path="", hub=self.path * is_saved, **splits)

    def _names_of(self, split: str, names: Iterable[str]) -> list[str]:
        """Return the name of a split, or those of its shards (train-00000-of-00002.parquet).

        Raises:
            UserError: there are several, of which one would be ignored.
        """
        names = [name for name in names if SHARD.split(name.lower())[0] in SPLIT_NAMES[split]]
        if len({SHARD_NUMBER.sub("", name) for name in names}) > 1:
            raise UserError(
                f"{self.path} has several {split} splits, {', '.join(names)}: name one with "
                f"--{split}"
            )
        return names

    def has_columns(self, source: str) -> bool:
        """True for a table or a split of a data set, False for a file of lines."""
        return bool(self.hub) or format_of(find(source)) not in self.plain_formats

    def first_row(self) -> tuple[dict[str, Any], str]:
        """Return the first row of the training split and its place; without rows: `UserError`."""
        if (row := next(self.table_rows(source := self.training[0]), None)) is None:
            raise UserError(f"{self.place(source)} has no rows")
        return row, self.place(source)

    def place(self, source: str) -> str:
        """Return the name of a table or split in messages."""
        return f"{self.hub} ({source})" if self.hub else source

    def table_rows(self, source: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table or split.

        The pair in one column, {"translation": {"en": ..., "de": ...}}, becomes two columns.
        """
        if self.hub:
            rows = dataset_rows(self.hub, source, self.stream, self.subset)
        else:
            rows = file_rows(find(source), self.encoding, self.columns, unlimited=self.stream)
        for row in rows:
            pair = row.get("translation")
            yield row | pair if isinstance(pair, dict) else row

    def cells(self, source: str, *columns: str) -> Iterator[tuple[str, ...]]:
        """Yield columns of each row as texts, "" for null and NaN; no such column: `UserError`."""
        for number, row in enumerate(self.table_rows(source)):
            if not number:
                check_columns(row, columns, self.place(source))
            values = map(row.get, columns)
            yield tuple("" if v is None or v != v else str(v) for v in values)

    def rows(self, split: Split) -> Iterator[tuple[str, ...]]:
        """Return an iterator over the rows of a split.

        Raises:
            UserError: it has no files, or the validation fraction is not in (0, 1).
        """
        if not 0 < (fraction := self.validation_fraction) < 1:
            raise UserError(f"the validation fraction must be between 0 and 1, not {fraction}")
        has_files = split == "test" or bool(self.validation)
        files_of: Split = split if has_files else "training"
        if not getattr(self, files_of):
            raise UserError(f"there are no {files_of} {self.noun}: name files with --{files_of}")
        rows = self.split_rows(files_of)
        if has_files:
            return rows
        if self.split_by == "text":
            return (row for row in rows if hash_split(row[0], fraction) == split)
        if self.split_by == "label":
            return stratified_split(rows, fraction, split, itemgetter(1))
        return stratified_split(rows, fraction, split)

    def empty_split_error(self, split: Split) -> UserError:
        return UserError(
            f"the {split} split has no {self.noun}: add rows, raise --validation-fraction, or name "
            "a file with --validation"
        )
