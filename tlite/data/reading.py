"""Files read whole: regular ones only, unpacked, up to a limit, and a sentence for each fault."""

import contextlib
import gzip
import io
import itertools
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tlite.errors import UserError

MEGABYTE = 10**6
MAX_MEGABYTES = 500
RAISE = "raise max_megabytes (by --max-megabytes, or in a run's config.json) to read all of it"
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


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[io.BufferedIOBase]:
    """The bytes of a regular file, unpacked if its name ends in .gz, with a sentence a fault.

    Raises:
        UserError: it is missing, can't be read, is no regular file, or not whole.
    """
    if not is_there(path):
        raise UserError(f"can't read {path}: No such file or directory")
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


def limited(
    parts: Iterable[bytes], name: object, max_megabytes: int, advice: str = RAISE
) -> Iterator[bytes]:
    """The parts of a text, up to a limit.

    Raises:
        UserError: there is more; it says how much was read, and the advice.
    """
    if max_megabytes < 1:
        raise UserError(f"max_megabytes must be at least 1, not {max_megabytes}")
    size = lines = 0
    for part in parts:
        size += len(part)
        lines += part.count(b"\n")
        if size > max_megabytes * MEGABYTE:
            raise UserError(
                f"{name} is larger than {max_megabytes:,} megabytes: {lines:,} lines were read so "
                f"far; {advice}"
            )
        yield part


def whole(
    parts: Iterable[bytes], name: object, max_megabytes: int, advice: str = RAISE
) -> bytearray:
    """The parts of a text, up to a limit, as one."""
    content = bytearray()
    for part in limited(parts, name, max_megabytes, advice):
        content += part
    return content


def decode(content: bytearray, name: object, encoding: str, advice: str = "") -> str:
    """The text of bytes.

    Raises:
        UserError: they are not in this encoding (the line is named), or there is none such.
    """
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{name} is not {encoding} text: line {line} has the byte "
            f"{content[error.start]:#04x}{advice}"
        ) from error
    except (LookupError, ValueError) as error:
        raise UserError(f"there is no encoding {encoding!r}") from error


def read_text(path: str | Path, max_megabytes: int = MAX_MEGABYTES) -> str:
    """A UTF-8 text file, unpacked if its name ends in .gz; line ends become newlines.

    Raises:
        UserError: it can't be read, is too large, or not UTF-8 (the line is named).
    """
    path = Path(path)
    content = whole(pieces(path), path, max_megabytes)
    text = decode(content, path, "utf-8").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_lines(
    path: Path, encoding: str = "utf-8", max_megabytes: int = MAX_MEGABYTES
) -> list[str]:
    """The lines of a text file, unpacked if its name ends in .gz.

    Raises:
        UserError: it can't be read, is too large, or not in this encoding (the line is named).
    """
    content = whole(pieces(path), path, max_megabytes)
    advice = "; name another with --encoding, latin-1 say"
    return split_lines(decode(content, path, encoding, advice))


def split_lines(text: str) -> list[str]:
    """Lines end at line feeds alone, and the last one may."""
    text = text.replace("\r\n", "\n").removesuffix("\n")
    return text.split("\n") if text else []


def check_file(path: Path, max_megabytes: int | None) -> None:
    """Look at a file that others will read.

    Raises:
        UserError: it can't be read, is no regular file, or larger than this when it is unpacked.
    """
    content = pieces(path)
    first = next(content, b"")
    if max_megabytes is None:
        return
    if path.suffix != ".gz" and path.stat().st_size <= max_megabytes * MEGABYTE:
        return
    for _ in limited(itertools.chain([first], content), path, max_megabytes):
        pass
