"""Texts with labels, and pairs of sentences: tables of your own, lines, or a set on the hub."""

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple

import tyro

from tlite.data.reading import Split, find, kind_of, read_lines
from tlite.data.table_data import TableData
from tlite.data.tables import (
    column_of,
    import_datasets,
    in_order,
    need_columns,
    open_set,
    pair_columns,
    parquet_file,
)
from tlite.errors import UserError, printable

MOST_CLASSES = 1000
SHOWN = 20  # classes that are named in a line


def _pairs(words: list[str]) -> dict[str, str]:
    if len(words) % 2:
        raise ValueError("give a class after each value")
    return dict(zip(words[::2], words[1::2], strict=True))


# On the command line a dictionary is its keys and values in turn: --labels 1 bad 2 good
PAIRS = tyro.constructors.PrimitiveConstructorSpec(
    nargs="*",
    metavar="VALUE CLASS ...",
    instance_from_str=_pairs,
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=lambda value: [word for pair in value.items() for word in pair],
)


class Example(NamedTuple):
    """A text; the value in its label column; its class, or None where it is left out."""

    text: str
    value: str
    label: int | None


@dataclass(frozen=True)
class LabelledText(TableData):
    """JSON Lines, CSV, TSV or Parquet files, lines of "label text", or a set on the hub."""

    text_column: str = ""
    """The column with the text; the one whose name is known unless given."""
    label_column: str = ""
    """The column with the label; the one whose name is known unless given."""
    labels: Annotated[dict[str, str], PAIRS] = field(default_factory=dict)
    """The class that each value of the label column means, "" leaves its texts out; each is a class
    of its own unless given."""
    split_by: Literal["label", "row", "text"] = "label"
    stream: bool = False
    """Read the set anew whenever it is needed: only its tokens have to fit into memory."""

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order in which `labels` first has them."""
        return [name for name in dict.fromkeys(self.labels.values()) if name]

    def with_columns(self) -> "LabelledText":
        """The same with the columns and classes that its tables have; they are printed.

        Raises:
            UserError: they can't be told; the option is named that does.
        """
        data = self.with_path()
        if not data.training or (data.labels and data.text_column and data.label_column):
            return data
        if table := data.has_columns(data.training[0]):
            row, where = data.first_row()
            text = data.text_column or column_of(row, where, "text", data.label_column)
            label = data.label_column or column_of(row, where, "label", text)
            need_columns(row, (text, label), where)
            data = dataclasses.replace(data, text_column=text, label_column=label)
        if not data.labels:
            return data._with_classes()
        if table:
            data._print(data.classes)
        return data

    def _print(self, classes: list[str]) -> None:
        columns = f"text: {self.text_column!r}, class: {self.label_column!r}"
        columns = columns if self.text_column else "class: the first word of a line"
        print(printable(f"{columns} ({_short(classes)})"), flush=True)

    def _with_classes(self) -> "LabelledText":
        """The same with a class for each value that the training part has."""
        training, validation = (
            Counter(value for text, value in self.rows(part) if text.strip())
            for part in ("training", "validation")
        )
        total, names = sum(training.values()), self._names_of_classes()
        known = {value: names.get(value, value) for value in in_order(filter(None, training))}
        if names:  # -1 is none of them
            known = {value: name for value, name in known.items() if value in names}
        self._print([*known.values()])
        if len(known) > min(MOST_CLASSES, max(total / 2, 2)):
            raise UserError(
                f"{self.label_column!r} has {len(known):,} different values in {total:,} texts: "
                "these are no classes; name another column with --label-column"
            )
        counts = [f"{name}: {training[value]:,}" for value, name in known.items()]
        print(printable(f"training texts of each class: {_short(counts)}"))
        left_out = dict.fromkeys(v for v in ["", *training, *validation] if v not in known)
        if missing := sum(training[value] + validation[value] for value in left_out):
            others = _short([*filter(None, left_out)])
            of_others = f", or one that no training text has ({others})" if others else ""
            print(printable(f"texts left out: {missing:,}, without a class{of_others}"))
        return dataclasses.replace(self, labels=known | dict.fromkeys(left_out, ""))

    def _names_of_classes(self) -> dict[str, str]:
        """The names that `datasets` knows of the label column's numbers in the first of the
        training tables, {"0": "negative", ...}; or none."""
        first, features = self.training[0], {}
        if self.hub:
            features = open_set(self.hub, first, self.stream).features or {}
        elif kind_of(path := find(first)) == "parquet":
            with parquet_file(path) as file:
                features = import_datasets().Features.from_arrow_schema(file.schema_arrow)
        names = getattr(features.get(self.label_column), "names", [])
        return {str(number): name for number, name in enumerate(names)}

    def examples(self, part: Split) -> Iterable[Example]:
        """The texts of a part, those of classes that are left out among them.

        Raises:
            UserError: a file, a column or a label is not what it should be, or there is no text.
        """
        if not self.classes:
            raise UserError("no labels given: say what they mean with --labels VALUE CLASS ...")
        examples = Pass(self, part)
        return examples if self.stream else list(examples)

    def all_rows(self, part: Split) -> Iterator[tuple[str, ...]]:
        columns = self.text_column or "text", self.label_column or "label"
        for source in getattr(self, part):
            for text, value in self._rows_of(source, *columns):
                yield text, value.strip()  # " pos" is no class beside "pos"

    def texts(self, source: str) -> Iterator[str]:
        """The texts of a file or split, which needs no labels."""
        return (row[0] for row in self._rows_of(source, self.text_column or "text"))

    def _rows_of(self, source: str, *columns: str) -> Iterator[tuple[str, ...]]:
        if self.has_columns(source):
            return self.cells(source, *columns)
        lines = (line.partition(" ") for line in read_lines(find(source), self.encoding))
        return ((text, value) for value, _, text in lines)


@dataclass(frozen=True)
class Pass:
    """The examples of a part, read anew each time they are iterated over."""

    data: LabelledText
    part: Split

    def __iter__(self) -> Iterator[Example]:
        """A text without a letter has no class."""
        data, number = self.data, 0
        ids = {name: index for index, name in enumerate(data.classes)}
        for number, (text, value) in enumerate(data.rows(self.part), 1):
            if value not in data.labels:
                raise UserError(
                    f"row {number} of the {self.part} part has the label {value!r}, which is not "
                    f"among {', '.join(filter(None, data.labels))}: see --labels"
                )
            label = ids.get(data.labels[value]) if text.strip() else None
            yield Example(text, value, label)
        if not number:
            raise data.nothing(self.part)


def _short(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


# Pairs of sentences


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
    split_by: Literal["row", "text"] = "row"
    validation_fraction: float = 0.05
    """Share of the training pairs that is kept for validation where no files are given."""
    source_column: str = ""
    """The column with the sentence; of two the first, unless it is known or given."""
    target_column: str = ""
    """The column with its translation; of two the second, unless it is known or given."""
    what: ClassVar[str] = "sentences"
    lines: ClassVar[tuple[str, ...]] = ("text", "")

    def with_columns(self) -> "ParallelText":
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

    def pairs(self, part: Split) -> list[Pair]:
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

    def all_rows(self, part: Split) -> Iterator[Pair]:
        names = getattr(self, part)
        if all(tables := [*map(self.has_columns, names)]):
            columns = self.source_column or "source", self.target_column or "target"
            for name in names:
                for number, texts in enumerate(self.cells(name, *columns), 1):
                    yield Pair(*texts, f"row {number} of {self.place(name)}")
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
