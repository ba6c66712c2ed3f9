"""What is finished of a corpus: token files that only grow, and a journal of their lengths.

After each piece the token files are written to the disk, and then a line of the journal. After a
kill the files are cut off where the last whole line says, and the next piece follows: so they have
the same bytes in the end as ever.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tlite.data.manifest import BEGINNINGS, TYPES, PartFiles, TokenFile
from tlite.data.prepare_encoding import Encoded
from tlite.errors import UserError, disk_errors

CHUNK = 2**20


@dataclass
class Totals:
    """Of a part, so far."""

    tokens: int = 0
    documents: int = 0
    bytes: int = 0


@dataclass
class State:
    """How far the corpus is: the pieces from the first on that are in it, and their totals."""

    pieces: int = 0
    parts: dict[str, Totals] = field(default_factory=lambda: {n: Totals() for n in BEGINNINGS})


class Growing:
    """Token files of both parts that are still growing, and their journal.

    Args:
        folder: where the token files are.
        journal: the file of the journal.
        shard_tokens: of a file, before the next one begins; 0: one file for each part.
    """

    def __init__(self, folder: Path, journal: Path, dtype: str, shard_tokens: int):
        self._folder, self._journal = folder, journal
        self._width, self._shard_tokens = TYPES[dtype].itemsize, shard_tokens
        self.state = _last_state(journal)
        for part, totals in self.state.parts.items():
            self._cut(part, totals.tokens)

    def append(self, encoded: Encoded) -> None:
        """Put the next piece behind what is there, and remove its own files."""
        with disk_errors(self._folder):
            for part, name in encoded.files.items():
                totals = self.state.parts[part]
                self._copy(part, Path(name), totals.tokens)
                totals.tokens += encoded.tokens[part]
                totals.documents += encoded.documents[part]
                totals.bytes += encoded.bytes[part]
            self.state.pieces += 1
            with self._journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(self.state)) + "\n")
                file.flush()
                os.fsync(file.fileno())
        for name in encoded.files.values():
            Path(name).unlink()

    def files(self, part: str) -> Iterator[tuple[str, int]]:
        """Name and number of tokens of each file of a part."""
        tokens, number = self.state.parts[part].tokens, 0
        while tokens > 0:
            here = min(tokens, self._shard_tokens or tokens)
            yield self._name(part, number), here
            tokens, number = tokens - here, number + 1

    def part(self, part: str, sha256: dict[str, str]) -> PartFiles:
        """A part for the manifest."""
        totals = self.state.parts[part]
        files = tuple(TokenFile(name, n, sha256[name]) for name, n in self.files(part))
        return PartFiles(files, totals.documents, totals.bytes)

    def _name(self, part: str, number: int) -> str:
        beginning = BEGINNINGS[part]
        return f"{beginning}-{number:05d}.bin" if self._shard_tokens else f"{beginning}.bin"

    def _copy(self, part: str, path: Path, at: int) -> None:
        """Copy a piece's tokens to behind the first `at` tokens of a part."""
        with path.open("rb") as source:
            left = os.fstat(source.fileno()).st_size
            while left:
                number, used = divmod(at, self._shard_tokens) if self._shard_tokens else (0, at)
                room = (self._shard_tokens - used) * self._width if self._shard_tokens else left
                with (self._folder / self._name(part, number)).open("ab") as file:
                    copied = _copy_bytes(source, file, min(room, left))
                    file.flush()
                    os.fsync(file.fileno())
                left, at = left - copied, at + copied // self._width

    def _cut(self, part: str, tokens: int) -> None:
        """Cut the files of a part off behind so many tokens."""
        kept = dict(self.files(part))
        with disk_errors(self._folder):
            for path in self._folder.glob(f"{BEGINNINGS[part]}*.bin"):
                if path.name not in kept:
                    path.unlink()
            for name, number in kept.items():
                path, wanted = self._folder / name, number * self._width
                if not path.is_file() or path.stat().st_size < wanted:
                    raise UserError(
                        f"{path} is not what {self._journal} says: remove {self._journal.parent}, "
                        "and begin anew"
                    )
                os.truncate(path, wanted)


def _copy_bytes(source: Any, target: Any, number: int) -> int:
    left = number
    while left:
        chunk = source.read(min(CHUNK, left))
        target.write(chunk)
        left -= len(chunk)
    return number


def _last_state(journal: Path) -> State:
    """That of the last whole line; what is behind it, of a line that was cut off, goes."""
    if not journal.exists():
        return State()
    content = journal.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    os.truncate(journal, len(whole))
    if not whole:
        return State()
    try:
        values = json.loads(whole.splitlines()[-1])
        parts = {name: Totals(**values["parts"][name]) for name in BEGINNINGS}
        return State(values["pieces"], parts)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{journal} is damaged: remove {journal.parent}, and begin anew") from error
