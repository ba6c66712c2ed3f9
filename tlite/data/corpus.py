"""A corpus on disk: token files of any size, of which only the windows that are asked for are read.

Windows are read by their place in the file (`pread`), not through a memory map: it costs the same
(13 and 16 microseconds for 12 windows of 1,024 tokens), does not add the file's pages to the
process's memory, and a file that is cut off meanwhile is told in a sentence, where a map would end
the process.
"""

import bisect
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt16, UInt32

from tlite.data.files import locate
from tlite.data.manifest import (
    NAME,
    TYPES,
    Manifest,
    TokenFile,
    check_files,
    found_files,
    read_manifest,
)
from tlite.data.tables import Part
from tlite.errors import UserError

SAMPLE = 2**20  # bytes at the beginning and the end of a file, to know it again by
MOST_AT_ONCE = 2**30  # bytes of one call; the system gives no more than 2^31


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
        if not 0 <= self.corpus_vocabulary <= 2**31:
            raise ValueError(f"corpus_vocabulary can't be {self.corpus_vocabulary}")
        if self.validation_tokens < 1:
            raise ValueError(f"validation_tokens must be at least 1, not {self.validation_tokens}")

    def located(self) -> "Corpus":
        """The same, from whatever folder it is read."""
        tokenizer = locate(self.corpus_tokenizer, in_data=False)  # or one of the hub
        return dataclasses.replace(self, folder=locate(self.folder), corpus_tokenizer=tokenizer)

    def manifest(self) -> Manifest:
        """What is said of the files; their sizes are checked, their content is not.

        Raises:
            UserError: there are none, or one is not what it should be.
        """
        if not self.folder:
            raise UserError("no corpus given: name its folder with --folder")
        folder, told = Path(self.folder), bool(self.corpus_vocabulary or self.corpus_tokenizer)
        if not os.path.isdir(folder):
            raise UserError(
                f"there is no folder {self.folder}: tlite prepare makes one; if it has moved, name "
                "the folder that it is in now by TLITE_DATA=FOLDER"
            )
        if not os.path.lexists(folder / NAME):
            manifest = found_files(folder, self.corpus_vocabulary, self.corpus_tokenizer)
            if not told:
                raise UserError(_what_to_say(folder, manifest))
            return manifest
        if told:
            raise UserError(
                f"{folder / NAME} says what the tokens are: leave --corpus-tokenizer and "
                "--corpus-vocabulary out"
            )
        check_files(folder, manifest := read_manifest(folder))
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
        self._dtype, self._paths, self._files = TYPES[dtype], [], []
        self._limit = vocabulary_size or 2**32
        self._starts = list(itertools.accumulate((f.tokens for f in files), initial=0))
        for part in files:
            path = Path(folder, part.name)
            self._paths.append(path)
            try:
                file = path.open("rb", buffering=0)
            except OSError as error:
                self.close()
                raise UserError(f"can't read {path}: {error.strerror}") from error
            self._files.append(file)

    def __len__(self) -> int:
        return self._starts[-1]

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
                f"{self._paths[0].parent} has the token {largest:,}, but the vocabulary has "
                f"{self._limit:,} only: it is of another tokenizer"
            )
        return windows

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> "Tokens":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _fill(self, tokens: np.ndarray, start: int) -> None:
        """Read as many tokens as there is room for."""
        room = memoryview(tokens).cast("B") if len(tokens) else memoryview(b"")
        width = self._dtype.itemsize
        index = bisect.bisect_right(self._starts, start) - 1
        at = (start - self._starts[index]) * width
        while room:
            left = (self._starts[index + 1] - self._starts[index]) * width - at
            wanted = min(left, len(room), MOST_AT_ONCE)
            got = self._read_into(index, room[:wanted], at) if wanted else 0
            room, at = room[got:], at + got
            if got == left:  # the next file follows without a seam
                index, at = index + 1, 0

    def _read_into(self, index: int, room: memoryview, at: int) -> int:
        try:
            got = os.preadv(self._files[index].fileno(), [room], at)
        except OSError as error:
            raise UserError(f"can't read {self._paths[index]}: {error.strerror}") from error
        if not got:
            raise UserError(f"{self._paths[index]} has become shorter since it was opened")
        return got


def _what_to_say(folder: Path, manifest: Manifest) -> str:
    """Advice on files that nothing speaks of, with what can be seen of them."""
    with Tokens(folder, manifest.parts["training"].files, manifest.dtype) as tokens:
        beginning = tokens.read(0, min(len(tokens), SAMPLE))
    largest = int(beginning.max(initial=0))
    return (
        f"{folder} has no {NAME} that says what its tokens are: give --corpus-tokenizer (gpt2, or "
        f"a tokenizer.json), or --corpus-vocabulary alone (of the first {len(beginning):,} tokens "
        f"the largest is {largest:,})"
    )


def _sample(path: Path) -> str:
    """The SHA-256 of the first and the last megabyte of a file."""
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(SAMPLE))
        file.seek(max(SAMPLE, file.seek(0, os.SEEK_END) - SAMPLE))
        digest.update(file.read(SAMPLE))
    return digest.hexdigest()
