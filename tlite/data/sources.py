"""Texts to train on: frozen dataclasses with `load() -> str`, which an experiment can hold."""

import dataclasses
import hashlib
import http.client
import importlib
import os
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tlite.data.examples import TableData
from tlite.data.reading import (
    Split,
    data_folder,
    find,
    is_regular_file,
    is_table,
    iter_bytes,
    locate,
    read_text,
)
from tlite.data.tables import detect_column, is_saved_dataset
from tlite.errors import UserError, printable
from tlite.user_code import EXPERIMENTS, exec_file


@dataclass(frozen=True)
class BuiltinText:
    """The help topics of the standard library (`pydoc_data.topics`): English about Python.

    Their length differs between versions of Python; a run records it with a hash.
    """

    validation_fraction: float = 0.05
    """Fraction of the text, at its end, for validation."""

    def load(self) -> str:
        topics = importlib.import_module("pydoc_data.topics").topics
        return "\n".join(map(topics.get, sorted(topics)))


@dataclass(frozen=True)
class TextFile:
    """A text of your own: a UTF-8 file (.gz too), or the texts of a table, concatenated."""

    path: str = ""
    """Text file, table (CSV, TSV, JSON Lines, Parquet), or folder of `save_to_disk`."""
    validation_fraction: float = 0.05
    """Fraction of the text, at its end, for validation."""
    text_column: str = ""
    """Column of the texts (tables only); "": recognised by its name."""

    def input_paths(self, split: Split) -> list[str]:
        """Return the path of the text, which has all splits."""
        exists = is_saved_dataset(self.path) or is_regular_file(Path(self.path))
        return [os.path.realpath(self.path)] if exists else []

    def with_absolute_paths(self, moved: bool = False) -> "TextFile":
        """Return the source with an absolute path; `moved` is that of `locate`."""
        return dataclasses.replace(self, path=locate(self.path, moved=moved))

    def with_columns(self) -> "TextFile":
        """Return the source with the column of the texts, which is printed, if it is a table.

        Raises:
            UserError: several columns, or none, may be that of the texts.
        """
        if not self._is_table or self.text_column:
            return self
        row, place = TableData(path=self.path).with_splits().first_row()
        column = detect_column([*row], place, "text")
        print(printable(f"text: {column!r}"), flush=True)
        return dataclasses.replace(self, text_column=column)

    def load(self) -> str:
        if not self.path:
            raise UserError("no text: name a file with --path")
        if not self._is_table:
            return read_text(find(self.path))
        table = TableData(path=self.path).with_splits()  # only the training split of several
        rows = [text for (text,) in table.cells(table.training[0], self.text_column or "text")]
        if empty := len(rows) - len(texts := list(filter(str.strip, rows))):
            print(f"warning: {empty:,} of {len(rows):,} rows have no text", file=sys.stderr)
        return "\n".join(texts)

    @property
    def _is_table(self) -> bool:
        return is_table(Path(self.path)) or is_saved_dataset(self.path)


class Download:
    """A text that is downloaded once. Subclasses define `folder`, `file`, `url` and `sha256`."""

    def input_paths(self, split: Split) -> list[str]:
        """Return the path of the text, or the URL that it is downloaded from."""
        return [str(self._existing_path() or self.url)]

    def with_absolute_paths(self, moved: bool = False) -> "Download":
        """Return the source with an absolute folder.

        With `moved` it is the data folder if the file is no longer in `folder`.
        """
        path = os.path.abspath(self.folder or data_folder())
        source = dataclasses.replace(self, folder=path)
        if moved and not source._existing_path():
            return dataclasses.replace(self, folder=os.path.abspath(data_folder()))
        return source

    def load(self) -> str:
        """Return the text, downloaded if there is no file; warn of a file with another SHA-256."""
        if not (path := self._existing_path()):
            path = Path(self.folder or data_folder(), self.file)
            download(self.url, path, self.sha256)
        elif (digest := hashlib.sha256(b"".join(iter_bytes(path))).hexdigest()) != self.sha256:
            print(
                f"warning: {path} differs from the published file (SHA-256 {digest}, not "
                f"{self.sha256}): results may differ",
                file=sys.stderr,
            )
        return read_text(path)

    def _existing_path(self) -> Path | None:
        """Return the path of the file, or of its .gz."""
        path = Path(self.folder or data_folder(), self.file)
        return next(filter(is_regular_file, (path, path.with_name(path.name + ".gz"))), None)


@dataclass(frozen=True)
class TinyShakespeare(Download):
    """Karpathy's 1.1 MB sample of Shakespeare (65 characters).

    The split is 90/10, within one character of nanoGPT's.
    """

    validation_fraction: float = 0.1
    """Fraction of the text, at its end, for validation."""
    sha256: str = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    """Expected SHA-256 of the download."""
    folder: str = ""
    """Folder of the file; "": the data folder (TLITE_DATA)."""
    file: ClassVar[str] = "shakespeare/tiny_shakespeare.txt"
    url: ClassVar[str] = (
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
    )


@dataclass(frozen=True)
class Shakespeare(Download):
    """All the plays: Project Gutenberg's complete works (#100), parsed."""

    validation_fraction: float = 0.05
    """Fraction of the text, at its end, for validation."""
    sha256: str = "17d47ae375676f7576feb3d931784223865403a18537707f9a567247015d6781"
    """Expected SHA-256 of the download; Gutenberg revises its texts, so newer ones differ."""
    folder: str = ""
    """Folder of the file; "": the data folder (TLITE_DATA)."""
    file: ClassVar[str] = "shakespeare/pg100.txt"
    url: ClassVar[str] = "https://www.gutenberg.org/cache/epub/100/pg100.txt"

    def load(self) -> str:
        parser = exec_file(EXPERIMENTS / "tools" / "gutenberg.py")
        try:
            return parser.prepare(super().load())
        except ValueError as error:
            raise UserError(f"{self.file}: {error}") from error


TextSource = BuiltinText | TextFile | TinyShakespeare | Shakespeare


def download(url: str, path: Path, sha256: str) -> None:
    """Download `url` to `path`; the file appears there only complete, with the right SHA-256."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            content = response.read()
        if (digest := hashlib.sha256(content).hexdigest()) != sha256:
            raise UserError(
                f"{url} has the SHA-256 {digest}, not {sha256}: it has changed since tlite was "
                f"written; save it as {path} to use it"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(content)
        new.replace(path)
    except (OSError, http.client.HTTPException) as error:
        new.unlink(missing_ok=True)
        reason = str(error).strip() or type(error).__name__
        raise UserError(
            f"can't download {url} to {path} ({reason}): check the network, or put the file there"
        ) from error
