"""Files of the user: paths, formats, decompression and decoding.

A file that is missing, damaged or too large, or has another encoding, is a `UserError`.
"""

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
MEGABYTE = 10**6
MAX_MEGABYTES = 2000  # of a file that is read into memory, decompressed
BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"  # some programs begin a file with it
FILE_TYPES = {stat.S_IFDIR: "a directory", stat.S_IFCHR: "a device", stat.S_IFIFO: "a pipe"}
FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
FORMATS |= {".txt": "text"}


def is_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def suffix_of(path: Path) -> str:
    """Return the suffix before .gz in lower case: ".csv" for A.CSV.gz."""
    return (path.with_suffix("") if is_gzip(path) else path).suffix.lower()


def format_of(path: Path) -> str:
    """Return the format of a file by its suffix: json, csv, parquet, text, or "" for others."""
    return FORMATS.get(suffix_of(path), "")


def is_table(path: Path) -> bool:
    """True for the suffix of a table; other files are texts, such as train.en."""
    return format_of(path) not in ("", "text")


def data_folder() -> Path:
    """Return `TLITE_DATA`, or `tlite` in the user's cache folder."""
    return Path(os.environ.get("TLITE_DATA") or cache_folder())


def is_regular_file(path: Path) -> bool:
    """Return True for a regular file and False if the path does not exist.

    Raises:
        UserError: the path is anything else, such as a folder or a pipe.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError as error:  # a NUL, or a character that the system can't encode
        raise UserError(f"{str(path)!r} can't be the name of a file") from error
    if not stat.S_ISREG(mode):
        file_type = FILE_TYPES.get(stat.S_IFMT(mode), "something else")
        raise UserError(f"can't read {path}: it is {file_type}, not a file")
    return True


def find(name: str) -> Path:
    """Return the path of a regular file here or in the data folder.

    Raise a `UserError` if there is none.
    """
    for path in (Path(name), data_folder() / name):
        if is_regular_file(path):
            return path
    raise UserError(
        f"there is no file {name}: check the path; if the file has moved, name its new folder by "
        f"TLITE_DATA=FOLDER (now {data_folder()})"
    )


def locate(name: str, *, in_data: bool = True, moved: bool = False) -> str:
    """Return the absolute path of a file or folder; the name itself if there is none.

    Args:
        in_data: search the data folder for a relative name, too.
        moved: search the data folder also for the base name of an absolute path that is gone. The
            caller must check the content, as another file may have the same name.
    """
    relative = os.path.basename(name) if moved and os.path.isabs(name) else name
    paths = [Path(name), data_folder() / relative] if in_data else [Path(name)]
    return next((os.path.abspath(p) for p in paths if name and os.path.lexists(p)), name)


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a regular file in binary mode, decompressed if its name ends in .gz.

    Errors of reading within the context become a `UserError`, too.
    """
    try:
        is_regular_file(path)
        with gzip.open(path) if is_gzip(path) else path.open("rb") as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is not a complete gzip file") from error
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error


def iter_bytes(path: Path | None, *, unlimited: bool = False) -> Iterator[bytes]:
    """Yield the content of a file, or of standard input (None), up to MAX_MEGABYTES megabytes."""
    size = 0
    with open_file(path) if path else contextlib.nullcontext(sys.stdin.buffer) as file:
        while content := file.read(MEGABYTE):
            size += len(content)
            if size > MAX_MEGABYTES * MEGABYTE and not unlimited:
                raise UserError(
                    f"{path or 'standard input'} is larger than {MAX_MEGABYTES:,} megabytes: split "
                    "it (to train on such texts, make a corpus of them with tlite prepare)"
                )
            yield content
            if len(content) < MEGABYTE:  # a terminal would wait for another line
                break


def iter_text(path: Path | None, encoding: str = "", *, unlimited: bool = False) -> Iterator[str]:
    """Yield the text of a file or of standard input as it is read, without byte-order mark.

    Args:
        encoding: "": UTF-8, which the user can't change.
    """
    try:
        line, prefix = 1, BYTE_ORDER_MARK
        for text in codecs.iterdecode(iter_bytes(path, unlimited=unlimited), encoding or "utf-8"):
            line += text.count("\n")
            yield text.removeprefix(prefix)
            prefix = ""
    except UnicodeDecodeError as error:
        line += error.object.count(b"\n", 0, error.start)
        advice = " (--encoding sets that of a table: latin-1, say)" if encoding else ""
        raise UserError(
            f"{path or 'standard input'} is not {encoding or 'utf-8'} text: line {line} has the "
            f"byte {error.object[error.start]:#04x}{advice}"
        ) from error
    except (LookupError, ValueError, TypeError) as error:
        raise UserError(f"there is no encoding {encoding!r}") from error


def parse_json_object(text: str | bytes, place: str) -> dict[str, Any]:
    """Return the object in a JSON text; an error that begins with its `place` if there is none."""
    try:
        text = text.decode() if isinstance(text, bytes) else text
        value = json.loads(text)
        if "\\u" in text:  # half of a surrogate pair is not a character
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise UserError(f"{place} is not a JSON object")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    return parse_json_object(b"".join(iter_bytes(path)), f"{path} is damaged: it")


def read_text(path: str | Path) -> str:
    """Return the text of a UTF-8 file with newlines as line ends."""
    return "".join(iter_text(Path(path))).replace("\r\n", "\n").replace("\r", "\n")


def text_lines(path: Path | None, encoding: str = "", *, unlimited: bool = False) -> Iterator[str]:
    """Yield the lines of a file or of standard input with their ends.

    Only a line feed ends a line; the last line may have none.
    """
    line: list[str] = []
    for text in iter_text(path, encoding, unlimited=unlimited):
        *ends, rest = text.split("\n")
        for end in ends:
            yield "".join([*line, end, "\n"])
            line = []
        line.append(rest)
    if rest := "".join(line):
        yield rest


def read_lines(path: Path | None, encoding: str = "") -> list[str]:
    """Return the lines of a file or of standard input without ends."""
    lines = text_lines(path, encoding)
    return [line.replace("\r\n", "\n").removesuffix("\n") for line in lines]
