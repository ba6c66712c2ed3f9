"""Texts with labels, and pairs of sentences: tables, files of lines, or data sets on the hub."""

import contextlib
import dataclasses
import os
import re
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import tyro

from tlite.config import Config
from tlite.data.reading import (
    Split,
    find,
    format_of,
    is_table,
    locate,
    read_lines,
    text_lines,
)
from tlite.data.tables import (
    check_columns,
    dataset_errors,
    dataset_rows,
    detect_column,
    detect_pair_columns,
    file_rows,
    hash_split,
    import_datasets,
    is_saved_dataset,
    open_dataset,
    open_parquet,
    sort_labels,
    stratified_split,
)
from tlite.errors import UserError, printable

MAX_CLASSES = 1000
MAX_NAMES = 20  # classes that a message names
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
    """All splits: a table, a folder of `save_to_disk`, or a folder with train.csv, test.csv, ..."""
    hub: str = ""
    """Name or folder of a data set of huggingface.co; training, validation and test then name its
    splits."""
    training: tuple[str, ...] = ()
    """Training files, here or in the data folder (TLITE_DATA)."""
    validation: tuple[str, ...] = ()
    """Validation files; (): a fraction of the training split."""
    test: tuple[str, ...] = ()
    """Test files, which only `tlite evaluate --split test` reads."""
    columns: tuple[str, ...] = ()
    """Column names for CSV or TSV files that have no header line."""
    encoding: str = "utf-8"
    """Encoding of text files."""
    validation_fraction: float = 0.1
    """Fraction of the training split for validation, without validation files."""
    split_by: Literal["label", "row", "text"] = "row"
    """Choice of the rows for validation. row: at even distances; label: at even distances among the
    rows of each label; text: by a hash of the text, so that copies are in one split, and additional
    rows move no others."""
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
            UserError: a file is missing, or is not a regular file.
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
            library = import_datasets()
            with dataset_errors(self.path, "all splits"):
                saved = library.load_from_disk(self.path)
            names, folder = list(saved) if isinstance(saved, dict) else ["train"], ""
        else:  # tables that are named by their splits
            names, folder = sorted(n for n in os.listdir(self.path) if is_table(Path(n))), self.path
            inside = {name: os.path.join(folder, name) for name in names}
            splits = {
                s: tuple(inside.get(n) or locate(n) for n in files) for s, files in splits.items()
            }
        for split in SPLIT_NAMES.keys() - splits.keys():
            splits[split] = tuple(os.path.join(folder, n) for n in self._names_of(split, names))
        if not splits["training"]:
            raise UserError(
                f"{self.path} has no table to train on, such as train.csv, and no such split by "
                f"save_to_disk: set --hub {self.path} --training SPLIT"
            )
        return dataclasses.replace(self, path="", hub=self.path * is_saved, **splits)

    def _names_of(self, split: str, names: Iterable[str]) -> list[str]:
        """Return the name of a split, or those of its shards (train-00000-of-00002.parquet)."""
        names = [name for name in names if SHARD.split(name.lower())[0] in SPLIT_NAMES[split]]
        if len({SHARD_NUMBER.sub("", name) for name in names}) > 1:
            raise UserError(
                f"{self.path} has several {split} splits, {', '.join(names)}: "
                + ("keep only one of them" if split == "training" else f"name one with --{split}")
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
            yield tuple(_cell_text(row.get(name), name, self.place(source)) for name in columns)

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


# Labelled texts


def _parse_pairs(words: list[str]) -> dict[str, str]:
    if len(words) % 2:
        raise ValueError("a class must follow each value")
    return dict(zip(words[::2], words[1::2], strict=True))


# On the command line the keys and values of a dictionary alternate: --labels 1 bad 2 good
PAIRS = tyro.constructors.PrimitiveConstructorSpec(
    nargs="*",
    metavar="VALUE CLASS ...",
    instance_from_str=_parse_pairs,
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=lambda value: [word for pair in value.items() for word in pair],
)


class Example(NamedTuple):
    """A text, the value in its label column, and its class or None."""

    text: str
    value: str
    label: int | None


@dataclass(frozen=True)
class LabelledText(TableData):
    """JSON Lines, CSV, TSV or Parquet files, lines of "label text", or a data set on the hub."""

    text_column: str = ""
    """Column with the text; "": recognised by its name."""
    label_column: str = ""
    """Column with the label; "": recognised by its name."""
    labels: Annotated[dict[str, str], PAIRS] = field(default_factory=dict)
    """Class of each value in the label column, "" to leave its texts out; {}: each value is a
    class."""
    split_by: Literal["label", "row", "text"] = "label"
    stream: bool = False
    """Read the data again whenever it is needed: only its tokens must fit into memory."""

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of `labels`."""
        return [name for name in dict.fromkeys(self.labels.values()) if name]

    def with_columns(self) -> "LabelledText":
        """Return the same data with detected columns and classes, which are printed.

        Raises:
            UserError: they are ambiguous; the option is named.
        """
        data = self.with_splits()
        if not data.training or (data.labels and data.text_column and data.label_column):
            return data
        if has_columns := data.has_columns(data.training[0]):
            row, place = data.first_row()
            text = data.text_column or detect_column([*row], place, "text", data.label_column)
            label = data.label_column or detect_column([*row], place, "label", text)
            check_columns(row, (text, label), place)
            data = dataclasses.replace(data, text_column=text, label_column=label)
        if not data.labels:
            return data._with_classes()
        if has_columns:
            data._print_columns(data.classes)
        return data

    def _print_columns(self, classes: list[str]) -> None:
        columns = "class: the first word of a line"
        if self.text_column:
            columns = f"text: {self.text_column!r}, class: {self.label_column!r}"
        print(printable(f"{columns} ({_shorten(classes)})"), flush=True)

    def _with_classes(self) -> "LabelledText":
        """Return the same data with a class for each value in the training split."""
        training, validation = (
            Counter(value for text, value in self.rows(split) if text.strip())
            for split in ("training", "validation")
        )
        total, names = sum(training.values()), self._class_names()
        classes = {v: names.get(v, v) for v in sort_labels(filter(None, training))}
        if names:  # a value without a name, such as -1, is not a class
            classes = {value: name for value, name in classes.items() if value in names}
        self._print_columns([*classes.values()])
        if len(classes) > min(MAX_CLASSES, max(total / 2, 2)):
            column, remedy = "the first words of the lines have", "begin each line with its class"
            if self.label_column:
                column = f"{self.label_column!r} has"
                remedy = "name another column with --label-column"
            raise UserError(
                f"{column} {len(classes):,} different values in {total:,} texts, too many for "
                f"classes: {remedy}"
            )
        counts = [f"{name}: {training[value]:,}" for value, name in classes.items()]
        print(printable(f"training texts of each class: {_shorten(counts)}"))
        others = dict.fromkeys(v for v in ["", *training, *validation] if v not in classes)
        if number := sum(training[value] + validation[value] for value in others):
            unknown = _shorten([*filter(None, others)])
            reason = f" or an unknown one ({unknown})" if unknown else ""
            message = f"warning: {number:,} texts are left out: they have no class{reason}"
            print(printable(message), file=sys.stderr)
        return dataclasses.replace(self, labels=classes | dict.fromkeys(others, ""))

    def _class_names(self) -> dict[str, str]:
        """Return the names of numbered classes, {"0": "negative", ...}, that `datasets` stores in
        the first training table; {} if there are none."""
        source, features = self.training[0], {}
        if self.hub:
            dataset = open_dataset(self.hub, source, self.stream, self.subset)
            features = dataset.features or {}
        elif format_of(path := find(source)) == "parquet":
            with open_parquet(path) as file:
                schema, columns = file.schema_arrow, file.schema_arrow.names
            # The other columns may have types that `datasets` does not know.
            others = [i for i, name in enumerate(columns) if name != self.label_column]
            for index in reversed(others):
                schema = schema.remove(index)
            with contextlib.suppress(ValueError, NotImplementedError):
                features = import_datasets().Features.from_arrow_schema(schema)
        names = getattr(features.get(self.label_column), "names", [])
        return {str(number): name for number, name in enumerate(names)}

    def examples(self, split: Split) -> Iterable[Example]:
        """Return the texts of a split; those without a class have the label None.

        Raises:
            UserError: a file, column or label is invalid, or there is no text.
        """
        if not self.classes:
            raise UserError("there are no classes: name them with --labels VALUE CLASS ...")
        examples = StreamedExamples(self, split)
        return examples if self.stream else list(examples)

    def split_rows(self, split: Split) -> Iterator[tuple[str, ...]]:
        columns = self.text_column or "text", self.label_column or "label"
        for source in getattr(self, split):
            for text, value in self._source_rows(source, *columns):
                yield text, value.strip()  # " pos" and "pos" are one class

    def texts(self, source: str) -> Iterator[str]:
        """Return an iterator over the texts of a file or split, which needs no labels.

        Lines of a text file begin with a label only if those of the training files do.
        """
        if not self.has_columns(source) and self.has_columns(self.training[0]):
            return self._lines(source)
        return (row[0] for row in self._source_rows(source, self.text_column or "text"))

    def _source_rows(self, source: str, *columns: str) -> Iterator[tuple[str, ...]]:
        if self.has_columns(source):
            return self.cells(source, *columns)
        parts = (line.partition(" ") for line in self._lines(source))
        return ((text, value) for value, _, text in parts)

    def _lines(self, source: str) -> Iterator[str]:
        """Return an iterator over the lines of a file, without their ends."""
        lines = text_lines(find(source), self.encoding, unlimited=self.stream)
        return (line.replace("\r\n", "\n").removesuffix("\n") for line in lines)


@dataclass(frozen=True)
class StreamedExamples:
    """The examples of a split, read again by each iteration."""

    data: LabelledText
    split: Split

    def __iter__(self) -> Iterator[Example]:
        data, number = self.data, 0
        ids = {name: index for index, name in enumerate(data.classes)}
        for number, (text, value) in enumerate(data.rows(self.split), 1):
            if text.strip() and value not in data.labels:
                raise UserError(
                    f"row {number} of the {self.split} split has the label {value!r}, which is not "
                    f"among {', '.join(filter(None, data.labels))}: see --labels"
                )
            yield Example(text, value, ids.get(data.labels[value]) if text.strip() else None)
        if not number:
            raise data.empty_split_error(self.split)


def _cell_text(value: Any, column: str, place: str) -> str:
    """Return a value of a table as text, "" for null and NaN."""
    if isinstance(value, bytes | list | dict):
        kind = type(value).__name__
        raise UserError(f"{place}: the column {column!r} has values of type {kind}, not texts")
    return "" if value is None or value != value else str(value)


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMES]) + (", ..." if len(names) > MAX_NAMES else "")


# Pairs of sentences


class Pair(NamedTuple):
    """A sentence, its translation, and their place for messages."""

    source: str
    target: str
    where: str


@dataclass(frozen=True)
class ParallelText(TableData):
    """Two text files with a sentence per line, tables, or a data set on the hub."""

    training: tuple[str, ...] = ()
    """Tables, or pairs of text files (source, target, source, ...), here or in TLITE_DATA."""
    split_by: Literal["row", "text"] = "row"
    validation_fraction: float = 0.05
    """Fraction of the training pairs for validation, without validation files."""
    source_column: str = ""
    """Column with the sentence; "": recognised by its name, or the first of two."""
    target_column: str = ""
    """Column with its translation; "": recognised by its name, or the second of two."""
    noun: ClassVar[str] = "sentences"
    plain_formats: ClassVar[tuple[str, ...]] = ("text", "")

    def with_columns(self) -> "ParallelText":
        """Return the same data with detected columns, which are printed.

        Raises:
            UserError: they are ambiguous; the option is named.
        """
        data = self.with_splits()
        if not data.training or not data.has_columns(data.training[0]):
            return data
        if data.source_column and data.target_column:
            return data
        if data.source_column or data.target_column:
            raise UserError("--source-column and --target-column need each other: set both")
        row, place = data.first_row()
        source, target = detect_pair_columns([*row], place)
        columns = f"source: {source!r}, target: {target!r}"
        print(printable(f"{columns} (if this is the first row, use --columns)"), flush=True)
        return dataclasses.replace(data, source_column=source, target_column=target)

    def pairs(self, split: Split) -> list[Pair]:
        """Return the pairs of a split; those with an empty side are left out, with a warning.

        Raises:
            UserError: files have different lengths, a file or column is invalid, or there is no
                pair.
        """
        pairs, empty = [], []
        for pair in self.rows(split):
            (pairs if pair.source.strip() and pair.target.strip() else empty).append(pair)
        if empty:
            number, total = len(empty), len(pairs) + len(empty)
            warning = f"warning: {number:,} of the {total:,} {split} pairs are left out, as a side "
            print(printable(f"{warning}is empty; the first is {empty[0].where}"), file=sys.stderr)
        if not pairs:
            raise self.empty_split_error(split)
        return pairs

    def split_rows(self, split: Split) -> Iterator[Pair]:
        names = getattr(self, split)
        if all(are_tables := [*map(self.has_columns, names)]):
            columns = self.source_column or "source", self.target_column or "target"
            for name in names:
                for number, texts in enumerate(self.cells(name, *columns), 1):
                    yield Pair(*texts, f"row {number} of {self.place(name)}")
            return
        if any(are_tables) or len(names) % 2:
            raise UserError(
                f"the {split} split needs tables, or text files in pairs of source and target, not "
                f"{', '.join(names)}"
            )
        for source, target in zip(names[::2], names[1::2], strict=True):
            sides = [read_lines(find(name), self.encoding) for name in (source, target)]
            if len(sides[0]) != len(sides[1]):
                raise UserError(
                    f"{source} has {len(sides[0]):,} lines, but {target} has {len(sides[1]):,}"
                )
            for number, pair in enumerate(zip(*sides, strict=True), 1):
                yield Pair(*pair, f"line {number} of {source} and {target}")
