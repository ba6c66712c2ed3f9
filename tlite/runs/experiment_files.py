"""Experiment files: Python files that export an `experiment`, by name or path."""

import ast
import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tlite.config import did_you_mean, to_dict
from tlite.errors import UserError
from tlite.user_code import EXPERIMENTS, exec_file

if TYPE_CHECKING:  # it imports JAX
    from tlite.experiment import Experiment

EXPORTS = re.compile(rb"^(experiment\s*[:=]|from .* import .*\bexperiment\b(?! as))", re.M)
CONSTRUCTOR = re.compile(r"\b(\w+)Experiment\(")
IMPORT = re.compile(r"^from (?:experiments\.)?(\w+) import", re.M)
FOLDERS = Path("experiments"), EXPERIMENTS
"""Folders of experiment files; of two files with one name the first is used."""
FOLDER_NAME = re.compile(r"""\w([^/\\:*?"<>|]{,98}[^/\\:*?"<>|\s])?""")


def exports_experiment(path: Path) -> bool:
    """Return True if a Python file assigns or imports the name `experiment`."""
    return os.path.isfile(path) and EXPORTS.search(path.read_bytes()) is not None


def find_experiments() -> dict[str, Path]:
    """Return experiment files by name."""
    paths = [path for folder in reversed(FOLDERS) for path in folder.glob("[!_.]*.py")]
    paths_by_name = {path.stem: path for path in paths if exports_experiment(path)}
    return dict(sorted(paths_by_name.items()))


def find_experiment(name: str) -> Path:
    """Return the file of an experiment, by its name or by a path that ends in .py."""
    if name.endswith(".py"):
        if not os.path.isfile(name):
            raise UserError(f"there is no experiment {name!r}: no such file")
        return Path(name)
    for folder in FOLDERS:
        if exports_experiment(file := folder / f"{name}.py"):
            return file
    if os.path.isfile(file := f"{name}.py"):
        raise UserError(f"there is no experiment {name!r}: did you mean {file}?")
    files = find_experiments()
    near = did_you_mean(name, files) or f" among {', '.join(files)}"
    raise UserError(f"there is no experiment {name!r}{near}")


def load_experiment(file: str | Path) -> "Experiment":
    """Return the `experiment` of a Python file, by its path or its name.

    The file may import its neighbours, and tlite's experiments as `experiments.NAME`.

    Raises:
        UserError: there is no such file, it raises an error (the message has its line), or it
            exports no experiment or one with a function that can't be imported.
    """
    return load_variants(file)[0]


def load_variants(file: str | Path) -> tuple["Experiment", dict[str, "Experiment"]]:
    """Return the `experiment` of a file and its `variants` by name, {} if it exports none.

    Raises:
        UserError: as `load_experiment`; or `variants` is not a dictionary of two or more
            experiments of the same type by a name that a folder can have.
    """
    path = file if isinstance(file, Path) else find_experiment(file)
    module = exec_file(path)
    if not hasattr(module, "experiment"):
        raise UserError(f"{path} has no `experiment`: add experiment = GeneratorExperiment(...)")
    from tlite.experiment import BaseExperiment

    experiment, variants = module.experiment, getattr(module, "variants", {})
    type_name = type(experiment).__name__
    if not isinstance(experiment, BaseExperiment):
        raise UserError(f"`experiment` in {path} is of type {type_name}, not an experiment")
    if not isinstance(variants, dict) or len(variants) == 1:
        raise UserError(f"`variants` in {path} must be a dictionary of two or more experiments")
    for name, variant in variants.items():
        if not (isinstance(name, str) and name.isprintable() and FOLDER_NAME.fullmatch(name)):
            raise UserError(f"the variant's name {name!r:.80} can't be the name of a folder")
        if type(variant) is not type(experiment):
            types = f"{type(variant).__name__}, but `experiment` a {type_name}"
            raise UserError(f"the variant {name!r} in {path} is a {types}")
    for each in (experiment, *variants.values()):
        to_dict(each)  # raises if a function can't be imported, before data is read
    return experiment, dict(variants)


def describe_experiments() -> list[tuple[str, str, str, str]]:
    """Return name, kind, "yours" unless it is tlite's, and first sentence of experiment files.

    The files are not run.
    """
    files = find_experiments()
    texts = {name: file.read_bytes().decode(errors="replace") for name, file in files.items()}
    rows = []
    for name, file in files.items():
        owner = "" if file.resolve().parent == EXPERIMENTS else "yours"
        rows.append((name, experiment_kind(name, texts), owner, first_sentence(texts[name])))
    return rows


def experiment_kind(name: str, texts: dict[str, str], depth: int = 9) -> str:
    """Return the kind of the first experiment that a file creates or imports; "": unknown."""
    if match := CONSTRUCTOR.search(texts[name]):
        return match[1].lower()
    others = [other for other in IMPORT.findall(texts[name]) if other in texts]
    return experiment_kind(others[0], texts, depth - 1) if others and depth else ""


def first_sentence(text: str) -> str:
    """Return the first sentence of a Python file's docstring."""
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        paragraph = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
        return re.split(r"(?<=\.) (?=[A-Z])", " ".join(paragraph.split()))[0]
    return ""
