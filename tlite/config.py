"""Configs as JSON and back, and the Python files of a user's that they and the command line name.

A user's own function or part is kept by its file's name and SHA-256. Nothing is run but a file that
the user has named in this command, and only if it is the one that the run was made with.
"""

import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import itertools
import os
import reprlib
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tlite.errors import UserError, system_reason

PACKAGE = Path(__file__).resolve().parent

_named: list[Path] = []  # the files that may be run
_modules: dict[str, ModuleType] = {}  # where functions are, by the SHA-256 of the file as it ran
_numbers = itertools.count()  # for the names of modules


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


def from_dict(kind, value: Any):
    """The config of type `kind` that `to_dict` wrote as `value`.

    Raises:
        ValueError: a field is unknown, missing or of another type; it is named.
    """
    origin, args = get_origin(kind), get_args(kind)
    written = value.get("kind") if isinstance(value, dict) else None
    if origin in (Union, UnionType):
        for each in args:
            try:
                return from_dict(each, value)
            except ValueError:
                own = written == "class" and dataclasses.is_dataclass(each)
                if own or written == _name(each):
                    raise
    elif dataclasses.is_dataclass(kind):
        if written == "class" and isinstance(value.get("fields"), dict):
            return _filled(find_code(value), value["fields"])
        if written == kind.__name__:
            return _filled(kind, value)
    elif kind is Callable:
        return find_code(value)
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(from_dict(args[0], item) for item in value)
    elif origin is dict and isinstance(value, dict):
        return {from_dict(args[0], k): from_dict(args[1], v) for k, v in value.items()}
    elif kind is float and type(value) is int and abs(value) < 2**1000:
        return float(value)
    elif type(value) is kind or (origin is Literal and type(value) is str and value in args):
        return value
    raise ValueError(f"expected {_name(kind)}, not {reprlib.repr(written or value)}")


def _name(kind) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_name, get_args(kind)))
    return "function" if kind is Callable else getattr(kind, "__name__", str(kind))


def _filled(kind: type, values: dict[str, Any]):
    hints, filled = get_type_hints(kind), {}
    given = {name: value for name, value in values.items() if name != "kind"}
    fields = {f.name: f for f in dataclasses.fields(kind)}
    if unknown := given.keys() - fields.keys():
        raise ValueError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    required = {name for name, f in fields.items() if f.default is f.default_factory}
    if missing := required - given.keys():
        raise ValueError(f"{kind.__name__} lacks {', '.join(sorted(missing))}")
    for name, value in given.items():
        try:
            filled[name] = from_dict(hints[name], value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return kind(**filled)


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
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = Path(getattr(module, "__file__", None) or "")
    if module is None or file.suffix != ".py":
        raise UserError(f"{name} is not a function in a file: it can't be kept")
    library = module.__name__.partition(".")[0] in sys.stdlib_module_names
    library |= PACKAGE in file.resolve().parents or "site-packages" in file.parts
    if library and file.resolve().parent != shipped_experiments():
        raise UserError(f"{name} is not yours: write a function that calls it, in a file of yours")
    if vars(module).get(name) is not function:
        where = f"on the top level of {file.name} under that name"
        raise UserError(f"{name} is not {where}: it can't be kept")
    known = (digest for digest, other in _modules.items() if other is module)
    digest = next(known, None) or _sha256(_read(file))  # a file may change while it is used
    _modules[digest] = module
    kind = "class" if isinstance(function, type) else "function"
    return {"kind": kind, "file": file.name, "name": name, "sha256": digest}


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
    texts = [reference.get(key) if isinstance(reference, dict) else None for key in keys]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"expected a function's file, name and SHA-256, not {reference!r:.80}")
    kind, file, name, digest = texts
    module = _modules.get(digest) or run_file(_named_file(os.path.basename(file), name, digest))
    function = vars(module).get(name)
    known = describe_code(function) if callable(function) else {}
    if (known.get("sha256"), known.get("kind")) != (digest, kind):
        raise UserError(f"there is no {kind} {name} in {file}")
    return function


def _named_file(file: str, name: str, digest: str) -> Path:
    """The file of a function, if the user has named it or it came with tlite."""
    for path in (*_named, shipped_experiments() / file):
        if path.is_file() and _sha256(_read(path)) == digest:
            return path
    for path in _named:
        if path.name == file:
            raise UserError(f"{path} has changed since the run was made: it is not run")
    how = f"--code {shlex.quote(file)} (in Python code={file!r})"
    raise UserError(f"the run uses {name} of {file}: name that file, {how}, if you trust it")


def name_of(function: Callable | str) -> str:
    """For people: "exact", or "my_attention of my_file.py"."""
    if isinstance(function, str):
        return function
    module = sys.modules.get(function.__module__)
    file = os.path.basename(getattr(module, "__file__", None) or function.__module__)
    return f"{function.__qualname__} of {file}"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"can't read {path}: {system_reason(error)}") from error


def shipped_experiments() -> Path:
    """The folder of the experiments that come with tlite: in a wheel, or beside the package."""
    inside = PACKAGE / "_shipped" / "experiments"
    return inside if inside.is_dir() else PACKAGE.parent / "experiments"


def run_file(path: Path) -> ModuleType:
    """Run a Python file that the user has named: its text, and not a .pyc beside it.

    Raises:
        UserError: it ends in an error; its line is told.
    """
    text, whole, module = _read(path), path.resolve(), ModuleType(f"__code_{next(_numbers)}__")
    _let_import_neighbours(whole.parent)
    module.__file__ = str(whole)
    sys.modules[module.__name__] = module  # where a dataclass looks up its annotations
    try:
        exec(compile(text, whole, "exec", dont_inherit=True), vars(module))
    except Exception as error:
        raise UserError(_reason(error, path, whole.parent)) from error
    _modules[_sha256(text)] = module
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
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    lines = [
        f"{path.with_name(os.path.basename(name))}, line {line}"
        for name, line in places
        if line and Path(name).parent == folder
    ]
    kind = "" if isinstance(error, UserError) else type(error).__name__
    said = (getattr(error, "msg", None) or str(error)).strip().partition("\n")[0]
    return ": ".join(part for part in (lines[-1] if lines else str(path), kind, said) if part)
