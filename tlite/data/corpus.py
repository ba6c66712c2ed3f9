"""A corpus on disk: token files of any size, of which only the windows that are asked for are read.

Token files are nanoGPT's: the ids one after another as little-endian uint16, or as uint32 where
there are more than 65,535 tokens, without any header. corpus.json says what else there is to know.

Windows are read by their place in the file (`pread`), not through a memory map: it costs the same
(13 and 16 microseconds for 12 windows of 1,024 tokens), does not add the file's pages to the
process's memory, and a file that is cut off meanwhile is told in a sentence, where a map would end
the process.
"""

import bisect
import dataclasses
import hashlib
import io
import itertools
import json
import operator
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64, UInt16, UInt32

from tlite.config import check_size
from tlite.data.reading import Part, is_there, locate, read_json
from tlite.errors import UserError

NAME = "corpus.json"
FORMAT = "tlite corpus 1"
BEGINNINGS = {"training": "train", "validation": "val"}
TYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
LLM_C = (20240520, 20240801)  # the first number of the header that llm.c writes, and modded-nanogpt
MAX_OPEN = 64  # token files at a time
SAMPLE = 2**20  # bytes at the beginning and the end of a file, to know it again by


@dataclass(frozen=True)
class TokenFile:
    """A file of a part."""

    name: str
    tokens: int
    sha256: str = ""


@dataclass(frozen=True)
class PartFiles:
    """The files of a part, which follow each other as one sequence."""

    files: tuple[TokenFile, ...]
    documents: int | None = None
    bytes: int | None = None
    """Of its text in UTF-8, the marks at the ends of documents not among them."""

    @property
    def tokens(self) -> int:
        return sum(file.tokens for file in self.files)


@dataclass(frozen=True)
class CorpusTokenizer:
    """What the tokens are of."""

    kind: Literal["characters", "bytes", "pretrained"]
    path: str
    """Its file; of a folder without corpus.json a path or hub name, as the user gave it."""
    sha256: str = ""


@dataclass(frozen=True)
class Manifest:
    """All that is said of a corpus."""

    dtype: str
    vocabulary_size: int
    """0 where nothing says it: then it is the tokenizer's."""
    parts: dict[str, PartFiles]
    tokenizer: CorpusTokenizer | None = None
    end_id: int | None = None
    """The token that ends each document."""
    source: dict[str, Any] = field(default_factory=dict)
    """What it was made from."""


