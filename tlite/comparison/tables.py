"""Results as tables for a terminal, Markdown, CSV, JSON and an HTML page."""

import base64
import csv
import html
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from rich.cells import cell_len

from tlite.comparison.comparable import ABSENT
from tlite.comparison.results import Results, decimals

MAX_HEADER, MAX_CELL, MAX_TITLE = 16, 48, 60  # characters
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em;
       overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .3em .6em; text-align: right; border-bottom: 1px solid #8888; }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere;
       min-width: 7em; max-width: 22em; }
figure { margin: 1.5em 0; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
"""

Table = list[list[str]]  # cells as text; the header first


def field_table(results: Results) -> Table:
    """Return the fields that differ by run; runs or fields are the rows, whichever are more."""
    fields, labels = results.fields, [run.label for run in results.runs]
    cells = [("differs", *fields), *zip(labels, *fields.values(), strict=True)]
    if len(fields) > len(labels):
        cells = zip(*cells, strict=True)
    return [list(row) for row in cells] if fields else []


def records(results: Results) -> list[dict[str, Any]]:
    """Return the numbers of each run by name, as for JSON."""
    return [_record(results, index) for index in range(len(results.runs))]


def _record(results: Results, index: int) -> dict[str, Any]:
    run, diff, metric = results.runs[index], results.differences[index], results.metric
    effect = results.smallest_effect
    half_width = diff and diff.half_width
    over_seeds, over_examples = diff.half_widths_by_source if diff else (None, None)
    values_by_seed, (steps, curve) = run.values(metric), run.curve(metric)
    values, rates = [*values_by_seed.values()], [*run.rates.values()]
    return {
        "label": run.label,
        "run": str(run.folder),
        "parameters": run.parameters,
        "flops": run.flops_per_step and run.flops_per_step * run.step,
        "tokens_per_second": float(np.median(rates)) if rates else None,
        "minutes": float(run.minutes[-1]) if rates else None,
        "step": run.step,
        "steps": run.training.steps,
        "finished": run.finished,
        "best_step": run.best_step,
        "last_validation": run.last_validation,
        "seeds": len(values),
        "mean": float(np.mean(values)) if values else None,
        "standard_deviation": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "difference": diff and diff.mean,
        "half_width": half_width,
        "half_width_of_seeds": over_seeds,
        "half_width_of_examples": over_examples,
        "low": None if half_width is None else diff.mean - half_width,
        "high": None if half_width is None else diff.mean + half_width,
        "p_by_holm": diff and diff.p_adjusted,
        "method": None if half_width is None else diff.method,
        "seeds_compared": diff and min(diff.seeds),
        "examples_compared": diff and diff.examples,
        "correlation": diff and diff.correlation,
        "required_seeds": diff and effect and diff.required_seeds(effect),
        "failed": run.failed or None,
        "diverged_at": run.diverged and run.diverged[0],
        "values": {str(seed): value for seed, value in values_by_seed.items()},
        "curve": {"steps": steps.tolist(), "values": curve.tolist()},
        "config": {name: texts[index] for name, texts in results.fields.items()},
    }


def result_table(results: Results) -> Table:
    """Return the numbers as text, a row for each run."""
    rows = records(results)
    cells = partial(_cells, rows)
    means = _cells_with_error(rows, "mean", "standard_deviation", " ({})")
    reference = results.reference.label
    minus = f"minus {reference if len(reference) <= MAX_HEADER else 'the reference'} ± 95 % CI"
    differences = _cells_with_error(rows, "difference", "half_width", " ± {}", sign="+")
    unfinished = ["" if row["finished"] else f" of {row['steps']:,}" for row in rows]
    columns = {
        "": cells("label", ""),
        results.metric.title + (", mean (SD)" if "(" in "".join(means) else ""): [
            "failed" if run.failed else cell for run, cell in zip(results.runs, means, strict=True)
        ],
        minus: [cell.replace("-", "\N{MINUS SIGN}") for cell in differences],
        "p (Holm)": cells("p_by_holm", ".2g"),
        "seeds": cells("seeds"),
        "at step": cells("last_validation"),
        "steps": [*map("".join, zip(cells("step"), unfinished, strict=True))],
        "parameters": cells("parameters"),
        "FLOPs a seed": [cell.replace("e+", "e") for cell in cells("flops", ".3g")],
        "tokens/s": cells("tokens_per_second", ",.0f"),
        "minutes": cells("minutes", ".2f"),
    }
    if len(rows) == 1:
        del columns[minus]
    if len(results.intervals) < 2:
        del columns["p (Holm)"]
    columns = [[title, *texts] for title, texts in columns.items()]
    return [list(row) for row in zip(*columns, strict=True)]


def _cells(rows: Sequence[dict[str, Any]], name: str, spec: str = ",") -> list[str]:
    """Return a number of each run as text, by a format specification."""
    return [ABSENT if row[name] is None else f"{row[name]:{spec}}" for row in rows]


def _cells_with_error(
    rows: Sequence[dict[str, Any]], name: str, error: str, template: str, sign: str = ""
) -> list[str]:
    """Return a number of each run with its error, both with the decimals that the errors need."""
    spec = f".{decimals([row[error] for row in rows])}f"
    errors = _cells(rows, error, spec)
    suffixes = ["" if text == ABSENT else template.format(text) for text in errors]
    return [*map("".join, zip(_cells(rows, name, sign + spec), suffixes, strict=True))]


def speedup_table(results: Results) -> Table:
    """Return the speedups, a row for each group of runs that differ in the number of steps only."""
    if not results.speedups:
        return []
    unit = {"steps": "steps", "flops": "FLOPs", "seconds": "seconds"}[results.match]
    table = [["", f"{results.metric.title} by steps", f"speedup at equal loss, in {unit}"]]
    for entry in results.speedups:
        losses = ", ".join(f"{steps:,}: {loss:.4f}" for steps, loss in entry.budgets.items())
        table.append([entry.label, losses, ABSENT if not entry.speedup else str(entry.speedup)])
    return table


def speedup_records(results: Results) -> list[dict[str, Any]]:
    """Return the speedups as names and numbers."""
    return [
        {
            "label": entry.label,
            "losses": {str(steps): loss for steps, loss in entry.budgets.items()},
            **{
                name: number if number and math.isfinite(number) else None
                for name, number in (entry.speedup._asdict() if entry.speedup else {}).items()
            },
            "text": str(entry.speedup or ""),
        }
        for entry in results.speedups
    ]


def to_text(results: Results) -> str:
    """Return tables, conclusions and notes for a terminal."""
    tables = field_table(results), result_table(results), speedup_table(results)
    blocks = [*map(_align_columns, tables)]
    blocks += ["\n".join(results.conclusions), "\n".join(f"note: {n}" for n in results.notes)]
    return "\n\n".join(filter(None, blocks))


def _align_columns(table: Table) -> str:
    """Return a table as text; all columns but the first are aligned to the right."""
    lines = [""] * len(table)
    for index, column in enumerate(zip(*table, strict=True)):
        cells = [*map(shorten, column)]
        width = max(map(cell_len, cells))
        for row, cell in enumerate(cells):
            gap = " " * (width - cell_len(cell))
            lines[row] += f"  {gap}{cell}" if index else cell + gap
    return "\n".join(line.rstrip() for line in lines)


def to_markdown(results: Results) -> str:
    """Return tables, and a list of conclusions and notes."""
    blocks = []
    tables = field_table(results), result_table(results), speedup_table(results)
    for header, *rows in filter(None, tables):
        lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
        blocks.append("\n".join(f"| {' | '.join(map(_escape_markdown, line))} |" for line in lines))
    sentences = [*results.conclusions, *(f"Note: {note}" for note in results.notes)]
    if sentences:
        blocks.append("\n".join(f"- {_escape_markdown(sentence)}" for sentence in sentences))
    return "\n\n".join(blocks) + "\n"


def to_csv(results: Results) -> str:
    """Return a line for each run, without the scores of seeds and the curves."""
    file = io.StringIO()
    lines = [
        {name: value for name, value in record.items() if not isinstance(value, dict)}
        | {f"config.{name}": value for name, value in record["config"].items()}
        for record in records(results)
    ]
    writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def to_json(results: Results) -> str:
    """Return all numbers, also the score of each seed, conclusions and notes."""
    content = {
        "metric": results.metric.name,
        "unit": results.metric.unit,
        "lower_is_better": results.metric.lower,
        "runs": records(results),
        "match": results.match,
        "speedups": speedup_records(results),
        "conclusions": results.conclusions,
        "notes": results.notes,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def shorten(text: str, length: int = MAX_CELL) -> str:
    """Return a text on one line, with an ellipsis for the middle of one longer than `length`."""
    text = re.sub(r"\s+", " ", text)
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[:half]}\N{HORIZONTAL ELLIPSIS}{text[-half:]}"


def _escape_markdown(text: str) -> str:
    """Return a text escaped for Markdown."""
    text = html.escape(re.sub(r"\s+", " ", text), quote=False)
    return re.sub(r"([\\|*`\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", text)


def to_html(results: Results, pictures: Mapping[str, tuple[str, bytes]]) -> str:
    """Return one page that needs no network; `pictures` has caption and PNG by file name."""
    labels = [run.label for run in results.runs]
    title = f"Compared: {', '.join(labels)}"
    if len(title) > MAX_TITLE:
        title = f"Compared: {len(labels)} runs"
    figures = (
        f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,'
        f'{base64.b64encode(content).decode()}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        for caption, content in pictures.values()
    )
    sections = {
        "Results": _html_table(result_table(results)),
        "Speedup": _html_table(speedup_table(results)),
        "What differs between the configs": _html_table(field_table(results)),
        "Notes": _html_list(results.notes),
        "Pictures": "".join(figures),
    }
    parts = [f"<h2>{name}</h2>{content}" for name, content in sections.items() if content]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1>{_html_list(results.conclusions)}"
        f"{''.join(parts)}</body></html>\n"
    )


def _html_list(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>" if items else ""


def _html_table(table: Table) -> str:
    rows = []
    for tag, line in zip(["th", *["td"] * len(table)], table, strict=False):
        rows.append("".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in line))
    body = "</tr><tr>".join(rows)
    return f'<div class="wide"><table><tr>{body}</tr></table></div>' if rows else ""
