"""What a comparison finds: a row for each entry, and what can be said of them in sentences."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tlite.comparison.comparable import Measure, common_measure, warnings
from tlite.comparison.configs import differing_fields
from tlite.comparison.entries import Found
from tlite.comparison.examples import blocks
from tlite.comparison.flops import GENERATOR, TRANSLATOR
from tlite.comparison.rows import Row, read_row
from tlite.comparison.statistics import CONFIDENCE, difference, holm


@dataclass(frozen=True)
class Results:
    rows: list[Row]
    measure: Measure
    fields: dict[str, list[str]]
    """What differs between the configs: by field a text for each row."""
    notes: list[str]
    """What has failed, what is not finished, what to keep in mind."""

    @property
    def reference(self) -> Row:
        """What the others are compared with: the first that has not failed."""
        return reference_of(self.rows)

    @property
    def verdicts(self) -> list[str]:
        """A sentence for each row but the reference."""
        reference = self.reference
        return [_verdict(row, reference) for row in self.rows if row is not reference]

    @property
    def intervals(self) -> list[Row]:
        """The rows with an interval."""
        rows = (row for row in self.rows if row.difference)
        return [row for row in rows if row.difference.half_width is not None]


def find_results(found: Found) -> Results:
    """Everything that is told of entries, of which there is at least one.

    Raises:
        UserError: they can't be compared.
    """
    entries = found.entries
    measure = common_measure(entries)
    rows = [read_row(entry, measure) for entry in entries]
    reference = reference_of(rows)
    rows = corrected([row if row is reference else _compared(row, reference) for row in rows])
    notes = [*found.missing, *(note for row in rows for note in _state(row)), *warnings(entries)]
    tested = [row for row in rows if row.difference and row.difference.corrected is not None]
    if (number := len(tested)) > 1:
        notes.append(
            f"p is Holm's, of {number} differences: where one is below 0.05, at most one study in "
            "20 takes any for a difference that is none"
        )
    return Results(rows, measure, differing_fields(entries), notes)


def reference_of(rows: Sequence[Row]) -> Row:
    """The first that has not failed; the first where all have."""
    return next((row for row in rows if not row.failed), rows[0])


def _compared(row: Row, reference: Row) -> Row:
    """With its difference from the reference, by examples where both have kept them."""
    here, there, found, tables = row.examples, reference.examples, None, None
    if here and there:
        of_a_text = row.entry.experiment["kind"] == GENERATOR
        found = blocks(here, there, row.measure.name, of_a_text=of_a_text)
    if found:
        tables = row.measure.scale * found.run, row.measure.scale * found.reference
    by = difference(row.values, reference.values, tables)
    return dataclasses.replace(row, difference=by, blocks=found)


def corrected(rows: Sequence[Row]) -> list[Row]:
    """With Holm's p of all the differences that have one."""
    found = [*rows]
    tested = [i for i, row in enumerate(rows) if row.difference and row.difference.p is not None]
    for index, p in zip(tested, holm([rows[i].difference.p for i in tested]), strict=True):
        by = dataclasses.replace(rows[index].difference, corrected=p)
        found[index] = dataclasses.replace(rows[index], difference=by)
    return found


def _state(row: Row) -> list[str]:
    """Where an entry has failed, and how far it is where it has not ended."""
    if row.failed:
        return [f"{row.label} has failed: {row.failed}"]
    if not row.finished:
        state = f"{row.label} is at step {row.step:,} of {row.entry.training.steps:,}"
        return [state if row.values else f"{state}, and has no validation yet"]
    if not row.values:
        return [f"{row.label} has no {row.measure.name.replace('_', ' ')} in its validations"]
    return []


