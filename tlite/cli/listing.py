"""`tlite experiments` and `tlite runs`: what there is, read from files and never run."""

import ast
import os
import re
from pathlib import Path

from tlite.cli.options import Experiments, Runs
from tlite.errors import UserError
from tlite.experiment_files import find_experiments, shipped_experiments
from tlite.run_folders import describe, find_folders
from tlite.terminal import show

KINDS = {f"{kind.title()}Experiment": kind for kind in ("generator", "classifier", "translator")}


def experiments(_: Experiments) -> None:
    """Print name, kind and the first sentence of each experiment's file."""
    rows = []
    for name, file in find_experiments().items():
        own = "" if file.resolve().parent == shipped_experiments() else "yours"
        if (kind := kind_in(file)) is not None:
            rows.append((name, kind, own, sentence_of(file)))
    print_columns(rows)


def sentence_of(file: Path) -> str:
    """The first sentence of a file's docstring."""
    text = (ast.get_docstring(tree) or "") if (tree := parsed(file)) else ""
    text = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", text)[0]


def kind_in(file: Path, name: str = "experiment", depth: int = 9) -> str | None:
    """What a file's variable is an experiment of; "" if only a run of the file tells; None if it
    has no such variable.

    It is one's call, or `dataclasses.replace` of another variable, here or in another file.
    """
    result, tree = None, parsed(file) if depth else None
    if tree is None:
        return ""
    for node in reversed(tree.body):
        if isinstance(node, ast.ImportFrom):
            found = [alias.name for alias in node.names if (alias.asname or alias.name) == name]
            if found and (other := find_experiments().get((node.module or "").split(".")[-1])):
                return kind_in(other, found[0], depth - 1) or ""
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
            call = node.value
            words = ast.unparse(call.func).split(".") if isinstance(call, ast.Call) else [""]
            if words[-1] != "replace" or not call.args:
                return KINDS.get(words[-1], "")
            name, result = ast.unparse(call.args[0]), ""
    return result


def parsed(file: Path) -> ast.Module | None:
    """A file as Python reads it; None where it can't."""
    try:
        return ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def runs(options: Runs) -> None:
    """Print how far each run and study below a folder has come, newest first."""
    if not os.path.isdir(options.folder):
        raise UserError(f"there is no folder {options.folder}: runs are made in ./runs")
    if not (found := [describe(folder) for folder in find_folders(options.folder)]):
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
