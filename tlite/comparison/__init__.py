"""Compare runs and variants of studies over seeds and examples, with 95 % intervals."""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from tlite.comparison.results import Results, compare_runs
from tlite.comparison.speedup import Match
from tlite.comparison.study import is_study
from tlite.comparison.tables import to_csv, to_html, to_json, to_markdown, to_text
from tlite.errors import UserError, disk_errors, show
from tlite.training.run_dir import new_folder, replace_file

FORMATS = {"table": to_text, "markdown": to_markdown, "csv": to_csv, "json": to_json}
Format = Literal["table", "markdown", "csv", "json"]


def compare(
    folders: Sequence[Path],
    to: Path | None = None,
    format: Format = "table",
    smallest_effect: float | None = None,
    match: Match | None = None,
) -> Results:
    """Print how runs differ from the first; write tables, pictures and a page.

    Args:
        folders: of runs, or of studies for all their variants.
        to: folder to write into; by default `comparison` of a single study, or a new
            runs/comparison/TIME.
        smallest_effect: smallest difference of interest: prints how many seeds show it.
        match: also print effective speedups of runs at several numbers of steps, in terms of
            "steps", "flops" or "seconds".

    Raises:
        UserError: runs can't be read, or are not measured alike.
    """
    if smallest_effect is not None and not 0 < smallest_effect < math.inf:
        raise UserError(f"smallest_effect must be positive and finite, not {smallest_effect:g}")
    if not folders:
        raise UserError("name the folders of runs to compare, or of a study")
    from tlite.comparison.curves import draw  # matplotlib takes a second to import

    results = compare_runs(folders, smallest_effect, match)
    is_table = format == "table"
    show(FORMATS[format](results), end="\n\n" if is_table else "")
    one_study = len(folders) == 1 and is_study(folders[0])
    to = to or (folders[0] / "comparison" if one_study else new_folder("comparison"))
    write_results(results, draw(results), to)
    where = f"written into {to}: index.html has all of it, tables and pictures lie beside"
    print(where, file=sys.stdout if is_table else sys.stderr)  # programs read the other formats
    return results


def write_results(
    results: Results, pictures: Mapping[str, tuple[str, bytes]], folder: Path
) -> None:
    """Write tables, pictures and a page into a folder.

    Args:
        pictures: caption and PNG by file name.
    """
    files = {name: content for name, (_, content) in pictures.items()}
    texts = {"md": to_markdown, "csv": to_csv, "json": to_json}
    files |= {f"comparison.{kind}": text(results).encode() for kind, text in texts.items()}
    files["index.html"] = to_html(results, pictures).encode()
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        replace_file(folder / name, content)


__all__ = ["FORMATS", "Format", "Results", "compare", "write_results"]
