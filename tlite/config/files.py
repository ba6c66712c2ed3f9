"""A Python file that the user has named is run as a module; what ends it is told with its line."""

import importlib.machinery
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from tlite.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]


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
        raise UserError(_told(error, path, folder)) from error
    return module


def _let_import_neighbours(folder: Path) -> None:
    """Let a file in `folder` import what lies beside it, and `experiments.NAME`."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: a neighbour `numbers.py` is not Python's `numbers`
    # Made here instead of found on sys.path: many a project has an `experiments` of its own.
    spec = importlib.machinery.ModuleSpec("experiments", None, is_package=True)
    own = [folder] if folder.name == "experiments" else []
    spec.submodule_search_locations = [str(path) for path in (*own, shipped_experiments())]
    sys.modules["experiments"] = importlib.util.module_from_spec(spec)


def _told(error: Exception, path: Path, folder: Path) -> str:
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
