"""Files read whole: regular ones only, unpacked, up to a limit, and a sentence for each fault."""

import codecs
import contextlib
import gzip
import io
import json
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tlite.errors import UserError

MEGABYTE = 10**6
MAX_MEGABYTES = 2000  # of a file that is read into memory, unpacked
MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"  # of the order of bytes, which some programs begin with
OTHERS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def is_there(path: Path) -> bool:
    """Whether there is such a file.

    Raises:
        UserError: it is no regular file, but a device say, or it can't be looked at.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error
    except ValueError as error:  # a NUL in it, or a letter that the system has no bytes for
        raise UserError(f"{str(path)!r} can't be the name of a file") from error
    if not stat.S_ISREG(mode):
        what = OTHERS.get(stat.S_IFMT(mode), "something else")
        raise UserError(f"can't read {path}: it is {what}, not a file")
    return True


def size_of(path: Path) -> int:
    """The bytes of a regular file.

    Raises:
        UserError: there is none, or it is something else, a pipe say.
    """
    if not is_there(path):
        raise UserError(f"can't read {path}: No such file or directory")
    return path.stat().st_size


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[io.BufferedIOBase]:
    """The bytes of a regular file, unpacked if its name ends in .gz, with a sentence a fault.

    Raises:
        UserError: it is missing, can't be read, is no regular file, or not whole.
    """
    size_of(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is not a whole gzip file") from error
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error


def pieces(path: Path) -> Iterator[bytes]:
    """The content of a file, unpacked if its name ends in .gz, a megabyte at a time.

    Raises:
        UserError: as `open_file`.
    """
    with open_file(path) as file:
        while piece := file.read(MEGABYTE):
            yield piece


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        UserError: as `open_file`, or there is something else in it.
    """
    try:
        content = json.loads(b"".join(pieces(path)))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: it is not JSON") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it is not a JSON object")
    return content


def standard_input() -> Iterator[bytes]:
    """What is written to standard input, a megabyte at a time.

    Raises:
        UserError: it can't be read.
    """
    try:
        piece = None
        while piece is None or len(piece) == MEGABYTE:  # after less a terminal would be asked again
            piece = sys.stdin.buffer.read(MEGABYTE)
            yield piece
    except OSError as error:
        raise UserError(f"can't read standard input: {error.strerror}") from error


def limited(parts: Iterable[bytes], name: object, advice: str) -> Iterator[bytes]:
    """The parts of a text, up to the limit.

    Raises:
        UserError: there is more; it says how much was read, and the advice.
    """
    size = lines = 0
    for part in parts:
        size += len(part)
        lines += part.count(b"\n")
        if size > MAX_MEGABYTES * MEGABYTE:
            raise UserError(
                f"{name} is larger than {MAX_MEGABYTES:,} megabytes: {lines:,} lines were read so "
                f"far; {advice}"
            )
        yield part


def decoded(
    parts: Iterable[bytes], name: object, encoding: str = "utf-8", advice: str = ""
) -> Iterator[str]:
    """The text of bytes, without a mark of their order.

    Raises:
        UserError: they are not in this encoding (the line is named), or there is none such.
    """
    try:
        decoder = codecs.getincrementaldecoder(encoding)()
        line, begun = 1, False
        for part, last in (*((part, False) for part in parts), (b"", True)):
            text = decoder.decode(part, last)
            line += text.count("\n")
            yield text if begun else text.removeprefix(MARK)
            begun = begun or bool(text)
    except UnicodeDecodeError as error:
        line += error.object.count(b"\n", 0, error.start)
        raise UserError(
            f"{name} is not {encoding} text: line {line} has the byte "
            f"{error.object[error.start]:#04x}{advice}"
        ) from error
    except (LookupError, ValueError, TypeError) as error:
        raise UserError(f"there is no encoding {encoding!r}") from error


def read_text(path: str | Path) -> str:
    """A UTF-8 text file, unpacked if its name ends in .gz; line ends become newlines.

    Raises:
        UserError: it can't be read, is too large, or not UTF-8 (the line is named).
    """
    path = Path(path)
    parts = limited(pieces(path), path, "make a corpus of it, by tlite prepare")
    return "".join(decoded(parts, path)).replace("\r\n", "\n").replace("\r", "\n")


def text_lines(path: Path, encoding: str = "utf-8", *, any_size: bool = False) -> Iterator[str]:
    """The lines of a text file, unpacked if its name ends in .gz, as they come, with their ends.

    They end at line feeds alone, and the last one may not.

    Raises:
        UserError: it can't be read, is too large, or not in this encoding (the line is named).
    """
    parts = pieces(path)
    if not any_size:
        parts = limited(parts, path, "read it in parts, or of Parquet")
    line: list[str] = []
    for text in decoded(parts, path, encoding, "; name another with --encoding, latin-1 say"):
        *ends, rest = text.split("\n")
        for end in ends:
            yield "".join([*line, end, "\n"])
            line = []
        line.append(rest)
    if rest := "".join(line):
        yield rest


def read_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """The lines of a text file without their ends; raises as `text_lines`."""
    return [split_lines(line)[0] for line in text_lines(path, encoding)]


def split_lines(text: str) -> list[str]:
    """Lines end at line feeds alone, and the last one may."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text else []
