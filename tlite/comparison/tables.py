"""The results as tables: for the terminal, as Markdown, as CSV and as JSON."""

import csv
import html
import io
import json
import re
from typing import Any

from rich.cells import cell_len

from tlite.comparison.configs import ABSENT
from tlite.comparison.results import Results, decimals
from tlite.comparison.rows import Row

SHORT = 16  # letters of a name that a column is headed with
WIDEST = 48  # letters of a cell, on a terminal and in Markdown


Table = list[list[str]]  # what people read, the header first


def field_table(results: Results) -> Table:
    """What differs between the configs, if anything: the longer side, entries or fields, goes
    down."""
    fields, labels = results.fields, [row.label for row in results.rows]
    cells = [("differs", *fields), *zip(labels, *fields.values(), strict=True)]
    if len(fields) > len(labels):
        cells = zip(*cells, strict=True)
    return [list(row) for row in cells] if fields else []


def records(results: Results) -> list[dict[str, Any]]:
    """What programs read: all that is known of each row, as names and numbers."""
    fields = results.fields
    return [
        _record(row) | {"config": {name: texts[index] for name, texts in fields.items()}}
        for index, row in enumerate(results.rows)
    ]


def _record(row: Row) -> dict[str, Any]:
    found, half = row.difference, row.difference and row.difference.half_width
    of_seeds, of_examples = found.parts if found else (None, None)
    steps, values = row.curve
    return {
        "entry": row.label,
        "run": str(row.entry.folder),
        "parameters": row.cost.parameters,
        "flops": row.flops,
        "tokens_per_second": row.tokens_per_second,
        "minutes": float(row.minutes[-1]) if len(row.minutes) else None,
        "step": row.step,
        "steps": row.entry.training.steps,
        "finished": row.finished,
        "best_step": row.best_step,
        "seeds": len(row.values),
        "mean": row.mean,
        "standard_deviation": row.spread,
        "difference": found.mean if found else None,
        "half_width": half,
        "half_width_of_seeds": of_seeds,
        "half_width_of_examples": of_examples,
        "low": None if half is None else found.mean - half,
        "high": None if half is None else found.mean + half,
        "p_by_holm": found.corrected if found else None,
        "method": None if half is None else found.method,
        "seeds_compared": min(found.seeds) if found else None,
        "examples_compared": found.examples if found else None,
        "seeds_needed": found.needed if found and not found.shown else None,
        "failed": row.diverged and row.diverged[0],
        "values": {str(seed): value for seed, value in row.values.items()},
        "curve": {"steps": steps.tolist(), "values": values.tolist()},
    }


def result_table(results: Results) -> Table:
    """All of the numbers, a row for each entry."""
    found = records(results)
    spreads = [record["standard_deviation"] for record in found]
    value = results.measure.title + (" ± SD" if any(s is not None for s in spreads) else "")
    first = results.reference.label
    minus = f"minus {first if len(first) <= SHORT else 'the first'}, 95 %"
    left_out = {minus} if len(found) == 1 else set()
    left_out |= {"p (Holm)"} if len(results.intervals) < 2 else set()
    places = decimals(spreads), decimals([record["half_width"] for record in found])
    rows = []
    for row, r in zip(results.rows, found, strict=True):
        mean = _with_half(r["mean"], r["standard_deviation"], f".{places[0]}f")
        difference = _with_half(r["difference"], r["half_width"], f"+.{places[1]}f")
        of = "" if r["finished"] else f" of {r['steps']:,}"
        told = {
            "": r["entry"],
            value: "failed" if row.failed else mean,
            minus: difference.replace("-", "\N{MINUS SIGN}"),
            "p (Holm)": _told(r["p_by_holm"], ".2g"),
            "seeds": str(r["seeds"]),
            "best step": _told(r["best_step"], ","),
            "steps": f"{r['step']:,}{of}",
            "parameters": _told(r["parameters"], ","),
            "FLOPs a seed": _told(r["flops"], ".3g").replace("e+", "e"),
            "tokens/s": _told(r["tokens_per_second"], ",.0f"),
            "minutes": _told(r["minutes"], ".1f" if (r["minutes"] or 0) >= 10 else ".2f"),
        }
        rows.append({title: text for title, text in told.items() if title not in left_out})
    return [[*rows[0]], *([*row.values()] for row in rows)]


def _told(value: float | int | None, style: str) -> str:
    return ABSENT if value is None else f"{value:{style}}"


def _with_half(value: float | None, half: float | None, style: str) -> str:
    return _told(value, style) + ("" if half is None else f" ± {half:{style.lstrip('+')}}")


def as_text(results: Results) -> str:
    """For a terminal."""
    parts = [_aligned(field_table(results)), _aligned(result_table(results))]
    parts += ["\n".join(results.verdicts), "\n".join(f"note: {n}" for n in results.notes)]
    return "\n\n".join(part for part in parts if part)


def _aligned(table: Table) -> str:
    """The first column to the left, the others to the right."""
    rows = [[clipped(cell) for cell in row] for row in table]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *cells in rows:
        line = first + " " * (widths[0] - cell_len(first))
        for cell, width in zip(cells, widths[1:], strict=True):
            line += " " * (2 + width - cell_len(cell)) + cell
        lines.append(line.rstrip())
    return "\n".join(lines)


def as_markdown(results: Results) -> str:
    """Two tables and a list of sentences."""
    parts = []
    for header, *rows in filter(None, (field_table(results), result_table(results))):
        lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
        parts.append("\n".join(f"| {' | '.join(map(_in_markdown, line))} |" for line in lines))
    sentences = [*results.verdicts, *(f"Note: {note}" for note in results.notes)]
    if sentences:
        parts.append("\n".join(f"- {_in_markdown(sentence)}" for sentence in sentences))
    return "\n\n".join(parts) + "\n"


def as_csv(results: Results) -> str:
    """A line for each entry; of what has parts those of the config."""
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


def as_json(results: Results) -> str:
    """All there is: also the measure of each seed, and the sentences."""
    content = {
        "measure": results.measure.name,
        "unit": results.measure.unit,
        "lower_is_better": results.measure.lower,
        "entries": records(results),
        "sentences": results.verdicts,
        "notes": results.notes,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def clipped(text: str, most: int = WIDEST) -> str:
    """On one line, and not too long: of a long text the beginning and the end."""
    text = re.sub(r"\s+", " ", text)
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}\N{HORIZONTAL ELLIPSIS}{text[-half:]}"


def _in_markdown(text: str) -> str:
    """Text that is read as text: no cell ends, no tag begins, no emphasis."""
    text = html.escape(re.sub(r"\s+", " ", text), quote=False)
    return re.sub(r"([\\|*`\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", text)
