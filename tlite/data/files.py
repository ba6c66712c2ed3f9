"""Which kind of file a name promises, and where a file of a name is."""

import os
from pathlib import Path

from tlite.data.download import data_folder
from tlite.data.reading import is_there
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
    """What a file holds, by its ending (before .gz).

    Raises:
        UserError: no kind of file has this ending.
    """
    if (suffix := ending(path)) not in KINDS:
        raise UserError(f"{path} has none of the endings that are known: {', '.join(KINDS)}")
    return KINDS[suffix]


def ending(path: Path) -> str:
    """That of a name, before .gz."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix


def is_table(path: Path) -> bool:
    """Whether a name promises a table: others are texts, train.en say."""
    return KINDS.get(ending(path), "text") != "text"


def find(name: str) -> Path:
    """The file of that name, here or in the data folder.

    Raises:
        UserError: there is none, or it is a device, say, or a folder.
    """
    for path in (Path(name), data_folder() / name):
        if is_there(path):
            return path
    if os.path.isabs(name):
        raise UserError(
            f"there is no file {name}: if it has moved, name the folder that it is in now by "
            "TLITE_DATA=FOLDER"
        )
    raise UserError(
        f"there is no file {name}, neither here nor in the data folder {data_folder()} "
        f"(set TLITE_DATA to name another)"
    )


def locate(name: str, *, in_data: bool = True) -> str:
    """The absolute path of a file or folder of that name; the name itself where there is none.

    It is looked for here and, unless `in_data` is False, in the data folder; there also what has
    moved, which was found by its absolute path.
    """
    inside = os.path.basename(name) if os.path.isabs(name) else name
    places = [Path(name), data_folder() / inside] if in_data else [Path(name)]
    try:
        return next((os.path.abspath(p) for p in places if name and os.path.lexists(p)), name)
    except ValueError:  # a NUL in it; what reads it says so
        return name
