"""Experiments are Python files: found by name or by path, and run for what they export."""

import contextlib
import difflib
import importlib.machinery
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tlite.errors import UserError

if TYPE_CHECKING:  # it imports JAX, and a name that is misspelt is told before that
    from tlite.experiment import Experiment

NAMED = re.compile(r"^(experiment\s*[:=]|from .* import .*\bexperiment\b(?! as))", re.M)
PACKAGE = Path(__file__).resolve().parent


def shipped_experiments() -> Path:
    """The folder of the experiments that come with tlite: in a wheel, or beside the package."""
    inside = PACKAGE / "_shipped" / "experiments"
    return inside if inside.is_dir() else PACKAGE.parent / "experiments"


def find_experiments() -> dict[str, Path]:
    """Experiment files by name; those in ./experiments go before those that come with tlite."""
    found = {}
    for folder in (shipped_experiments(), Path("experiments")):
        if os.path.isdir(folder):
            files = filter(os.path.isfile, folder.glob("[!_.]*.py"))
            found |= {path.stem: path for path in files if _names_one(path)}
    return dict(sorted(found.items()))


def _names_one(path: Path) -> bool:
    """Whether the file gives something the name `experiment`; it may be a neighbour that does not.

    One that can't be read is an experiment, so that this is told of it.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return NAMED.search(path.read_text(encoding="utf-8")) is not None
    return True


def find_experiment(name: str) -> Path:
    """The file of an experiment: `demo`, or a path that ends in .py.

    Raises:
        UserError: there is no such file; the nearest name is told.
    """
    if name.endswith(".py"):
        if not os.path.isfile(name):
            raise UserError(f"there is no experiment {name!r}: no such file")
        return Path(name)
    known = find_experiments()
    if name not in known:
        raise UserError(
            f"there is no experiment {name!r} among {', '.join(known)}{did_you_mean(name, known)}"
        )
    return known[name]


def load_experiment(file: str | Path) -> "Experiment":
    """The `experiment` that a Python file exports; a string is looked up as `find_experiment` does.

    The file may import its neighbours, and tlite's own experiments as `experiments.NAME`.

    Raises:
        UserError: there is no such file, it ends in an error (its line is told), it exports no
            experiment, or one with a function that could not be found again.
    """
    return load_variants(file)[0]


def load_variants(file: str | Path) -> tuple["Experiment", dict[str, "Experiment"]]:
    """The `experiment` and the `variants` of a file, by name; none where it exports none.

    Raises:
        UserError: as `load_experiment`; or the variants are no dictionary of two or more
            experiments of the same kind, whose names folders can have.
    """
    path = file if isinstance(file, Path) else find_experiment(file)
    module = run_file(path, "__experiment__")
    if not hasattr(module, "experiment"):
        raise UserError(f"{path} has no `experiment`")
    experiment, variants = module.experiment, getattr(module, "variants", {})
    _check_experiment(f"`experiment` in {path}", experiment)
    if not hasattr(module, "variants"):
        return experiment, {}
    if not isinstance(variants, dict):
        kind = type(variants).__name__
        raise UserError(f"`variants` in {path} must be a dictionary of experiments, not a {kind}")
    if len(variants) < 2:
        raise UserError(f"`variants` in {path} must be at least two, not {len(variants)}")
    for name, variant in variants.items():
        check_variant_name(name)
        what = f"the variant {name!r} in {path}"
        _check_experiment(what, variant)
        if type(variant) is not type(experiment):
            kinds = [type(e).__name__ for e in (variant, experiment)]
            raise UserError(f"{what} is a {kinds[0]}, but `experiment` a {kinds[1]}")
    return experiment, dict(variants)


def _check_experiment(what: str, value: Any) -> None:
    """Raises a `UserError` unless it is an experiment that can be kept."""
    from tlite.config import to_dict
    from tlite.experiment import Experiment

    if not isinstance(value, Experiment):
        kinds = ", ".join(kind.__name__ for kind in Experiment.__args__)
        kind = type(value).__name__
        raise UserError(f"{what} is of type {kind}, but must be one of {kinds}")
    to_dict(value)  # a function that can't be kept is told before data is read


def check_variant_name(name: Any) -> None:
    """Raises a `UserError` for a variant's name that no folder should have."""
    plain = isinstance(name, str) and name.isprintable() and name == name.strip()
    if not plain or not name or name[0] in ".-" or set(name) & set('/\\:*?"<>|'):
        raise UserError(f"a variant's name must be one that a folder can have, not {name!r:.80}")
    if len(name.encode()) > 200:
        raise UserError(f"the variant's name {name[:40]!r}... is too long")


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


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that is not known: the nearest that is, if any is near."""
    nearest = difflib.get_close_matches(word.split("=")[0], list(known), n=1, cutoff=0.5)
    return f": did you mean {nearest[0]}?" if nearest else ""
