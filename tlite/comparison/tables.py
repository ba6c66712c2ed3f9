"""The results as tables: for the terminal, as Markdown, as CSV, as JSON, and as one HTML page."""

import base64
import csv
import html
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.cells import cell_len

from tlite.comparison.comparable import ABSENT
from tlite.comparison.results import Results, decimals

SHORT = 16  # letters of a name that a column is headed with
WIDEST = 48  # letters of a cell, on a terminal and in Markdown
LONGEST = 60  # letters of a page's title
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

Table = list[list[str]]  # what people read, the header first


def field_table(results: Results) -> Table:
    """What differs between the configs, if anything: the longer side, entries or fields, goes
    down."""
    fields, labels = results.fields, [run.label for run in results.runs]
    cells = [("differs", *fields), *zip(labels, *fields.values(), strict=True)]
    if len(fields) > len(labels):
        cells = zip(*cells, strict=True)
    return [list(row) for row in cells] if fields else []


def records(results: Results) -> list[dict[str, Any]]:
    """What programs read: all that is known of each row, as names and numbers."""
    return [_record(results, index) for index in range(len(results.runs))]


def _record(results: Results, index: int) -> dict[str, Any]:
    run, by, metric = results.runs[index], results.differences[index], results.metric
    effect = results.smallest_effect
    half, (of_seeds, of_examples) = (
        by and by.half_width,
        by.half_widths_by_source if by else (None, None),
    )
    by_seed, (steps, curve) = run.values(metric), run.curve(metric)
    values, rates = [*by_seed.values()], [*run.rates.values()]
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
        "difference": by and by.mean,
        "half_width": half,
        "half_width_of_seeds": of_seeds,
        "half_width_of_examples": of_examples,
        "low": None if half is None else by.mean - half,
        "high": None if half is None else by.mean + half,
        "p_by_holm": by and by.p_adjusted,
        "method": None if half is None else by.method,
        "seeds_compared": by and min(by.seeds),
        "examples_compared": by and by.examples,
        "correlation": by and by.correlation,
        "required_seeds": by and effect and by.required_seeds(effect),
        "failed": run.diverged and run.diverged[0],
        "values": {str(seed): value for seed, value in by_seed.items()},
        "curve": {"steps": steps.tolist(), "values": curve.tolist()},
        "config": {name: texts[index] for name, texts in results.fields.items()},
    }


def result_table(results: Results) -> Table:
    """All of the numbers, a row for each entry."""
    found = records(results)

    def cells(name: str, style: str = ",", error: str = "", form: str = "") -> list[str]:
        """A value of each row, with its error in this form where one is known, and its decimals."""
        errors = [record.get(error) for record in found]
        style = style + f".{decimals(errors)}f" if error else style
        halves = ["" if e is None else form.format(f"{e:{style.lstrip('+')}}") for e in errors]
        values = [record[name] for record in found]
        texts = [ABSENT if value is None else f"{value:{style}}" for value in values]
        return [text + half for text, half in zip(texts, halves, strict=True)]

    mean = cells("mean", "", error="standard_deviation", form=" ({})")
    first = results.reference.label
    minus = f"minus {first if len(first) <= SHORT else 'the first'} ± 95 % CI"
    difference = cells("difference", "+", error="half_width", form=" ± {}")
    ends = ["" if r["finished"] else f" of {r['steps']:,}" for r in found]
    columns = {
        "": cells("label", ""),
        results.metric.title + (", mean (SD)" if "(" in "".join(mean) else ""): [
            "failed" if run.failed else cell for run, cell in zip(results.runs, mean, strict=True)
        ],
        minus: [cell.replace("-", "\N{MINUS SIGN}") for cell in difference],
        "p (Holm)": cells("p_by_holm", ".2g"),
        "seeds": cells("seeds"),
        "at step": cells("last_validation"),
        "steps": [step + end for step, end in zip(cells("step"), ends, strict=True)],
        "parameters": cells("parameters"),
        "FLOPs a seed": [cell.replace("e+", "e") for cell in cells("flops", ".3g")],
        "tokens/s": cells("tokens_per_second", ",.0f"),
        "minutes": cells("minutes", ".2f"),
    }
    left_out = {minus} if len(found) == 1 else set()
    left_out |= {"p (Holm)"} if len(results.intervals) < 2 else set()
    columns = [[title, *texts] for title, texts in columns.items() if title not in left_out]
    return [list(row) for row in zip(*columns, strict=True)]


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


def as_text(results: Results) -> str:
    """For a terminal."""
    tables = field_table(results), result_table(results), speedup_table(results)
    parts = [*map(_aligned, tables)]
    parts += ["\n".join(results.conclusions), "\n".join(f"note: {n}" for n in results.notes)]
    return "\n\n".join(part for part in parts if part)


def _aligned(table: Table) -> str:
    """The first column to the left, the others to the right."""
    lines = [""] * len(table)
    for index, column in enumerate(zip(*table, strict=True)):
        cells = [*map(clipped, column)]
        widest = max(map(cell_len, cells))
        for place, cell in enumerate(cells):
            gap = " " * (widest - cell_len(cell))
            lines[place] += f"  {gap}{cell}" if index else cell + gap
    return "\n".join(line.rstrip() for line in lines)


def as_markdown(results: Results) -> str:
    """Two tables and a list of sentences."""
    parts = []
    for header, *rows in filter(
        None, (field_table(results), result_table(results), speedup_table(results))
    ):
        lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
        parts.append("\n".join(f"| {' | '.join(map(_in_markdown, line))} |" for line in lines))
    sentences = [*results.conclusions, *(f"Note: {note}" for note in results.notes)]
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
    """All there is: also the metric of each seed, and the sentences."""
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


def clipped(text: str, most: int = WIDEST) -> str:
    """On one line, and not too long: of a long text the beginning and the end."""
    text = re.sub(r"\s+", " ", text)
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}\N{HORIZONTAL ELLIPSIS}{text[-half:]}"


def _in_markdown(text: str) -> str:
    """Text that is read as text: no cell ends, no tag begins, no emphasis."""
    text = html.escape(re.sub(r"\s+", " ", text), quote=False)
    return re.sub(r"([\\|*`\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", text)


def as_html(results: Results, pictures: Mapping[str, tuple[str, bytes]]) -> str:
    """One page with everything, nothing from a network; of each picture a caption and the PNG."""
    labels = [run.label for run in results.runs]
    title = f"Compared: {', '.join(labels)}"
    if len(title) > LONGEST:
        title = f"Compared: {len(labels)} runs"
    figures = (
        f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,'
        f'{base64.b64encode(content).decode()}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        for caption, content in pictures.values()
    )
    sections = {
        "Results": _in_html(result_table(results)),
        "Speedup": _in_html(speedup_table(results)),
        "What differs between the configs": _in_html(field_table(results)),
        "Notes": _list(results.notes),
        "Pictures": "".join(figures),
    }
    parts = [f"<h2>{name}</h2>{content}" for name, content in sections.items() if content]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1>{_list(results.conclusions)}{''.join(parts)}</body></html>\n"
    )


def _list(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>" if items else ""


def _in_html(table: Table) -> str:
    rows = []
    for tag, line in zip(["th", *["td"] * len(table)], table, strict=False):
        rows.append("".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in line))
    body = "</tr><tr>".join(rows)
    return f'<div class="wide"><table><tr>{body}</tr></table></div>' if rows else ""