@dataclass(frozen=True)
class Corpus:
    """Token files on disk: a folder of `tlite prepare`, or nanoGPT's own train.bin and val.bin."""

    folder: str = ""
    """Where they are."""
    corpus_tokenizer: str = ""
    """Of nanoGPT's own files, which do not say it: what the tokens are of, gpt2 say, or the path
    of a tokenizer.json."""
    corpus_vocabulary: int = 0
    """Of nanoGPT's own files: how many different tokens there are; the tokenizer's unless given."""
    validation_tokens: int = 2**20
    """A validation scores so many tokens, in windows at even distances over the part."""
    separate_documents: bool = False
    """No token attends to those of another document in its window."""

    def __post_init__(self):
        check_size("corpus_vocabulary", self.corpus_vocabulary or 1)
        check_size("validation_tokens", self.validation_tokens)

    def located(self, moved: bool = False) -> "Corpus":
        """The same, from whatever folder it is read. `moved` is `locate`'s."""
        tokenizer = locate(self.corpus_tokenizer, in_data=False)  # or one of the hub
        folder = locate(self.folder, moved=moved)
        return dataclasses.replace(self, folder=folder, corpus_tokenizer=tokenizer)

    def manifest(self) -> Manifest:
        """What is said of the files; their sizes are checked, their content is not.

        Raises:
            UserError: there are none, or one is not what it should be.
        """
        if not self.folder:
            raise UserError("no corpus given: name its folder with --folder")
        folder, said = Path(self.folder), bool(self.corpus_vocabulary or self.corpus_tokenizer)
        if not folder.is_dir():
            raise UserError(
                f"there is no folder {self.folder}: tlite prepare makes one; if it has moved, name "
                "the folder that it is in now by TLITE_DATA=FOLDER"
            )
        if not os.path.lexists(folder / NAME):
            manifest = found_files(folder, self.corpus_vocabulary, self.corpus_tokenizer)
            if not said:
                raise UserError(
                    f"{folder} has no {NAME} that says what its tokens are: give "
                    "--corpus-tokenizer (gpt2, or a tokenizer.json) or --corpus-vocabulary"
                )
            return manifest
        if said:
            raise UserError(
                f"{folder / NAME} says what the tokens are: leave --corpus-tokenizer and "
                "--corpus-vocabulary out"
            )
        manifest = read_manifest(folder)
        for file in (file for part in manifest.parts.values() for file in part.files):
            wanted = file.tokens * TYPES[manifest.dtype].itemsize
            if (size := _size(folder / file.name)) != wanted:
                raise UserError(
                    f"{folder / file.name} has {size:,} bytes, but {NAME} speaks of "
                    f"{file.tokens:,} tokens of {manifest.dtype}, which are {wanted:,}"
                )
        return manifest

    def reads(self, part: Part) -> list[str]:
        """The files of a part."""
        files = self.manifest().parts.get(part)
        return [os.path.realpath(Path(self.folder, f.name)) for f in files.files] if files else []

    def open(self, part: Part, vocabulary_size: int | None = None) -> "Tokens":
        """The tokens of a part.

        Args:
            vocabulary_size: above all ids; the manifest's unless given.

        Raises:
            UserError: there is no such part.
        """
        manifest = self.manifest()
        if part not in manifest.parts:
            raise UserError(f"{self.folder} has no {part} part")
        size = vocabulary_size or manifest.vocabulary_size or None
        return Tokens(self.folder, manifest.parts[part].files, manifest.dtype, size)

    def fingerprint(self) -> dict[str, Any]:
        """What the data is known by, for a run's config.json, without a pass over all of it.

        Sizes, the SHA-256 of the manifest, which has those of the files, and that of the first and
        last megabyte of each file, as they are now.
        """
        manifest, folder = self.manifest(), Path(self.folder)
        fingerprint: dict[str, Any] = {"dtype": manifest.dtype, "parts": {}}
        if (folder / NAME).is_file():
            fingerprint["sha256"] = hashlib.sha256((folder / NAME).read_bytes()).hexdigest()
        for name, part in manifest.parts.items():
            samples = {file.name: _sample(folder / file.name) for file in part.files}
            fingerprint["parts"][name] = {"tokens": part.tokens, "sha256_of_ends": samples}
        return fingerprint


def open_tokens(path: Path) -> io.FileIO:
    """A token file without a buffer; raises a `UserError` if it can't be opened."""
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error


class Tokens:
    """Files of tokens as one sequence, from which windows are read.

    Args:
        vocabulary_size: above all ids; a window with another one is refused.
    """

    def __init__(
        self,
        folder: str | Path,
        files: Sequence[TokenFile],
        dtype: str,
        vocabulary_size: int | None = None,
    ):
        self._dtype, self._limit = TYPES[dtype], vocabulary_size or 2**32
        sizes = (file.tokens * self._dtype.itemsize for file in files)
        self._starts = list(itertools.accumulate(sizes, initial=0))  # of each file, in bytes
        self._paths = [Path(folder, file.name) for file in files]
        self._open = lru_cache(MAX_OPEN)(open_tokens)  # one that falls out is closed after its use

    def __len__(self) -> int:
        return self._starts[-1] // self._dtype.itemsize

    def read(self, start: int, stop: int) -> UInt16[np.ndarray, "N"] | UInt32[np.ndarray, "N"]:
        """The tokens from one place to another, across files too."""
        return self.take(np.array([start]), stop - start)[0]

    def take(
        self, starts: Int64[np.ndarray, "N"], length: int
    ) -> UInt16[np.ndarray, "N T"] | UInt32[np.ndarray, "N T"]:
        """The `length` tokens from each start on."""
        inside = not len(starts) or 0 <= starts.min() <= starts.max() <= len(self) - length
        if length < 0 or not inside:
            raise IndexError(f"there are {len(self)} tokens: not each start has {length} after it")
        windows = np.empty((len(starts), length), self._dtype)
        for window, start in zip(windows, starts.tolist(), strict=True):
            self._fill(window, start)
        # Of an id past the embedding's table the vector would be NaN.
        if windows.size and (largest := int(windows.max())) >= self._limit:
            raise UserError(
                f"{self._paths[0].parent} has the token {largest:,}, but the vocabulary "
                f"has {self._limit:,} only: it is of another tokenizer"
            )
        return windows

    def _fill(self, tokens: np.ndarray, start: int) -> None:
        """Read as many tokens as there is room for."""
        room, at = tokens.view(np.uint8), start * self._dtype.itemsize
        index = bisect.bisect_right(self._starts, at) - 1
        while len(room):
            path, begin, end = self._paths[index], *self._starts[index : index + 2]
            file = self._open(path)
            got = os.preadv(file.fileno(), [room[: end - at]], at - begin)
            if not got and at < end:
                raise UserError(f"{path} has become shorter since it was opened")
            room, at = room[got:], at + got
            index += at == end  # the next file follows without a seam


