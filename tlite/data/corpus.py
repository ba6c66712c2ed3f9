"""Corpora on disk: token files of any size, from which windows are read when they are needed.

A token file has nanoGPT's format: ids as little-endian uint16 (uint32 for more than 65,535 tokens)
without a header. `corpus.json`, the manifest, describes the files of a folder.

Windows are read by `pread`, not by a memory map: it is as fast (13 and 16 microseconds for 12
windows of 1,024 tokens), does not count towards the memory of the process, and a file that is
truncated meanwhile is an error instead of a SIGBUS.
"""

import bisect
import dataclasses
import hashlib
import itertools
import json
import operator
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64, UInt16, UInt32

from tlite.config import check_size
from tlite.data.reading import Split, is_regular_file, locate, read_json
from tlite.errors import UserError

MANIFEST = "corpus.json"
FORMAT = "tlite corpus 1"
PREFIXES = {"training": "train", "validation": "val"}
"""First letters of the names of the token files of a split."""
DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
LLM_C_MAGIC = (20240520, 20240801)  # first number of a header of llm.c, and of modded-nanogpt
MAX_OPEN_FILES = 64
SAMPLE_BYTES = 2**20  # at either end of a file, for the fingerprint


@dataclass(frozen=True)
class TokenFile:
    """A token file of a split."""

    name: str
    tokens: int
    sha256: str = ""


@dataclass(frozen=True)
class SplitFiles:
    """The token files of a split, concatenated in this order."""

    files: tuple[TokenFile, ...]
    documents: int | None = None
    bytes: int | None = None
    """Bytes of the text in UTF-8, without the tokens that end documents; None if unknown."""

    @property
    def tokens(self) -> int:
        return sum(file.tokens for file in self.files)


@dataclass(frozen=True)
class CorpusTokenizer:
    """The tokenizer of a corpus."""

    kind: Literal["characters", "bytes", "pretrained"]
    path: str
    """Its file; without a manifest a path or hub name, as the user typed it."""
    sha256: str = ""


@dataclass(frozen=True)
class Manifest:
    """The description of a corpus."""

    dtype: str
    vocabulary_size: int
    """Number of tokens; 0: that of the tokenizer."""
    splits: dict[str, SplitFiles]
    tokenizer: CorpusTokenizer | None = None
    end_id: int | None = None
    """Token that ends each document."""
    source: dict[str, Any] = field(default_factory=dict)
    """Texts and settings that the corpus was prepared from."""


