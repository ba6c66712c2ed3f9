"""Which kind of file a name promises, and what is wrong with one that is not of that kind."""

import contextlib
import csv
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tlite.data.download import data_folder
from tlite.data.reading import MAX_MEGABYTES, is_there, read_lines
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
        UserError: there is none, or it is a device, say, or a folder.
    """
    for path in (Path(name), data_folder() / name):
        if is_there(path):
            return path
    raise UserError(
        f"there is no file {name}, neither here nor in the data folder {data_folder()} "
        f"(set TLITE_DATA to name another)"
    )


def locate(name: str, folders: Sequence[Path] = (), *, in_data: bool = True) -> str:
    """The absolute path of a file or folder of that name; the name itself where there is none.

    It is looked for here, in these folders, and, unless `in_data` is False, in the data folder. Of
    an absolute path that is not there its last parts are, the most of them first: a project, or
    the data folder, may have moved.
    """
    path = Path(name)
    data = [data_folder()] if in_data else []
    ends = [Path(*path.parts[i:]) for i in range(1, len(path.parts))] if path.is_absolute() else []
    places = [path] if ends else [folder / path for folder in (Path(), *folders, *data)]
    places += [folder / end for end in ends for folder in (*folders, *data)]
    with contextlib.suppress(ValueError):  # a NUL in it; what reads it says so
        for place in places if name else ():
            # A run's data is in none of the folders that the run itself lies in: runs/NAME, say.
            if os.path.lexists(place) and Path(os.path.realpath(place)) not in folders:
                return os.path.abspath(place)
    return name


def follow(name: str, before: str, after: str) -> str:
    """Where a file is if it has moved together with another, from `before` to `after`."""
    old, new = list(Path(before).parts), list(Path(after).parts)
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    path = Path(name)
    moved = bool(old) and path.is_relative_to(Path(*old))
    return str(Path(*new) / path.relative_to(Path(*old))) if moved else name


def describe(hub: str, names: Iterable[str]) -> list[str]:
    """Where files of these names are, or the parts of a set on the hub, for a reader to judge.

    Raises:
        UserError: one is not there, or no regular file.
    """
    if hub:
        place = os.path.realpath(hub) if os.path.isdir(hub) else f"the set {hub}"
        return [f"{place} ({name})" for name in names]
    return [os.path.realpath(find(name)) for name in names]


def explain(
    path: Path,
    kind: str,
    encoding: str,
    error: Exception,
    columns: tuple[str, ...] = (),
    max_megabytes: int | None = MAX_MEGABYTES,
) -> str:
    """One sentence on why `datasets` could not read a file, with the line where there is one.

    Args:
        columns: the names of a table's columns, where its first line does not have them.
    """
    if kind in ("parquet", "arrow"):
        return f"{path} is not a whole {kind.capitalize()} file"
    lines = read_lines(path, encoding, max_megabytes or path.stat().st_size + 1)
    if not any(map(str.strip, lines)):
        return f"{path} is empty"
    fault = None
    if kind == "json":
        faults = ((number, _fault_of_json(line)) for number, line in enumerate(lines, 1))
        fault = next((f"JSON Lines: line {number} {what}" for number, what in faults if what), None)
    if kind == "csv":
        fault = _fault_of_table(lines, len(columns), tabs=".tsv" in path.suffixes)
    if fault:
        return f"{path} is not {fault}"
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"can't read {path} ({reason})"


def _fault_of_json(line: str) -> str | None:
    if not line.strip():
        return None
    try:
        value: Any = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "has half of a surrogate pair, which is no character"
    except RecursionError:
        return "is nested too deeply"
    except ValueError:
        value = None
    return None if isinstance(value, dict) else "is not a JSON object"


def _fault_of_table(lines: list[str], wanted: int, *, tabs: bool) -> str | None:
    csv.field_size_limit(2**31 - 1)
    dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}
    rows = csv.reader(lines, **dialect)
    start = end = 1
    for row in rows:
        wanted, start, end = wanted or len(row), end, rows.line_num + 1
        if len(row) > wanted:
            return f"a table: line {end - 1} has {len(row)} columns, not {wanted}"
    if not tabs and "".join(lines[start - 1 :]).count('"') % 2:
        return f"a table: the quotation mark in line {start} has no second one"
    return None