def _size(path: Path) -> int:
    """The bytes of a regular file; 0 where there is none."""
    return path.stat().st_size if is_there(path) else 0


def _sample(path: Path) -> str:
    """The SHA-256 of the first and the last megabyte of a file."""
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(SAMPLE))
        file.seek(max(SAMPLE, file.seek(0, os.SEEK_END) - SAMPLE))
        digest.update(file.read(SAMPLE))
    return digest.hexdigest()


# What is said of it


def dtype_for(vocabulary_size: int) -> str:
    """The type of the files of so many tokens."""
    return "uint16" if vocabulary_size <= 65_535 else "uint32"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """corpus.json; the tokenizer's path has to be that of a file in the folder."""
    content = {"format": FORMAT, **asdict(manifest)}
    if manifest.tokenizer:
        content["tokenizer"]["file"] = Path(content["tokenizer"].pop("path")).name
    write_file(folder / NAME, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_file(path: Path, content: str) -> None:
    """Write a file that is there whole and on the disk, or not at all."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def read_manifest(folder: Path) -> Manifest:
    """What corpus.json says; its files are not looked at.

    Raises:
        UserError: it is missing or damaged.
    """
    content = read_json(path := folder / NAME)
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r:.40}, not {FORMAT!r}")
        size, of, end = (content[name] for name in ("vocabulary_size", "tokenizer", "end_id"))
        size = operator.index(size)
        if content["dtype"] != dtype_for(size) or not 0 <= (end or 0) < size <= 2**31:
            raise ValueError(f"it can't have {size:,} tokens, as {content['dtype']!r:.40}")
        parts = {
            name: PartFiles(**part | {"files": tuple(map(_token_file, part["files"]))})
            for name, part in content["parts"].items()
        }
        if of is not None:
            of = CorpusTokenizer(of["kind"], str(folder / _plain(of["file"])), of["sha256"])
        return Manifest(content["dtype"], size, parts, of, end, content["source"] | {})
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} is damaged: {reason}") from error


def _token_file(said: dict[str, Any]) -> TokenFile:
    return TokenFile(_plain(said["name"]), operator.index(said["tokens"]), said["sha256"])


def _plain(name: Any) -> str:
    """A name of a file in the folder itself; raises a ValueError for a way out of it."""
    plain = isinstance(name, str) and name.isprintable() and not set(name) & set("/\\:")
    if not plain or name in ("", ".", ".."):
        raise ValueError(f"{name!r:.60} is not the name of a file in its folder")
    return name


def found_files(folder: Path, vocabulary_size: int, tokenizer: str) -> Manifest:
    """nanoGPT's own files: train.bin and val.bin, or several of each (train-00000.bin, ...).

    Nothing beside them says what they hold. They are taken for uint16, unless more than 65,535
    tokens are asked for; a meta.pkl is a pickle, and not read.

    Raises:
        UserError: there is no train.bin, or a file is none of tokens.
    """
    dtype, parts = dtype_for(vocabulary_size), {}
    for part, beginning in BEGINNINGS.items():
        paths = [folder / f"{beginning}.bin"]
        if not os.path.lexists(paths[0]):
            paths = sorted(folder.glob(f"{beginning}[-_]*.bin"))
        if paths:
            parts[part] = PartFiles(tuple(_found(path, dtype) for path in paths))
    if "training" not in parts:
        raise UserError(f"{folder} is no corpus: there is neither {NAME} nor train.bin in it")
    of = CorpusTokenizer("pretrained", tokenizer) if tokenizer else None
    return Manifest(dtype, vocabulary_size, parts, of)


def _found(path: Path, dtype: str) -> TokenFile:
    size, width = _size(path), TYPES[dtype].itemsize
    with path.open("rb") as file:
        headed = int.from_bytes(file.read(4), "little") in LLM_C
    if headed or size % width:
        told = "begins with llm.c's header" if headed else f"has {size:,} bytes"
        raise UserError(f"{path} {told}: as nanoGPT writes it, it is {dtype} tokens and no more")
    return TokenFile(path.name, size // width)