@dataclass(frozen=True)
class Corpus:
    """Token files on disk: a folder of `tlite prepare`, or nanoGPT's train.bin and val.bin."""

    folder: str = ""
    """Folder of the token files."""
    corpus_tokenizer: str = ""
    """Tokenizer of nanoGPT's files, which do not name it: gpt2, or a tokenizer.json."""
    corpus_vocabulary: int = 0
    """Vocabulary size of nanoGPT's files: uint16 up to 65,535, uint32 above. 0: the tokenizer's
    vocabulary size, which must then be at most 65,535."""
    validation_tokens: int = 2**20
    """Tokens that a validation scores, in windows at even distances over the split."""
    separate_documents: bool = False
    """No token attends to other documents in its window."""

    def __post_init__(self):
        check_size("corpus_vocabulary", self.corpus_vocabulary or 1)
        check_size("validation_tokens", self.validation_tokens)

    def with_absolute_paths(self, moved: bool = False) -> "Corpus":
        """Return the corpus with absolute paths; `moved` is that of `locate`."""
        tokenizer = locate(self.corpus_tokenizer, in_data=False)  # or one of the hub
        folder = locate(self.folder, moved=moved)
        return dataclasses.replace(self, folder=folder, corpus_tokenizer=tokenizer)

    def manifest(self) -> Manifest:
        """Return the manifest; the sizes of the files are checked, their content is not.

        Raises:
            UserError: there are no files, or they do not agree with the manifest.
        """
        if not self.folder:
            raise UserError("no corpus: name its folder with --folder")
        folder, has_options = Path(self.folder), self.corpus_vocabulary or self.corpus_tokenizer
        if not folder.is_dir():
            raise UserError(
                f"there is no folder {self.folder}: create it with tlite prepare; if it has moved, "
                "name the folder that it is in now by TLITE_DATA=FOLDER"
            )
        if not os.path.lexists(folder / MANIFEST):
            manifest = find_token_files(folder, self.corpus_vocabulary, self.corpus_tokenizer)
            if not has_options:
                raise UserError(
                    f"{folder} has no {MANIFEST} that names its tokenizer: set --corpus-tokenizer "
                    "(gpt2, or a tokenizer.json) or --corpus-vocabulary"
                )
            return manifest
        if has_options:
            raise UserError(
                f"{folder / MANIFEST} names the tokenizer: leave --corpus-tokenizer and "
                "--corpus-vocabulary out"
            )
        manifest = read_manifest(folder)
        for file in (file for split in manifest.splits.values() for file in split.files):
            if not (folder / file.name).exists():
                raise UserError(f"there is no file {folder / file.name}, which {MANIFEST} names")
            expected = file.tokens * DTYPES[manifest.dtype].itemsize
            if (size := _file_size(folder / file.name)) != expected:
                raise UserError(
                    f"{folder / file.name} has {size:,} bytes, not {expected:,}, the "
                    f"{file.tokens:,} tokens of {manifest.dtype} in {MANIFEST}"
                )
        return manifest

    def input_paths(self, split: Split) -> list[str]:
        """Return the absolute paths of the token files of a split."""
        files = self.manifest().splits.get(split)
        return [os.path.realpath(Path(self.folder, f.name)) for f in files.files] if files else []

    def open(self, split: Split, vocabulary_size: int | None = None) -> "Tokens":
        """Return the tokens of a split.

        Args:
            vocabulary_size: exclusive bound of the ids; None: that of the manifest.

        Raises:
            UserError: there is no such split.
        """
        manifest = self.manifest()
        if split not in manifest.splits:
            raise UserError(f"{self.folder} has no {split} split")
        size = vocabulary_size or manifest.vocabulary_size or None
        return Tokens(self.folder, manifest.splits[split].files, manifest.dtype, size)

    def fingerprint(self) -> dict[str, Any]:
        """Return sizes and SHA-256 by which a run recognises the data, without reading all of it.

        The manifest has the SHA-256 of the files; those of their ends are computed.
        """
        manifest, folder = self.manifest(), Path(self.folder)
        fingerprint: dict[str, Any] = {"dtype": manifest.dtype, "splits": {}}
        if (folder / MANIFEST).is_file():
            fingerprint["sha256"] = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
        for name, split in manifest.splits.items():
            samples = {file.name: _sha256_of_ends(folder / file.name) for file in split.files}
            fingerprint["splits"][name] = {"tokens": split.tokens, "sha256_of_ends": samples}
        return fingerprint


class Tokens:
    """The tokens of several files as one sequence, from which windows are read.

    Args:
        vocabulary_size: exclusive bound of the ids; a window with a larger one is an error.
    """

    def __init__(
        self,
        folder: str | Path,
        files: Sequence[TokenFile],
        dtype: str,
        vocabulary_size: int | None = None,
    ):
        self._dtype, self._limit = DTYPES[dtype], vocabulary_size or 2**32
        sizes = (file.tokens * self._dtype.itemsize for file in files)
        self._starts = list(itertools.accumulate(sizes, initial=0))  # of each file, in bytes
        self._paths = [Path(folder, file.name) for file in files]
        open_file = partial(Path.open, mode="rb", buffering=0)
        self._open = lru_cache(MAX_OPEN_FILES)(open_file)  # an evicted file is closed

    def __len__(self) -> int:
        return self._starts[-1] // self._dtype.itemsize

    def read(self, start: int, stop: int) -> UInt16[np.ndarray, "N"] | UInt32[np.ndarray, "N"]:
        """Return the tokens in [start, stop)."""
        return self.read_windows(np.array([start]), stop - start)[0]

    def read_windows(
        self, starts: Int64[np.ndarray, "N"], length: int
    ) -> UInt16[np.ndarray, "N T"] | UInt32[np.ndarray, "N T"]:
        """Return the `length` tokens from each start."""
        inside = not len(starts) or 0 <= starts.min() <= starts.max() <= len(self) - length
        if length < 0 or not inside:
            raise IndexError(f"a window of {length} tokens is outside the {len(self)} tokens")
        windows = np.empty((len(starts), length), self._dtype)
        for window, start in zip(windows, starts.tolist(), strict=True):
            self._read_into(window, start)
        # The embedding of an id beyond the vocabulary would be NaN.
        if windows.size and (largest := int(windows.max())) >= self._limit:
            raise UserError(
                f"{self._paths[0].parent} has the token {largest:,}, but the vocabulary has only "
                f"{self._limit:,} tokens: it was made with another tokenizer"
            )
        return windows

    def _read_into(self, tokens: np.ndarray, start: int) -> None:
        """Fill an array with the tokens from `start`, across files."""
        buffer, position = tokens.view(np.uint8), start * self._dtype.itemsize
        index = bisect.bisect_right(self._starts, position) - 1
        while len(buffer):
            path, begin, end = self._paths[index], *self._starts[index : index + 2]
            try:
                descriptor = self._open(path).fileno()
                num_bytes = os.preadv(descriptor, [buffer[: end - position]], position - begin)
            except OSError as error:
                raise UserError(f"can't read {path}: {error.strerror}") from error
            if not num_bytes and position < end:
                raise UserError(f"{path} has become shorter since it was opened")
            buffer, position = buffer[num_bytes:], position + num_bytes
            index += position == end


