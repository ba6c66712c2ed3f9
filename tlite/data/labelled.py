"""Texts with labels: tables of your own, lines of a class and a text, or a set on the hub."""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import tyro

from tlite.data.columns import MOST_CLASSES, class_column, in_order, text_column
from tlite.data.files import find, kind_of
from tlite.data.reading import read_lines
from tlite.data.table_data import TableData
from tlite.data.tables import Part, need_columns
from tlite.errors import UserError
from tlite.terminal import printable

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
    """JSON Lines, CSV, TSV, Parquet or Arrow files, lines of "label text", or a set on the hub."""

    text_column: str = field(default="", metadata={"was": "text"})
    """The column with the text; the one whose name is known unless given."""
    label_column: str = field(default="", metadata={"was": "label"})
    """The column with the label; the one whose name is known unless given."""
    labels: Annotated[dict[str, str], PAIRS] = field(default_factory=dict)
    """The class that each value of the label column means, "" leaves its texts out; each is a class
    of its own unless given."""
    stream: bool = False
    """Read the set anew whenever it is needed: only its tokens have to fit into memory."""

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order in which `labels` first has them."""
        return [name for name in dict.fromkeys(self.labels.values()) if name]

    def found(self) -> "LabelledText":
        """The same with the columns and classes that its tables have; they are printed.

        Raises:
            UserError: they can't be told; the option is named that does.
        """
        data = self.with_path()
        if not data.training:
            return data
        if data.hub or kind_of(find(data.training[0])) != "text":
            given = tuple(filter(None, (data.text_column, data.label_column)))
            data = data.with_columns(given)
            if data.labels and len(given) == 2:
                return data
            row, where = data.first_row()
            need_columns(row, given, where)
            text = data.text_column or text_column([*row], where, data.label_column)
            label = data.label_column or class_column([*row], text, where)
            data = dataclasses.replace(data, text_column=text, label_column=label)
        if not data.labels:
            return data._with_classes()
        if data.text_column:
            data._print(data.classes)
        return data

    def _print(self, classes: list[str]) -> None:
        columns = f"text: {self.text_column!r}, class: {self.label_column!r}"
        columns = columns if self.text_column else "class: the first word of a line"
        print(printable(f"{columns} ({_short(classes)})"), flush=True)

    def _with_classes(self) -> "LabelledText":
        """The same with a class for each value that the training part has."""
        names = self.names_of_classes(self.label_column) if self.label_column else {}
        training, validation = (
            Counter(value for text, value in self.rows(part) if text.strip())
            for part in ("training", "validation")
        )
        missing = training.pop("", 0) + validation.pop("", 0)
        known = {value: names.get(value, value) for value in in_order(training)}
        if names:  # -1 is none of them
            known = {value: name for value, name in known.items() if value in names}
        self._print([*known.values()])
        total = sum(training.values())
        if len(known) > min(MOST_CLASSES, max(total / 2, 2)):
            raise UserError(
                f"{self.label_column!r} has {len(known):,} different values in {total:,} texts: "
                "these are no classes; name another column with --label-column"
            )
        counts = [f"{name}: {training[value]:,}" for value, name in known.items()]
        print(printable(f"training texts of each class: {_short(counts)}"))
        others = [v for v in {**training, **validation} if v not in known]
        missing += sum(training[value] + validation[value] for value in others)
        if missing:
            of_others = f", or one that no training text has ({_short(others)})" if others else ""
            print(printable(f"texts left out: {missing:,}, without a class{of_others}"))
        left_out = dict.fromkeys(["", *others], "")
        return dataclasses.replace(self, labels=known | left_out)

    def examples(self, part: Part) -> Iterable[Example]:
        """The texts of a part, those of classes that are left out among them.

        Raises:
            UserError: a file, a column or a label is not what it should be, or there is no text.
        """
        if not self.classes:
            raise UserError("no labels given: say what they mean with --labels VALUE CLASS ...")
        examples = Pass(self, part)
        return examples if self.stream else list(examples)

    def read(self, part: Part) -> Iterator[Example]:
        """One pass over a part. A text without a letter has no class."""
        ids = {name: index for index, name in enumerate(self.classes)}
        number, strange, first = 0, 0, ""
        for number, (text, value) in enumerate(self.rows(part), 1):
            value = value if value in self.labels else _as_before(value, self.labels)
            if value not in self.labels:
                strange += 1
                first = first or f"{value!r} in row {number}"
                continue
            label = ids.get(self.labels[value]) if text.strip() else None
            yield Example(text, value, label)
        if strange:
            raise UserError(
                f"{strange:,} of the {number:,} labels of the {part} part are not among "
                f"{', '.join(filter(None, self.labels))}; the first is {first}"
            )
        if not number:
            raise self.nothing(part)

    def all_rows(self, part: Part) -> Iterator[tuple[str, str]]:
        for source in getattr(self, part):
            yield from self._rows_of(source)

    def texts(self, source: str) -> Iterator[str]:
        """The texts of a file or split, which needs no labels."""
        for text, _ in self._rows_of(source, labelled=False):
            yield text

    def _rows_of(self, source: str, labelled: bool = True) -> Iterator[tuple[str, str]]:
        if not self.hub and kind_of(path := find(source)) == "text":
            for line in read_lines(path, self.encoding):
                value, _, text = line.partition(" ")
                yield text, value
            return
        columns = (self.text_column or "text", self.label_column or "label")[: 1 + labelled]
        rows, where = self.table_rows(source)
        for row in rows:
            need_columns(row, columns, where)
            text, value = (_plain(row.get(name)) for name in (*columns, "")[:2])
            yield text, value


class Pass:
    """The examples of a part, read anew each time they are iterated over."""

    def __init__(self, data: LabelledText, part: Part):
        self._data, self._part = data, part

    def __iter__(self) -> Iterator[Example]:
        return self._data.read(self._part)


def _plain(value: object) -> str:
    """As text; "" where there is none: null, or not a number."""
    return "" if value is None or value != value else str(value)


def _as_before(value: str, labels: Iterable[str]) -> str:
    """A value of a CSV as 0.2.0 spelled it, which took 01 for 1, 5 for 5.0 and true for True."""
    spellings = [value.strip().capitalize()]
    with contextlib.suppress(ValueError, OverflowError):
        number = float(value)
        spellings += [str(int(number)), str(number)]
    return next((spelling for spelling in spellings if spelling in labels), value)


def _short(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
