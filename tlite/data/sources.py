"""Texts to learn from: frozen dataclasses with `load() -> str`, so that a config can hold them."""

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tlite.data import shakespeare
from tlite.data.download import find_downloaded, find_or_download
from tlite.data.reading import MAX_MEGABYTES, is_there, read_text
from tlite.data.tables import Part
from tlite.errors import UserError


def split_text(text: str, validation_fraction: float) -> tuple[str, str]:
    """The first part for training, the last `validation_fraction` for validation."""
    at = len(text) - round(len(text) * validation_fraction)
    return text[:at], text[at:]


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
    """A UTF-8 text file of your own (.gz too)."""

    path: str = ""
    """Where it is."""
    validation_fraction: float = 0.05
    """The last part of the text, kept for validation."""
    max_megabytes: int = MAX_MEGABYTES
    """Size of the largest file that is read, unpacked."""

    def reads(self, part: Part) -> list[str]:
        """The file that every part is read from."""
        return [os.path.realpath(self.path)] if is_there(Path(self.path)) else []

    def load(self) -> str:
        if not self.path:
            raise UserError("no text given: name a file with --path")
        return read_text(self.path, self.max_megabytes)


@dataclass(frozen=True)
class TinyShakespeare:
    """Karpathy's 1.1 MB sample of Shakespeare (65 characters), split 90/10 as nanoGPT does."""

    validation_fraction: float = 0.1
    """The last part of the text, kept for validation."""
    sha256: str = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    """What a download must be."""
    file: ClassVar[str] = "shakespeare/tiny_shakespeare.txt"
    url: ClassVar[str] = (
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
    )

    def reads(self, part: Part) -> list[str]:
        """The file that every part is read from, or the address that it comes from."""
        return [str(find_downloaded(self.file) or self.url)]

    def load(self) -> str:
        return read_text(find_or_download(self.file, self.url, self.sha256))


@dataclass(frozen=True)
class Shakespeare:
    """All the plays: Project Gutenberg's complete works (#100), prepared by `prepare`."""

    validation_fraction: float = 0.05
    """The last part of the text, kept for validation."""
    sha256: str = "17d47ae375676f7576feb3d931784223865403a18537707f9a567247015d6781"
    """What a download must be; Gutenberg revises its texts, so newer ones differ."""
    file: ClassVar[str] = "shakespeare/pg100.txt"
    url: ClassVar[str] = "https://www.gutenberg.org/cache/epub/100/pg100.txt"

    def reads(self, part: Part) -> list[str]:
        """The file that every part is read from, or the address that it comes from."""
        return [str(find_downloaded(self.file) or self.url)]

    def load(self) -> str:
        path = find_or_download(self.file, self.url, self.sha256)
        try:
            return shakespeare.prepare(read_text(path))
        except ValueError as error:
            raise UserError(f"{path}: {error}") from error


TextSource = BuiltinText | TextFile | TinyShakespeare | Shakespeare