def _verdict(row: Row, reference: Row) -> str:
    """One plain sentence on a row and the reference."""
    label, other, found, unit = row.label, reference.label, row.difference, row.measure.unit
    if reference.failed:
        return f"{label} and {other} have both failed"
    if row.failed:  # no value is missing: it is the worse one
        seeds = len(row.diverged[1]) if row.diverged else 0
        of = f", {seeds} of its {row.entry.training.seeds} seeds" if seeds else ""
        return f"{label} is worse than {other}: it has failed{of}"
    if found is None:
        lacking = label if reference.values else other
        return f"{label} and {other} can't be compared yet: {lacking} has no value"
    seeds = "1 seed" if found.seeds[0] == 1 else f"{found.seeds[0]} seeds"
    if found.same:
        return f"{label} and {other}: the same numbers, {seeds}"
    half = found.half_width
    size, half_told = with_error(abs(found.mean), half)
    word = "better" if row.measure.better(found.mean) else "worse"
    if half is None:
        return f"{label} is {size} {unit} {word} than {other} {_of_one_seed(row)}"
    if not half and found.mean:
        return f"{label} is {size} {unit} {word} than {other} with each of {seeds}: no interval"
    interval = f"{size} ± {half_told} ({_parts(row)}) {unit}"
    welch = "" if found.method == "paired" else "; not of the same seeds: Welch's interval"
    if found.shown:
        return f"{label} is {interval} {word} than {other}, {_numbers(row)}{welch}"
    nothing = f"{label} and {other}: no difference that {_numbers(row)} can show"
    if not found.mean:
        return f"{nothing} ({interval}){welch}"
    alone = found.p < 1 - CONFIDENCE
    told = f", p {found.corrected:.2g} by Holm" if alone else ""
    return f"{nothing} ({interval} {word}{told}); {_needed(row)}{welch}"


def _of_one_seed(row: Row) -> str:
    which = "the one seed that both have" if row.difference.method == "paired" else "other seeds"
    _, examples = row.difference.parts
    told = ""
    if examples is not None:
        told = f" (on new {example_name(row)} ± {with_error(0.0, examples)[1]}, with these seeds)"
    return f"with {which}: two seeds of each are needed for an interval{told}"


def example_name(row: Row) -> str:
    """What the validation's examples are called; all of a generator's are one text."""
    kind = row.entry.experiment["kind"]
    return {GENERATOR: "text", TRANSLATOR: "pairs"}.get(kind, "texts")


def _parts(row: Row) -> str:
    """What an interval is over."""
    if not row.difference.examples:
        return "over seeds, on these texts"
    places = decimals([row.difference.half_width])
    seeds, examples = (f"{part:.{places}f}" for part in row.difference.parts)
    return f"seeds {seeds}, {example_name(row)} {examples}"


def _numbers(row: Row) -> str:
    """How many seeds and examples a difference is of."""
    found, (mine, theirs) = row.difference, row.difference.seeds
    seeds = f"{mine} seeds" if found.method == "paired" else f"{mine} and {theirs} seeds"
    if not found.examples:
        return seeds
    if example_name(row) != "text":
        return f"{seeds}, {found.examples:,} {example_name(row)}"
    return f"{seeds}, {found.examples:,} blocks of {row.blocks.size:,.0f} windows"


def _needed(row: Row) -> str:
    """How many seeds, or examples, would show as large a difference."""
    found, of_a_text = row.difference, example_name(row) == "text"
    small = np.format_float_positional(abs(found.mean), 2, fractional=False, trim="-")
    if not found.examples:
        wanted = "more than 1,000" if found.needed is None else f"about {found.needed:,}"
        return f"{wanted} would show {small}"
    if found.needed is not None:
        return f"about {found.needed:,} seeds would show {small}"
    if found.examples_needed is None:
        return f"neither more seeds nor more {example_name(row)} alone would show {small}"
    number = found.examples_needed * row.blocks.size
    return f"about {number:,.0f} {'windows' if of_a_text else example_name(row)} would show {small}"


def with_error(value: float, error: float | None) -> tuple[str, str]:
    """Both with as many decimals as show two digits of the error; without one four."""
    places = decimals([error])
    return f"{value:.{places}f}", "" if error is None else f"{error:.{places}f}"


def decimals(errors: Sequence[float | None]) -> int:
    """Decimals that show two digits of the middle one of errors."""
    known = sorted(error for error in errors if error)
    if not known:
        return 4
    middle = known[(len(known) - 1) // 2]
    return min(max(1 - math.floor(math.log10(middle)), 0), 6)
