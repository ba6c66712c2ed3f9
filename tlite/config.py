"""Configs as JSON and back, and the Python files of a user's that they and the command line name.

A user's own function or part is kept by its file's name and SHA-256. Nothing is run but a file that
the user has named in this command, and only if it is the one that the run was made with.
"""

import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import inspect
import os
import reprlib
import shlex
import sys
import traceback
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tlite.errors import UserError, system_reason

PACKAGE = Path(__file__).resolve().parent

_named: list[Path] = []  # the files that may be run
_modules: dict[str, ModuleType] = {}  # those that have been, by SHA-256
_references: dict[Callable, dict[str, str]] = {}  # of functions: a file may change while one runs


def check_size(name: str, value: int, most: int = 2**31 - 1) -> None:
    """Raises a ValueError for a size or a count that is below 1, or more than can be counted to."""
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most:,}, not {value}")


def to_dict(config) -> dict[str, Any]:
    """A dataclass as a dictionary that JSON can hold, with its class's name under "kind".

    One of a user's own class is what `describe_code` says of the class, with its "fields".
    """
    kind = type(config)
    values = {f.name: _to_plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if is_own(kind):
        return describe_code(kind) | {"fields": values}
    return {"kind": kind.__name__, **values}


def _to_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, tuple):
        return tuple(map(_to_plain, value))
    return describe_code(value) if callable(value) else value


def from_dict(kind, values: Any):
    """The config of type `kind` that `to_dict` wrote as `values`.

    A field that once had another name says so: `field(metadata={"was": "..."})`.

    Raises:
        ValueError: a field is unknown, missing or of another type; it is named.
    """
    if _is_own(values) and any(map(dataclasses.is_dataclass, get_args(kind) or [kind])):
        reference = {name: value for name, value in values.items() if name != "fields"}
        return _filled(find_code(reference), values["fields"])
    if get_origin(kind) in (Union, types.UnionType):
        return _from_union(get_args(kind), values)
    if not dataclasses.is_dataclass(kind):
        return _plain(kind, values)
    if not isinstance(values, dict) or values.get("kind") != kind.__name__:
        other = values.get("kind") if isinstance(values, dict) else values
        raise ValueError(f"expected a {kind.__name__}, not {reprlib.repr(other)}")
    return _filled(kind, values)


def _is_own(values: Any) -> bool:
    """Whether it is what `to_dict` writes of a user's own class."""
    return (
        isinstance(values, dict)
        and values.get("kind") == "class"
        and isinstance(values.get("fields"), dict)
    )


def _filled(kind: type, values: dict[str, Any]):
    hints, given = get_type_hints(kind), of_today(kind, values)
    if unknown := given.keys() - {f.name for f in dataclasses.fields(kind)}:
        raise ValueError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    required = {f.name for f in dataclasses.fields(kind) if f.default is f.default_factory}
    if missing := required - given.keys():
        raise ValueError(f"{kind.__name__} lacks {', '.join(sorted(missing))}")
    return kind(**{name: _field(name, hints[name], value) for name, value in given.items()})


def of_today(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Fields that `to_dict` wrote, of earlier versions too, as they are named today.

    Raises:
        ValueError: one says what there is no more.
    """
    earlier = {f.metadata["was"]: f.name for f in dataclasses.fields(kind) if "was" in f.metadata}
    given = {earlier.get(name, name): value for name, value in values.items() if name != "kind"}
    return kind.read_earlier(given) if hasattr(kind, "read_earlier") else given


def _field(name: str, kind, value: Any):
    try:
        return from_dict(kind, value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _from_union(kinds: tuple, values: Any):
    for kind in kinds:
        try:
            return from_dict(kind, values)
        except ValueError as error:
            if isinstance(values, dict) and values.get("kind") == _name(kind):
                raise error
    names = " or ".join(map(_name, kinds))
    raise ValueError(f"expected {names}, not {reprlib.repr(values)}")


def _name(kind) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    return "function" if kind is Callable else getattr(kind, "__name__", str(kind))


def _plain(kind, value: Any):
    if kind is Callable:
        return find_code(value)
    if get_origin(kind) is Literal:
        fits = type(value) is str and value in get_args(kind)
    elif get_origin(kind) is tuple:
        fits = isinstance(value, list | tuple)
        value = tuple(from_dict(get_args(kind)[0], v) for v in value) if fits else value
    elif get_origin(kind) is dict:
        fits = isinstance(value, dict)
        keys, values = get_args(kind)
        value = {_plain(keys, k): _plain(values, v) for k, v in value.items()} if fits else value
    elif kind is float and type(value) is int and abs(value) < 2**1000:
        value, fits = float(value), True
    else:
        fits = type(value) is (type(None) if kind is None else kind)
    if not fits:
        raise ValueError(f"expected {_name(kind)}, not {reprlib.repr(value)}")
    return value


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


def describe_code(function: Callable) -> dict[str, str]:
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


def find_code(reference: Any) -> Callable:
    """The function or the class that `describe_code` has described.

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
    known = describe_code(function) if callable(function) else {}
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


def shipped_experiments() -> Path:
    """The folder of the experiments that come with tlite: in a wheel, or beside the package."""
    inside = PACKAGE / "_shipped" / "experiments"
    return inside if inside.is_dir() else PACKAGE.parent / "experiments"


class _Source(importlib.machinery.SourceFileLoader):
    """Runs the text that can be read, not a .pyc beside it that may have been made of another."""

    def path_stats(self, path):
        raise OSError


def run_file(path: Path, name: str) -> ModuleType:
    """Run a Python file that the user has named, as a module of this name.

    Raises:
        UserError: it ends in an error; its line is told.
    """
    folder = path.resolve().parent
    _let_import_neighbours(folder)
    loader = _Source(name, str(path.resolve()))
    spec = importlib.util.spec_from_file_location(name, path.resolve(), loader=loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass of the file looks up its annotations
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(_reason(error, path, folder)) from error
    return module


def _let_import_neighbours(folder: Path) -> None:
    """Let a file in `folder` import what lies beside it, and `experiments.NAME`."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: a neighbour `numbers.py` is not Python's `numbers`
    # Made here instead of found on sys.path: many a project has an `experiments` of its own.
    spec = importlib.machinery.ModuleSpec("experiments", None, is_package=True)
    own = [str(folder)] if folder.name == "experiments" else []
    spec.submodule_search_locations = [*own, str(shipped_experiments())]
    sys.modules["experiments"] = importlib.util.module_from_spec(spec)


def _reason(error: Exception, path: Path, folder: Path) -> str:
    """What went wrong in a file or in a neighbour of it, with the line."""
    places = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    reason = str(error)
    if isinstance(error, SyntaxError):
        places.append((error.filename, error.lineno))
        reason = error.msg or ""
    own = [
        f"{path.with_name(os.path.basename(name))}, line {line}"
        for name, line in places
        if name and os.path.isabs(name) and line and Path(name).resolve().parent == folder
    ]
    if isinstance(error, OSError) and not own:
        return f"can't read {path} ({os.strerror(error.errno or 5)})"
    kind = "" if isinstance(error, UserError) else type(error).__name__
    first_line = reason.strip().partition("\n")[0]
    return ": ".join(part for part in (own[-1] if own else str(path), kind, first_line) if part)
