"""Experiments are Python files: found by name or by path, and run for what they export.

`tlite experiments` lists them, and `tlite runs` what was trained, from files that are never run.
"""

import ast
import contextlib
import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlite.config import to_dict
from tlite.errors import UserError, show
from tlite.training.run_dir import find_runs
from tlite.user_code import run_file, shipped_experiments

if TYPE_CHECKING:  # it imports JAX, and a name that is misspelt is told before that
    from tlite.experiment import Experiment

NAMED = re.compile(rb"^(experiment\s*[:=]|from .* import .*\bexperiment\b(?! as))", re.M)
MADE = re.compile(r"\b(Generator|Classifier|Translator)Experiment\(")
FOLDER = re.compile(r"""\w([^/\\:*?"<>|]{,98}[^/\\:*?"<>|\s])?""")  # a name that one can have
TAKEN = re.compile(r"^from (?:experiments\.)?(\w+) import", re.M)


def find_experiments() -> dict[str, Path]:
    """Experiment files by name; those in ./experiments go before those that come with tlite.

    A file beside them that gives nothing the name `experiment` is none.
    """
    folders = shipped_experiments(), Path("experiments")
    files = [path for folder in folders for path in folder.glob("[!_.]*.py") if path.is_file()]
    found = {path.stem: path for path in files if NAMED.search(path.read_bytes())}
    return dict(sorted(found.items()))


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
        near = did_you_mean(name, known)
        raise UserError(f"there is no experiment {name!r} among {', '.join(known)}{near}")
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
    module = run_file(path)
    if not hasattr(module, "experiment"):
        raise UserError(f"{path} has no `experiment`")
    from tlite.experiment import BaseExperiment

    experiment, variants = module.experiment, getattr(module, "variants", {})
    if not isinstance(experiment, BaseExperiment):
        kind = type(experiment).__name__
        raise UserError(
            f"`experiment` in {path} is of type {kind}, but must be a GeneratorExperiment, "
            "ClassifierExperiment or TranslatorExperiment"
        )
    if not isinstance(variants, dict) or len(variants) == 1:
        raise UserError(f"`variants` in {path} must be a dictionary of two or more experiments")
    for name, variant in variants.items():
        if not (isinstance(name, str) and name.isprintable() and FOLDER.fullmatch(name)):
            raise UserError(f"a variant's name must be one for a folder, not {name!r:.80}")
        if type(variant) is not type(experiment):
            kinds = [type(e).__name__ for e in (variant, experiment)]
            what = f"the variant {name!r} in {path}"
            raise UserError(f"{what} is a {kinds[0]}, but `experiment` a {kinds[1]}")
    for each in (experiment, *variants.values()):
        to_dict(each)  # a function that can't be kept is told before data is read
    return experiment, dict(variants)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that is not known: the nearest that is, if any is near."""
    nearest = difflib.get_close_matches(word.split("=")[0], list(known), n=1, cutoff=0.5)
    return f": did you mean {nearest[0]}?" if nearest else ""


# Listed


def experiments(_: Any) -> None:
    """Print name, kind and the first sentence of each experiment's file."""
    found = find_experiments()
    texts = {name: file.read_bytes().decode(errors="replace") for name, file in found.items()}
    rows = []
    for name, file in found.items():
        own = "" if file.resolve().parent == shipped_experiments() else "yours"
        rows.append((name, kind_of(name, texts), own, sentence_of(texts[name])))
    print_columns(rows)


def kind_of(name: str, texts: dict[str, str], depth: int = 9) -> str:
    """What a file makes an experiment of, or the first of those that it imports; "": not known.

    Args:
        texts: of all experiments' files, by name.
    """
    if found := MADE.search(texts[name]):
        return found[1].lower()
    others = [other for other in TAKEN.findall(texts[name]) if other in texts]
    return kind_of(others[0], texts, depth - 1) if others and depth else ""


def sentence_of(text: str) -> str:
    """The first sentence of a file's docstring."""
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        paragraph = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
        return re.split(r"(?<=\.) (?=[A-Z])", " ".join(paragraph.split()))[0]
    return ""


def runs(options: Any) -> None:
    """Print how far each run and study below a folder has come, newest first."""
    if not os.path.isdir(options.folder):
        raise UserError(f"there is no folder {options.folder}: runs are made in ./runs")
    if not (found := find_runs(options.folder)):
        raise UserError(f"there are no runs in {options.folder}")
    rows = [("folder", "experiment", "kind", "done", "best validation", "begun")]
    for run in found:
        unit = "variants" if run.kind == "study" else "steps"
        done = f"{run.done:,} of {run.of:,} {unit}" if run.of else ""
        when = f"{run.began:%Y-%m-%d %H:%M}"
        rows.append((str(run.folder), run.experiment, run.kind, done, run.best, when))
    print_columns(rows)


def print_columns(rows: list[tuple[str, ...]]) -> None:
    """Rows of a table, each column as wide as its longest cell."""
    rows = [tuple(" ".join(cell.split()) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True) if width)
        show("  ".join(cells).rstrip())
