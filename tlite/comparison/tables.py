"""The results as tables: for the terminal, as Markdown, as CSV and as JSON."""

import csv
import html
import io
import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

from tlite.comparison.configs import ABSENT
from tlite.comparison.results import Results, decimals
from tlite.comparison.rows import Row

SHORT = 16  # letters of a name that a column is headed with
WIDEST = 48  # letters of a cell, on a terminal and in Markdown


class Table(NamedTuple):
    """What people read, and programs."""

    cells: list[list[str]]
    """The header first."""
    records: Sequence[dict[str, Any]] = ()
    """Each row's numbers as they are, by name."""

    def as_text(self) -> str:
        """Aligned, for a terminal: the first column to the left, the others to the right."""
        rows = [[clipped(cell) for cell in row] for row in self.cells]
        widths = [max(map(_places, column)) for column in zip(*rows, strict=True)]
        lines = []
        for first, *cells in rows:
            line = first + " " * (widths[0] - _places(first))
            for cell, width in zip(cells, widths[1:], strict=True):
                line += " " * (2 + width - _places(cell)) + cell
            lines.append(line.rstrip())
        return "\n".join(lines)

    def as_markdown(self) -> str:
        header, *rows = self.cells
        lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
        return "\n".join(f"| {' | '.join(map(_in_markdown, line))} |" for line in lines)

    def as_csv(self) -> str:
        """A line for each record; of what has parts those of the config."""
        file = io.StringIO()
        lines = [
            {name: value for name, value in record.items() if not isinstance(value, dict)}
            | {f"config.{name}": value for name, value in record["config"].items()}
            for record in self.records
        ]
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return file.getvalue()


def field_table(results: Results) -> Table | None:
    """What differs between the configs: the longer side, entries or fields, goes down."""
    fields, labels = results.fields, [row.label for row in results.rows]
    if not fields:
        return None
    cells = [("differs", *fields), *zip(labels, *fields.values(), strict=True)]
    if len(fields) > len(labels):
        cells = zip(*cells, strict=True)
    return Table([list(row) for row in cells])


def result_table(results: Results) -> Table:
    """All of the numbers, a row for each entry."""
    records = [_record(row) for row in results.rows]
    for index, record in enumerate(records):
        record["config"] = {name: texts[index] for name, texts in results.fields.items()}
    rows = _shown(results, records)
    return Table([[*rows[0]], *([*row.values()] for row in rows)], records)


def _record(row: Row) -> dict[str, Any]:
    """What is known of a row, as names and numbers."""
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


def _shown(results: Results, records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """What people read of each record, by the column's title."""
    spreads = [record["standard_deviation"] for record in records]
    value = results.measure.title + (" ± SD" if any(s is not None for s in spreads) else "")
    first = results.reference.label
    minus = f"minus {first if len(first) <= SHORT else 'the first'}, 95 %"
    left_out = {minus} if len(records) == 1 else set()
    left_out |= {"p (Holm)"} if len(results.intervals) < 2 else set()
    places = decimals(spreads), decimals([record["half_width"] for record in records])
    rows = []
    for row, r in zip(results.rows, records, strict=True):
        mean = _with_half(r["mean"], spreads[len(rows)], f".{places[0]}f")
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
    return rows


def _told(value: float | int | None, style: str) -> str:
    return ABSENT if value is None else f"{value:{style}}"


def _with_half(value: float | None, half: float | None, style: str) -> str:
    return _told(value, style) + ("" if half is None else f" ± {half:{style.lstrip('+')}}")


def as_text(results: Results) -> str:
    """For a terminal."""
    tables = field_table(results), result_table(results)
    parts = [table.as_text() for table in tables if table]
    parts += ["\n".join(results.verdicts), "\n".join(f"note: {n}" for n in results.notes)]
    return "\n\n".join(part for part in parts if part)


def as_markdown(results: Results) -> str:
    """Two tables and a list of sentences."""
    tables = field_table(results), result_table(results)
    parts = [table.as_markdown() for table in tables if table]
    sentences = [*results.verdicts, *(f"Note: {note}" for note in results.notes)]
    if sentences:
        parts.append("\n".join(f"- {_in_markdown(sentence)}" for sentence in sentences))
    return "\n\n".join(parts) + "\n"


def as_csv(results: Results) -> str:
    """A line for each entry."""
    return result_table(results).as_csv()


def as_json(results: Results) -> str:
    """All there is: also the measure of each seed, and the sentences."""
    content = {
        "measure": results.measure.name,
        "unit": results.measure.unit,
        "lower_is_better": results.measure.lower,
        "entries": result_table(results).records,
        "sentences": results.verdicts,
        "notes": results.notes,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _places(text: str) -> int:
    """How wide a terminal shows a text: letters of Chinese, say, take two places."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def clipped(text: str, most: int = WIDEST) -> str:
    """On one line, and not too long: of a long text the beginning and the end."""
    text = re.sub(r"\s+", " ", text)
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}\N{HORIZONTAL ELLIPSIS}{text[-half:]}"


def _in_markdown(text: str) -> str:
    """Text that is read as text: no cell ends, no tag begins, no emphasis."""
    text = html.escape(re.sub(r"\s+", " ", text), quote=False)
    return re.sub(r"([\\|*`\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", text)
