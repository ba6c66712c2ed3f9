"""Files of one's own: found, opened, unpacked and decoded, with one sentence for a fault."""

import codecs
import contextlib
import gzip
import io
import json
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from tlite.distributed.devices import cache_folder
from tlite.errors import UserError

Split = Literal["training", "validation", "test"]
ADVICE = " (of a table --encoding names another, latin-1 say)"
MEGABYTE = 10**6
STDIN = "standard input"
MAX_MEGABYTES = 2000  # of a file that is read into memory, unpacked
MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"  # of the order of bytes, which some programs begin with
OTHERS = {stat.S_IFDIR: "a directory", stat.S_IFCHR: "a device", stat.S_IFIFO: "a pipe"}
KINDS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
KINDS |= {".txt": "text"}


def is_packed(path: Path) -> bool:
    """True if the name ends in .gz, in upper or lower case."""
    return path.suffix.lower() == ".gz"


def ending(path: Path) -> str:
    """The suffix before .gz in lower case: ".csv" for A.CSV.gz."""
    return (path.with_suffix("") if is_packed(path) else path).suffix.lower()


def kind_of(path: Path) -> str:
    """What a file holds, by its ending (before .gz); "" where no kind of file has it."""
    return KINDS.get(ending(path), "")


def is_table(path: Path) -> bool:
    """Whether a name promises a table: others are texts, train.en say."""
    return kind_of(path) not in ("", "text")


def data_folder() -> Path:
    """`TLITE_DATA`, or `tlite` in the user's cache folder."""
    return Path(os.environ.get("TLITE_DATA") or cache_folder())


def is_there(path: Path) -> bool:
    """Whether there is such a file.

    Raises:
        UserError: it is no regular file, but a device say, which may never end.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError as error:  # a NUL in it, or a letter that the system has no bytes for
        raise UserError(f"{str(path)!r} can't be the name of a file") from error
    if not stat.S_ISREG(mode):
        what = OTHERS.get(stat.S_IFMT(mode), "something else")
        raise UserError(f"can't read {path}: it is {what}, not a file")
    return True


def find(name: str) -> Path:
    """The file of that name, here or in the data folder.

    Raises:
        UserError: there is none, or it is a device, say, or a folder.
    """
    for path in (Path(name), data_folder() / name):
        if is_there(path):
            return path
    raise UserError(
        f"there is no file {name}: if it has moved, or lies elsewhere, name the folder that it is "
        f"in by TLITE_DATA=FOLDER (now {data_folder()})"
    )


def locate(name: str, *, in_data: bool = True, moved: bool = False) -> str:
    """The absolute path of a file or folder of that name; the name itself where there is none.

    Args:
        in_data: search the data folder for a relative name, too.
        moved: search the data folder also for the base name of an absolute path that is gone. The
            caller must check the content, as another file may have the same name.
    """
    inside = os.path.basename(name) if moved and os.path.isabs(name) else name
    places = [Path(name), data_folder() / inside] if in_data else [Path(name)]
    return next((os.path.abspath(p) for p in places if name and os.path.lexists(p)), name)


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[io.BufferedIOBase]:
    """The bytes of a regular file, unpacked if its name ends in .gz.

    Raises:
        UserError: it is missing, can't be read, is no regular file, or not whole.
    """
    try:
        is_there(path)  # what is no file may never end
        with gzip.open(path) if is_packed(path) else path.open("rb") as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is not a whole gzip file") from error
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error


def pieces(path: Path | None, *, any_size: bool = False) -> Iterator[bytes]:
    """The content of a file, or of standard input where it is None, a megabyte at a time.

    Raises:
        UserError: as `open_file`, or there is more than the limit: it may have no end.
    """
    size = 0
    with open_file(path) if path else contextlib.nullcontext(sys.stdin.buffer) as file:
        while piece := file.read(MEGABYTE):
            size += len(piece)
            if size > MAX_MEGABYTES * MEGABYTE and not any_size:
                raise UserError(
                    f"{path or STDIN} is larger than {MAX_MEGABYTES:,} megabytes: give a part of "
                    "it at a time (to train on such texts, tlite prepare makes a corpus of them)"
                )
            yield piece
            if len(piece) < MEGABYTE:  # a terminal would be asked again
                break


def decoded(path: Path | None, encoding: str = "", *, any_size: bool = False) -> Iterator[str]:
    """The text of a file or of standard input as it comes, without a mark of the bytes' order.

    Args:
        encoding: UTF-8 unless given; that it can be given is told where it is not the right one.

    Raises:
        UserError: as `pieces`, it is not in this encoding (the line is named), or there is none
            such.
    """
    try:
        line, mark = 1, MARK
        for text in codecs.iterdecode(pieces(path, any_size=any_size), encoding or "utf-8"):
            line += text.count("\n")
            yield text.removeprefix(mark)
            mark = ""
    except UnicodeDecodeError as error:
        line += error.object.count(b"\n", 0, error.start)
        raise UserError(
            f"{path or STDIN} is not {encoding or 'utf-8'} text: line {line} has the byte "
            f"{error.object[error.start]:#04x}{ADVICE if encoding else ''}"
        ) from error
    except (LookupError, ValueError, TypeError) as error:
        raise UserError(f"there is no encoding {encoding!r}") from error


def json_object(text: str | bytes, where: str) -> dict[str, Any]:
    """The object that a text in JSON is.

    Raises:
        UserError: it is none; `where` begins the sentence.
    """
    try:
        text = text.decode() if isinstance(text, bytes) else text
        value = json.loads(text)
        if "\\u" in text:  # it may be half of a pair, which is no character
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise UserError(f"{where} is not a JSON object")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; raises as `pieces` and `json_object`."""
    return json_object(b"".join(pieces(path)), f"{path} is damaged: it")


def read_text(path: str | Path) -> str:
    """A UTF-8 text file, unpacked if its name ends in .gz; line ends become newlines.

    Raises:
        UserError: it can't be read, is too large, or not UTF-8 (the line is named).
    """
    return "".join(decoded(Path(path))).replace("\r\n", "\n").replace("\r", "\n")


def text_lines(path: Path | None, encoding: str = "", *, any_size: bool = False) -> Iterator[str]:
    """The lines of a text file, or of standard input, as they come, with their ends.

    They end at line feeds alone, and the last one may not. Raises as `decoded`.
    """
    line: list[str] = []
    for text in decoded(path, encoding, any_size=any_size):
        *ends, rest = text.split("\n")
        for end in ends:
            yield "".join([*line, end, "\n"])
            line = []
        line.append(rest)
    if rest := "".join(line):
        yield rest


def read_lines(path: Path | None, encoding: str = "") -> list[str]:
    """The lines of a text file, or of standard input, without their ends; raises as `decoded`."""
    lines = text_lines(path, encoding)
    return [line.replace("\r\n", "\n").removesuffix("\n") for line in lines]
