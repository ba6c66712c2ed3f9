"""Texts with labels, through Hugging Face `datasets`: files of your own, or a set on its hub."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

import tyro

from tlite.data.files import describe, find, kind_of
from tlite.data.reading import MAX_MEGABYTES, read_lines
from tlite.data.tables import check_fraction, file_rows, held_out, hub_rows, need_columns
from tlite.errors import UserError

Part = Literal["training", "validation", "test"]


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
    """A text; the value in its label column; its class, or None where that value is left out."""

    text: str
    value: str
    label: int | None


@dataclass(frozen=True)
class LabelledText:
    """JSON Lines, CSV, TSV, Parquet or Arrow files, lines of "label text", or a set on the hub."""

    hub: str = ""
    """Name of a set on huggingface.co, or its folder; the parts below are then its splits."""
    training: tuple[str, ...] = ()
    """Files to train on, themselves or in the data folder (TLITE_DATA)."""
    validation: tuple[str, ...] = ()
    """Files to choose a checkpoint by; unless given, a part of the training texts."""
    test: tuple[str, ...] = ()
    """Files that only `tlite evaluate --split test` reads."""
    text: str = "text"
    """The column with the text."""
    label: str = "label"
    """The column with the label."""
    labels: Annotated[dict[str, str], PAIRS] = field(default_factory=dict)
    """The class that each value of the label column means; "" leaves its texts out."""
    columns: tuple[str, ...] = ()
    """Names of the columns of CSV or TSV files whose first line does not name them."""
    encoding: str = "utf-8"
    """How the text files are encoded."""
    validation_fraction: float = 0.1
    """Share of the training texts that is kept for validation where no files are given."""
    max_megabytes: int = MAX_MEGABYTES
    """Size of the largest file that is read, unpacked; any where it is streamed."""
    stream: bool = False
    """Read the set anew whenever it is needed: only its tokens have to fit into memory."""

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order in which `labels` first has them."""
        return [name for name in dict.fromkeys(self.labels.values()) if name]

    def examples(self, part: Part) -> Iterable[Example]:
        """The texts of a part, those of classes that are left out among them.

        Raises:
            UserError: a file, a column or a label is not what it should be, or there is no text.
        """
        self._check()
        examples = Pass(self, part)
        return examples if self.stream else list(examples)

    def reads(self, part: Part, more: tuple[str, ...] = ()) -> list[str]:
        """The files, or the parts of a set on the hub, that a part is read from, and some more."""
        names = getattr(self, part) or (self.training if part == "validation" else ())
        return describe(self.hub, [*names, *more])

    def read(self, part: Part) -> Iterator[Example]:
        """One pass over a part."""
        ids = {name: index for index, name in enumerate(self.classes)}
        number, strange, first = 0, 0, ""
        for number, (text, value) in enumerate(self._rows(part), 1):
            if value not in self.labels:
                strange += 1
                first = first or f"{value!r} in row {number}"
                continue
            yield Example(text, value, ids.get(self.labels[value]))
        if strange:
            raise UserError(
                f"{strange:,} of the {number:,} labels of the {part} part are not among "
                f"{', '.join(self.labels)}; the first is {first}"
            )
        if not number:
            raise UserError(f"the {part} part has no texts")

    def _check(self) -> None:
        if not self.classes:
            raise UserError("no labels given: say what they mean with --labels VALUE CLASS ...")
        check_fraction(self.validation_fraction)

    def _rows(self, part: Part) -> Iterator[tuple[str, str]]:
        sources = getattr(self, part)
        if part == "validation" and not sources:
            rows = self._all_rows("training", self.training)
            yield from held_out(rows, self.validation_fraction, held=True)
        elif part == "training" and not self.validation:
            rows = self._all_rows("training", self.training)
            yield from held_out(rows, self.validation_fraction, held=False)
        else:
            yield from self._all_rows(part, sources)

    def _all_rows(self, part: Part, sources: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        if not sources:
            raise UserError(f"no {part} texts given: name them with --{part}")
        for source in sources:
            yield from self._rows_of(source)

    def texts(self, source: str) -> Iterator[str]:
        """The texts of a file or split, which needs no labels."""
        for text, _ in self._rows_of(source, labelled=False):
            yield text

    def _rows_of(self, source: str, labelled: bool = True) -> Iterator[tuple[str, str]]:
        if not self.hub and kind_of(path := find(source)) == "text":
            for line in read_lines(path, self.encoding, self.max_megabytes):
                value, _, text = line.partition(" ")
                yield text, value
            return
        if self.hub:
            rows, where = hub_rows(self.hub, source, self.stream), f"{self.hub} ({source})"
        else:
            limit = None if self.stream else self.max_megabytes
            rows = file_rows(path, self.encoding, self.columns, limit)
            where = str(path)
        for row in rows:
            yield self._columns(row, where, labelled)

    def _columns(self, row: dict, where: str, labelled: bool) -> tuple[str, str]:
        need_columns(row, (self.text, self.label) if labelled else (self.text,), where)
        text, value = row[self.text], row.get(self.label)
        return "" if text is None else str(text), str(value)


class Pass:
    """The examples of a part, read anew each time they are iterated over."""

    def __init__(self, data: LabelledText, part: Part):
        self._data, self._part = data, part

    def __iter__(self) -> Iterator[Example]:
        return self._data.read(self._part)
