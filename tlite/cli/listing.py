"""`tlite experiments` and `tlite runs`: what there is, read from files and never run."""

import ast
import contextlib
import os
import re

from tlite.cli.experiment_files import find_experiments
from tlite.cli.options import Experiments, Runs
from tlite.config import shipped_experiments
from tlite.errors import UserError
from tlite.terminal import show
from tlite.training.runs import find_runs

MADE = re.compile(r"\b(Generator|Classifier|Translator)Experiment\(")
TAKEN = re.compile(r"^from (?:experiments\.)?(\w+) import", re.MULTILINE)


def experiments(_: Experiments) -> None:
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


def runs(options: Runs) -> None:
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
