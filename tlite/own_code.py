"""A user's own functions in a config: kept as file, name and SHA-256, found again in named files.

Nothing is run but a file that the user has named in this command, and only if it is the one that
the run was made with.
"""

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tlite.errors import UserError, system_reason
from tlite.experiment_files import PACKAGE, run_file

_named: dict[str, Path] = {}  # the files that may be run, by SHA-256
_functions: dict[tuple[str, str], Callable] = {}  # those of files that have been run


def describe(function: Callable) -> dict[str, str]:
    """What config.json says of a function.

    Raises:
        ValueError: it could not be found again: it is no function on the top level of a file.
    """
    name = getattr(function, "__qualname__", repr(function))
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = Path(code.co_filename if code else "")
    if not code or not file.is_file() or "<" in name:
        raise ValueError(f"{name} is not a function on the top level of a file: it can't be kept")
    if PACKAGE in file.resolve().parents or "site-packages" in file.parts:
        raise ValueError(f"{name} is not yours: write a function that calls it, in a file of yours")
    digest = _sha256(file)
    _functions[digest, name] = function
    return {"kind": "function", "file": file.name, "name": name, "sha256": digest}


def name_files(paths: Iterable[Path]) -> None:
    """Let these files be run, where a config asks for their functions.

    Raises:
        UserError: there is no such file.
    """
    for path in paths:
        if not path.is_file():
            raise UserError(f"there is no file {path} to take code from")
        _named[_sha256(path)] = path


def find(record: Any) -> Callable:
    """The function that `describe` has described.

    Raises:
        ValueError: it is no such description.
        UserError: its file has not been named, is another by now, or lacks the function.
    """
    keys = "file", "name", "sha256"
    if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in keys):
        raise ValueError(f"expected a function's file, name and SHA-256, not {record!r:.80}")
    file, name, digest = (record[key] for key in keys)
    if (digest, name) in _functions:
        return _functions[digest, name]
    if digest not in _named:
        for path in _named.values():
            if path.name == os.path.basename(file):
                raise UserError(f"{path} has changed since the run was made: it is not run")
        raise UserError(
            f"the run uses {name} of {file}: name that file, --code {file}, if you trust it"
        )
    module = run_file(_named[digest], f"__code_{digest[:16]}__")
    if not callable(function := getattr(module, name, None)):
        raise UserError(f"there is no function {name} in {_named[digest]}")
    _functions[digest, name] = function
    return function


def name_of(function: Callable | str) -> str:
    """For people: "exact", or "my_attention of my_file.py"."""
    if isinstance(function, str):
        return function
    module = sys.modules.get(function.__module__)
    file = os.path.basename(getattr(module, "__file__", None) or function.__module__)
    return f"{function.__qualname__} of {file}"


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"can't read {path}: {system_reason(error)}") from error
