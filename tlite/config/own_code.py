"""A user's own functions and parts in a config: file, name and SHA-256, found in named files.

Nothing is run but a file that the user has named in this command, and only if it is the one that
the run was made with.
"""

import dataclasses
import hashlib
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from tlite.config.files import PACKAGE, run_file, shipped_experiments
from tlite.errors import UserError, system_reason

_named: list[Path] = []  # the files that may be run
_modules: dict[str, ModuleType] = {}  # those that have been, by SHA-256
_references: dict[Callable, dict[str, str]] = {}  # of functions: a file may change while one runs


class NotNamed(UserError):
    """A run needs a function of a file that the user has not named."""

    def __init__(self, name: str, file: str):
        self.name, self.file = name, file
        super().__init__(self.advising(f"--code {shlex.quote(file)}"))

    def advising(self, how: str) -> str:
        """The sentence, with how the file is named."""
        return f"the run uses {self.name} of {self.file}: name that file, {how}, if you trust it"


def is_own(value) -> bool:
    """Whether a part of a model, its class or a function is the user's, and not tlite's."""
    if not (callable(value) or dataclasses.is_dataclass(value)):
        return False
    module = getattr(value, "__module__", None) or type(value).__module__
    return module.partition(".")[0] != PACKAGE.name


def describe(function: Callable) -> dict[str, str]:
    """What config.json says of a function, or of a part's class: its file's name and SHA-256, and
    its own name.

    Raises:
        UserError: it could not be found again: it is none on the top level of a file.
    """
    name = getattr(function, "__qualname__", repr(function))
    inner, kind = inspect.unwrap(function), "function"  # of one that is decorated, by jax.jit say
    if isinstance(function, type) and dataclasses.is_dataclass(function):
        inner, kind = _method(function), "class"
    code, names = getattr(inner, "__code__", None), getattr(inner, "__globals__", {})
    if code and function in _references:
        _references[function] = _references.pop(function)  # the last is found first
        return dict(_references[function])
    file = Path(code.co_filename if code else "")
    if not file.is_file():
        raise UserError(f"{name} is not a function in a file: it can't be kept")
    of_others = PACKAGE in file.resolve().parents or "site-packages" in file.parts
    if of_others and file.resolve().parent != shipped_experiments():
        raise UserError(f"{name} is not yours: write a function that calls it, in a file of yours")
    if names.get(name) is not function:
        where = f"on the top level of {file.name} under that name"
        raise UserError(f"{name} is not {where}: it can't be kept")
    reference = {"kind": kind, "file": file.name, "name": name, "sha256": _sha256(file)}
    _references[function] = reference
    return dict(reference)


def _method(kind: type) -> Callable | None:
    """A method that was written in the class's file: a dataclass has others too."""
    for method in vars(kind).values():
        code, names = getattr(method, "__code__", None), getattr(method, "__globals__", {})
        written = code and names.get("__name__") == kind.__module__
        if written and os.path.isfile(code.co_filename):
            return method
    return None


def name_files(paths: Iterable[Path]) -> None:
    """Let these files be run, where a config asks for their functions.

    Raises:
        UserError: there is no such file.
    """
    for path in paths:
        if not path.is_file():
            raise UserError(f"there is no file {path} to take code from")
        _named.append(path)


def find(reference: Any) -> Callable:
    """The function or the class that `describe` has described.

    Raises:
        ValueError: it is no such description.
        UserError: its file has not been named, is another by now, or lacks the function.
    """
    keys = "kind", "file", "name", "sha256"
    if not isinstance(reference, dict) or not all(
        isinstance(reference.get(key), str) for key in keys
    ):
        raise ValueError(f"expected a function's file, name and SHA-256, not {reference!r:.80}")
    for function, known in reversed(_references.items()):
        if known == reference:
            return function
    name, digest = reference["name"], reference["sha256"]
    if digest not in _modules:
        _modules[digest] = run_file(_named_file(reference), f"__code_{digest[:16]}__")
    function = vars(_modules[digest]).get(name)
    known = describe(function) if callable(function) else {}
    if known.get("sha256") != digest or known["kind"] != reference["kind"]:
        raise UserError(f"there is no {reference['kind']} {name} in {reference['file']}")
    return function


def _named_file(reference: dict[str, str]) -> Path:
    """The file of a function, if the user has named it or it came with tlite."""
    file = os.path.basename(reference["file"])
    for path in (*_named, shipped_experiments() / file):
        if path.is_file() and _sha256(path) == reference["sha256"]:
            return path
    for path in _named:
        if path.name == file:
            raise UserError(f"{path} has changed since the run was made: it is not run")
    raise NotNamed(reference["name"], file)


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