def _file_size(path: Path) -> int:
    return path.stat().st_size if is_regular_file(path) else 0


def _sha256_of_ends(path: Path) -> str:
    """Return the SHA-256 of the first and the last megabyte of a file."""
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(SAMPLE_BYTES))
        file.seek(max(SAMPLE_BYTES, file.seek(0, os.SEEK_END) - SAMPLE_BYTES))
        digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


# Manifests


def dtype_for(vocabulary_size: int) -> str:
    """Return the dtype of the token files of a vocabulary."""
    return "uint16" if vocabulary_size <= 65_535 else "uint32"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write corpus.json; the tokenizer must be a file in the folder."""
    content = {"format": FORMAT, **asdict(manifest)}
    if manifest.tokenizer:
        content["tokenizer"]["file"] = Path(content["tokenizer"].pop("path")).name
    write_file(folder / MANIFEST, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_file(path: Path, content: str) -> None:
    """Write a file atomically and durably."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest in corpus.json. The token files are not read.

    Raise a `UserError` if it is missing or damaged.
    """
    content = read_json(path := folder / MANIFEST)
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r:.40}, not {FORMAT!r}")
        dtype, size, end_id = (content[name] for name in ("dtype", "vocabulary_size", "end_id"))
        size = operator.index(size)
        if dtype != dtype_for(size) or not 0 <= (end_id or 0) < size <= 2**31:
            raise ValueError(f"dtype {dtype!r:.40} and end_id {end_id!r:.40} for {size:,} tokens")
        splits = {
            name: SplitFiles(**split | {"files": tuple(map(_token_file, split["files"]))})
            for name, split in content["splits"].items()
        }
        if (tokenizer := content["tokenizer"]) is not None:
            file = str(folder / _plain_name(tokenizer["file"]))
            tokenizer = CorpusTokenizer(tokenizer["kind"], file, tokenizer["sha256"])
        return Manifest(dtype, size, splits, tokenizer, end_id, content["source"] | {})
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _token_file(entry: dict[str, Any]) -> TokenFile:
    name, tokens = _plain_name(entry["name"]), operator.index(entry["tokens"])
    return TokenFile(name, tokens, entry["sha256"])


def _plain_name(name: Any) -> str:
    """Return the name of a file in the folder itself; raise a ValueError for any other path."""
    is_plain = isinstance(name, str) and name.isprintable() and not set(name) & set("/\\:")
    if not is_plain or name in ("", ".", ".."):
        raise ValueError(f"{name!r:.60} is not the name of a file in its folder")
    return name


def find_token_files(folder: Path, vocabulary_size: int, tokenizer: str) -> Manifest:
    """Return a manifest of nanoGPT's files: train.bin or several (train-00000.bin), val.bin.

    They are uint16, unless `vocabulary_size` is above 65,535. A meta.pkl is not read. Raise a
    `UserError` if there is no train.bin, or if a file has another format.
    """
    dtype, splits = dtype_for(vocabulary_size), {}
    for split, prefix in PREFIXES.items():
        paths = [folder / f"{prefix}.bin"]
        if not os.path.lexists(paths[0]):
            paths = sorted(folder.glob(f"{prefix}[-_]*.bin"))
        if paths:
            splits[split] = SplitFiles(tuple(_headerless_file(path, dtype) for path in paths))
    if "training" not in splits:
        raise UserError(f"{folder} is no corpus: it has neither {MANIFEST} nor train.bin")
    reference = CorpusTokenizer("pretrained", tokenizer) if tokenizer else None
    return Manifest(dtype, vocabulary_size, splits, reference)


def _headerless_file(path: Path, dtype: str) -> TokenFile:
    size, width = _file_size(path), DTYPES[dtype].itemsize
    with path.open("rb") as file:
        has_header = int.from_bytes(file.read(4), "little") in LLM_C_MAGIC
    if has_header or size % width:
        fault = "begins with llm.c's header" if has_header else f"has {size:,} bytes"
        raise UserError(f"{path} {fault}: a token file of nanoGPT has only tokens of {dtype}")
    return TokenFile(path.name, size // width)
