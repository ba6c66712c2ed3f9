"""Texts to learn from: frozen dataclasses with `load() -> str`, so that a config can hold them."""

import dataclasses
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tlite.config import run_file, shipped_experiments
from tlite.data.columns import text_column
from tlite.data.download import data_folder, find_downloaded, find_or_download
from tlite.data.files import find, is_table, locate
from tlite.data.reading import is_there, read_text
from tlite.data.table_data import TableData
from tlite.data.tables import Part, is_saved, need_columns
from tlite.errors import UserError
from tlite.terminal import printable


@dataclass(frozen=True)
class BuiltinText:
    """The help topics that every Python carries (`pydoc_data.topics`): English about Python.

    Their length differs between versions of Python; the run folder records it with a hash.
    """

    validation_fraction: float = 0.05
    """The last part of the text, kept for validation."""

    def load(self) -> str:
        topics = importlib.import_module("pydoc_data.topics").topics
        return "\n".join(topics[name] for name in sorted(topics))


@dataclass(frozen=True)
class TextFile:
    """A text of your own: a UTF-8 file (.gz too), or the texts of a table, one after the other."""

    path: str = ""
    """A text file; a table (CSV, TSV, JSON Lines, Parquet), or a folder of `save_to_disk`."""
    validation_fraction: float = 0.05
    """The last part of the text, kept for validation."""
    text_column: str = ""
    """Of a table: the column with the text; the one whose name is known unless given."""

    read_earlier = staticmethod(TableData.read_earlier)

    def reads(self, part: Part) -> list[str]:
        """The file that every part is read from."""
        there = is_saved(self.path) or is_there(Path(self.path))
        return [os.path.realpath(self.path)] if there else []

    def located(self) -> "TextFile":
        """The same, from whatever folder it is read."""
        return dataclasses.replace(self, path=locate(self.path))

    def found(self) -> "TextFile":
        """The same with the column of the texts, if it is a table; it is printed.

        Raises:
            UserError: it can't be told; the option is named that does.
        """
        if not self._is_table or self.text_column:
            return self
        row, where = self._table().first_row()
        column = text_column([*row], where)
        print(printable(f"text: {column!r}"), flush=True)
        return dataclasses.replace(self, text_column=column)

    def load(self) -> str:
        if not self.path:
            raise UserError("no text given: name a file with --path")
        if not (self._is_table and self.text_column) and not is_saved(self.path):
            # Runs of 0.1.0 read tables so, too.
            return read_text(find(self.path) if os.path.isabs(self.path) else self.path)
        table, column = self._table(), self.text_column or "text"
        rows, where = table.table_rows(table.training[0])
        texts = []
        for row in rows:
            need_columns(row, (column,), where)
            texts.append(str(row[column] or ""))
        return "\n".join(filter(str.strip, texts))

    @property
    def _is_table(self) -> bool:
        return is_table(Path(self.path)) or is_saved(self.path)

    def _table(self) -> TableData:
        """The table, of several splits the one to train on."""
        table = TableData(path=self.path)
        return table.with_path().with_columns([self.text_column] if self.text_column else [])


class Download:
    """What a text that is fetched once does: `folder`, `file` and `url` are its own."""

    def reads(self, part: Part) -> list[str]:
        """The file that every part is read from, or the address that it comes from."""
        return [str(find_downloaded(self.file, self.folder) or self.url)]

    def located(self) -> "Download":
        """The same, from whatever folder it is read."""
        there = self.folder and find_downloaded(self.file, self.folder)
        folder = self.folder if there else os.path.abspath(data_folder())
        return dataclasses.replace(self, folder=folder)


@dataclass(frozen=True)
class TinyShakespeare(Download):
    """Karpathy's 1.1 MB sample of Shakespeare (65 characters), split 90/10 as nanoGPT does."""

    validation_fraction: float = 0.1
    """The last part of the text, kept for validation."""
    sha256: str = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    """What a download must be."""
    folder: str = ""
    """Where the file lies, or is fetched to; the data folder (TLITE_DATA) unless given."""
    file: ClassVar[str] = "shakespeare/tiny_shakespeare.txt"
    url: ClassVar[str] = (
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
    )

    def load(self) -> str:
        return read_text(find_or_download(self.file, self.url, self.sha256, self.folder))


@dataclass(frozen=True)
class Shakespeare(Download):
    """All the plays: Project Gutenberg's complete works (#100), by `experiments/gutenberg.py`."""

    validation_fraction: float = 0.05
    """The last part of the text, kept for validation."""
    sha256: str = "17d47ae375676f7576feb3d931784223865403a18537707f9a567247015d6781"
    """What a download must be; Gutenberg revises its texts, so newer ones differ."""
    folder: str = ""
    """Where the file lies, or is fetched to; the data folder (TLITE_DATA) unless given."""
    file: ClassVar[str] = "shakespeare/pg100.txt"
    url: ClassVar[str] = "https://www.gutenberg.org/cache/epub/100/pg100.txt"

    def load(self) -> str:
        path = find_or_download(self.file, self.url, self.sha256, self.folder)
        parser = run_file(shipped_experiments() / "gutenberg.py")
        try:
            return parser.prepare(read_text(path))
        except ValueError as error:
            raise UserError(f"{path}: {error}") from error


TextSource = BuiltinText | TextFile | TinyShakespeare | Shakespeare
