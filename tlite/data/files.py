"""Which kind of file a name promises, and what is wrong with one that is not of that kind."""

import csv
import gzip
import json
import zlib
from pathlib import Path

from tlite.data.download import data_folder
from tlite.errors import UserError

KINDS = {
    ".jsonl": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "text",
}


def kind_of(path: Path) -> str:
    """The loader of `datasets` for a file, by its ending (before .gz).

    Raises:
        UserError: no kind of file has this ending.
    """
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix
    if suffix not in KINDS:
        raise UserError(f"{path} has none of the endings that are known: {', '.join(KINDS)}")
    return KINDS[suffix]


def find(name: str) -> Path:
    """The file of that name, here or in the data folder.

    Raises:
        UserError: there is none.
    """
    for path in (Path(name), data_folder() / name):
        if path.is_file():
            return path
    raise UserError(
        f"there is no file {name}, neither here nor in the data folder {data_folder()} "
        f"(set TLITE_DATA to name another)"
    )


def read_lines(path: Path, encoding: str) -> list[str]:
    """The lines of a text file, unpacked if its name ends in .gz.

    Raises:
        UserError: it can't be read, or not in this encoding (the line is named).
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        text = content.decode(encoding).replace("\r\n", "\n").removesuffix("\n")
        return text.split("\n") if text else []
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"can't read {path}: {error}") from error
    except LookupError as error:
        raise UserError(f"there is no encoding {encoding!r}") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path} is not {encoding} text: line {line} has the byte {content[error.start]:#04x}; "
            f"name another with --encoding, latin-1 say"
        ) from error


def explain(
    path: Path, kind: str, encoding: str, error: Exception, columns: tuple[str, ...] = ()
) -> str:
    """One sentence on why `datasets` could not read a file, with the line where there is one.

    Args:
        columns: the names of a table's columns, where its first line does not have them.
    """
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    if kind in ("parquet", "arrow"):
        return f"{path} is not a whole {kind.capitalize()} file ({reason})"
    lines = read_lines(path, encoding)
    if not lines:
        return f"{path} is empty"
    if kind == "json":
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                is_object = isinstance(json.loads(line), dict)
            except ValueError:
                is_object = False
            if not is_object:
                return f"{path} is not JSON Lines: line {number} is not a JSON object"
    if kind == "csv":
        tabs = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        rows = csv.reader(lines, **(tabs if ".tsv" in path.suffixes else {}))
        wanted = len(columns) or len(next(rows, []))
        for row in rows:
            if len(row) > wanted:
                return (
                    f"{path} is not a table: line {rows.line_num} has {len(row)} columns, "
                    f"not {wanted}"
                )
    return f"can't read {path} ({reason})"
