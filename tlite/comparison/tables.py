"""The results as tables: for the terminal, as Markdown, as CSV and as JSON."""

import csv
import html
import io
import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from tlite.comparison.configs import ABSENT
from tlite.comparison.results import Results, Row, decimals

SHORT = 16  # letters of a name that a column is headed with
WIDEST = 48  # letters of a cell, on a terminal and in Markdown


@dataclass(frozen=True)
class Table:
    header: list[str]
    rows: list[list[str]]


def field_table(results: Results) -> Table | None:
    """What differs between the configs: the longer side, entries or fields, goes down."""
    fields, labels = results.fields, [row.label for row in results.rows]
    if not fields:
        return None
    if len(fields) > len(labels):
        return Table(["differs", *labels], [[name, *texts] for name, texts in fields.items()])
    columns = zip(labels, *fields.values(), strict=True)
    return Table(["differs", *fields], [list(cells) for cells in columns])


def result_table(results: Results) -> Table:
    """A row for each entry."""
    first, measure = results.rows[0], results.measure
    alone = len(results.rows) == 1
    reference = first.label if len(first.label) <= SHORT else "the first"
    deviation = " ± SD" if any(row.spread is not None for row in results.rows) else ""
    several = len(results.intervals) > 1
    header = ["", measure.title + deviation]
    header += [] if alone else [f"minus {reference}, 95 %"]
    header += ["p (Holm)"] if several else []
    header += ["seeds"]
    header += ["best step", "steps", "parameters", "FLOPs a seed", "tokens/s", "minutes"]
    places = decimals([row.spread for row in results.rows])
    places_of_differences = decimals([row.difference.half_width for row in results.intervals])
    rows = []
    for row in results.rows:
        cells = [row.label, _value_cell(row, places)]
        cells += [] if alone else [_difference_cell(row, places_of_differences)]
        cells += [_p_cell(row)] if several else []
        rows.append([*cells, *_other_cells(row)])
    return Table(header, rows)


def _value_cell(row: Row, places: int) -> str:
    value = ABSENT if row.mean is None else f"{row.mean:.{places}f}"
    return value + ("" if row.spread is None else f" ± {row.spread:.{places}f}")


def _difference_cell(row: Row, places: int) -> str:
    if (found := row.difference) is None:
        return ABSENT
    half = "" if found.half_width is None else f" ± {found.half_width:.{places}f}"
    return f"{found.mean:+.{places}f}{half}".replace("-", "\N{MINUS SIGN}")


def _p_cell(row: Row) -> str:
    p = row.difference.corrected if row.difference else None
    return ABSENT if p is None else f"{p:.2g}" if p >= 1e-4 else "<0.0001"


def _other_cells(row: Row) -> list[str]:
    course, steps = row.course, row.course.entry.training.steps
    rate, minutes = course.tokens_per_second, row.minutes
    return [
        str(len(row.values)),
        ABSENT if course.best_step is None else f"{course.best_step:,}",
        f"{course.step:,}" + ("" if course.finished else f" of {steps:,}"),
        ABSENT if row.cost.parameters is None else f"{row.cost.parameters:,}",
        ABSENT if row.flops is None else f"{row.flops:.3g}".replace("e+", "e"),
        ABSENT if rate is None else f"{rate:,.0f}",
        ABSENT if minutes is None else f"{minutes:.{1 if minutes >= 10 else 2}f}",
    ]


def as_text(results: Results) -> str:
    """For a terminal."""
    parts = [_aligned(table) for table in (field_table(results), result_table(results)) if table]
    parts += ["\n".join(results.verdicts), "\n".join(f"note: {n}" for n in results.notes)]
    return "\n\n".join(part for part in parts if part)


def _aligned(table: Table) -> str:
    rows = [[clipped(cell) for cell in row] for row in (table.header, *table.rows)]
    widths = [max(map(_places, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *cells in rows:
        line = first + " " * (widths[0] - _places(first))
        for cell, width in zip(cells, widths[1:], strict=True):
            line += " " * (2 + width - _places(cell)) + cell
        lines.append(line.rstrip())
    return "\n".join(lines)


def _places(text: str) -> int:
    """How wide a terminal shows a text: letters of Chinese, say, take two places."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def clipped(text: str, most: int = WIDEST) -> str:
    """On one line, and not too long: of a long text the beginning and the end."""
    text = re.sub(r"\s+", " ", text)
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}\N{HORIZONTAL ELLIPSIS}{text[-half:]}"


def as_markdown(results: Results) -> str:
    """Two tables and a list of sentences."""
    parts = [_markdown(table) for table in (field_table(results), result_table(results)) if table]
    sentences = [*results.verdicts, *(f"Note: {note}" for note in results.notes)]
    if sentences:
        parts.append("\n".join(f"- {_in_markdown(sentence)}" for sentence in sentences))
    return "\n\n".join(parts) + "\n"


def _markdown(table: Table) -> str:
    lines = [table.header, ["---", *("---:" for _ in table.header[1:])], *table.rows]
    return "\n".join(f"| {' | '.join(map(_in_markdown, line))} |" for line in lines)


def _in_markdown(text: str) -> str:
    """Text that is read as text: no cell ends, no tag begins, no emphasis."""
    text = html.escape(re.sub(r"\s+", " ", text), quote=False)
    return re.sub(r"([\\|*`\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", text)


def as_csv(results: Results) -> str:
    """A line for each entry, numbers as they are."""
    file = io.StringIO()
    rows = [
        {name: value for name, value in row.items() if not isinstance(value, dict)}
        | {f"config.{name}": value for name, value in row["config"].items()}
        for row in rows_of(results)
    ]
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def as_json(results: Results) -> str:
    """All there is: also the measure of each seed, and the sentences."""
    content = {
        "measure": results.measure.name,
        "unit": results.measure.unit,
        "lower_is_better": results.measure.lower,
        "entries": rows_of(results),
        "sentences": results.verdicts,
        "notes": results.notes,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def rows_of(results: Results) -> list[dict[str, Any]]:
    """Each row as names and numbers; of the difference the whole interval."""
    return [_row(results, index, row) for index, row in enumerate(results.rows)]


def _row(results: Results, index: int, row: Row) -> dict[str, Any]:
    course, found = row.course, row.difference
    half = found.half_width if found else None
    return {
        "entry": row.label,
        "run": str(course.entry.folder),
        "parameters": row.cost.parameters,
        "flops": row.flops,
        "tokens_per_second": course.tokens_per_second,
        "minutes": row.minutes,
        "step": course.step,
        "steps": course.entry.training.steps,
        "finished": course.finished,
        "best_step": course.best_step,
        "seeds": len(row.values),
        "mean": row.mean,
        "standard_deviation": row.spread,
        "difference": found.mean if found else None,
        "low": None if half is None else found.mean - half,
        "high": None if half is None else found.mean + half,
        "method": found.method if half is not None else None,
        "half_width_of_seeds": found.parts[0] if found else None,
        "half_width_of_examples": found.parts[1] if found else None,
        "p_by_holm": found.corrected if found else None,
        "seeds_compared": min(found.seeds) if found else None,
        "examples_compared": found.examples if found else None,
        "seeds_needed": found.needed if found and not found.shown else None,
        "values": {str(seed): value for seed, value in row.values.items()},
        "failed": course.log.failed,
        "curve": _curve(row),
        "config": {name: texts[index] for name, texts in results.fields.items()},
    }


def _curve(row: Row) -> dict[str, list]:
    """At each validation the measure of every seed."""
    steps, values = row.course.validated
    return {"steps": steps.tolist(), "values": (values.astype(float)).tolist()}
