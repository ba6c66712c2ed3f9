"""What a comparison finds: a row for each entry, and what can be said of them in sentences."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tlite.comparison.comparable import common_measure, differing_fields, warnings
from tlite.comparison.flops import GENERATOR, TRANSLATOR
from tlite.comparison.rows import Measure, Row, read_rows
from tlite.comparison.statistics import CONFIDENCE, blocks, difference, holm
from tlite.errors import UserError
from tlite.training.metrics import Examples, read_examples


class Results(NamedTuple):
    rows: list[Row]
    reference: Row
    """What the others are compared with: the first that has not failed."""
    measure: Measure
    fields: dict[str, list[str]]
    """What differs between the configs: by field a text for each row."""
    verdicts: list[str]
    """A sentence for each row but the reference."""
    notes: list[str]
    """What has failed, what is not finished, what to keep in mind."""

    @property
    def intervals(self) -> list[Row]:
        """The rows with an interval."""
        return [r for r in self.rows if r.difference and r.difference.half_width is not None]


def find_results(folders: Sequence[Path]) -> Results:
    """Everything that is told of runs and of studies' variants.

    Raises:
        UserError: they can't be read, or not be compared.
    """
    rows, missing = read_rows(folders)
    if not rows:
        raise UserError(f"there is nothing to compare: {'; '.join(missing) or 'no variants'}")
    measure = common_measure(rows)
    first = next((index for index, row in enumerate(rows) if not row.failed), 0)
    reference, there = rows[first], read_examples(rows[first].folder)
    found = [row if row is reference else _compared(row, reference, there, measure) for row in rows]
    tested = [i for i, row in enumerate(found) if row.difference and row.difference.p is not None]
    for i, p in zip(tested, holm([found[i].difference.p for i in tested]), strict=True):
        by = dataclasses.replace(found[i].difference, corrected=p)
        found[i] = dataclasses.replace(found[i], difference=by)
    states = [_state(row, measure) for row in found]
    notes = [*missing, *filter(None, states), *warnings(found)]
    if (number := len(tested)) > 1:
        notes.append(
            f"p is Holm's, of {number} differences: where one is below 0.05, at most one study in "
            "20 takes any for a difference that is none"
        )
    verdicts = [_verdict(row, reference, measure) for row in found if row is not reference]
    return Results(found, reference, measure, differing_fields(found), verdicts, notes)


def _compared(row: Row, reference: Row, there: Examples | None, measure: Measure) -> Row:
    """With its difference from the reference, by examples where both have kept them."""
    here, found, tables = read_examples(row.folder), None, None
    if here and there and (here.step, there.step) == (row.best_step, reference.best_step):
        of_a_text = row.experiment["kind"] == GENERATOR
        found = blocks(here, there, measure.name, of_a_text=of_a_text)
    if found:
        tables = measure.scale * found.run, measure.scale * found.reference
    by = difference(row.values(measure), reference.values(measure), tables)
    return dataclasses.replace(row, difference=by, block=found.size if found else 1.0)


def _state(row: Row, measure: Measure) -> str:
    """Where an entry has failed, and how far it is where it has not ended; else ""."""
    has_value = bool(row.values(measure))
    if row.failed:
        return f"{row.label} has failed: {row.failed}"
    if not row.finished:
        state = f"{row.label} is at step {row.step:,} of {row.training.steps:,}"
        return state if has_value else f"{state}, and has no validation yet"
    name = measure.name.replace("_", " ")
    return "" if has_value else f"{row.label} has no {name} in its validations"


def _verdict(row: Row, reference: Row, measure: Measure) -> str:
    """One plain sentence on a row and the reference."""
    label, other, found = row.label, reference.label, row.difference
    if reference.failed:
        return f"{label} and {other} have both failed"
    if row.failed:  # no value is missing: it is the worse one
        of = f", {len(row.diverged[1])} of its {row.training.seeds} seeds" if row.diverged else ""
        return f"{label} is worse than {other}: it has failed{of}"
    if found is None:
        lacking = label if reference.values(measure) else other
        return f"{label} and {other} can't be compared yet: {lacking} has no value"
    seeds = "1 seed" if found.seeds[0] == 1 else f"{found.seeds[0]} seeds"
    if found.same:
        return f"{label} and {other}: the same numbers, {seeds}"
    half, unit = found.half_width, measure.unit
    size, half_told = with_error(abs(found.mean), half)
    word = "better" if measure.better(found.mean) else "worse"
    if half is None:
        return f"{label} is {size} {unit} {word} than {other} {_of_one_seed(row)}"
    if not half and found.mean:
        return f"{label} is {size} {unit} {word} than {other} with each of {seeds}: no interval"
    parts, numbers, needed = _over(row)
    interval = f"{size} ± {half_told} ({parts}) {unit}"
    welch = "" if found.method == "paired" else "; not of the same seeds: Welch's interval"
    if found.shown:
        return f"{label} is {interval} {word} than {other}, {numbers}{welch}"
    nothing = f"{label} and {other}: no difference that {numbers} can show"
    if not found.mean:
        return f"{nothing} ({interval}){welch}"
    told = f", p {found.corrected:.2g} by Holm" if found.p < 1 - CONFIDENCE else ""
    return f"{nothing} ({interval} {word}{told}); {needed}{welch}"


def _of_one_seed(row: Row) -> str:
    which = "the one seed that both have" if row.difference.method == "paired" else "other seeds"
    _, examples = row.difference.parts
    told = ""
    if examples is not None:
        told = f" (on new {_examples(row)} ± {with_error(0.0, examples)[1]}, with these seeds)"
    return f"with {which}: two seeds of each are needed for an interval{told}"


def _examples(row: Row) -> str:
    """What the validation's examples are called; all of a generator's are one text."""
    return {GENERATOR: "text", TRANSLATOR: "pairs"}.get(row.experiment["kind"], "texts")


def _over(row: Row) -> tuple[str, str, str]:
    """What an interval is over, of how many seeds and examples, and how many would show it."""
    found, (mine, theirs), examples = row.difference, row.difference.seeds, _examples(row)
    seeds = f"{mine} seeds" if found.method == "paired" else f"{mine} and {theirs} seeds"
    small = np.format_float_positional(abs(found.mean), 2, fractional=False, trim="-")
    if not found.examples:
        wanted = "more than 1,000" if found.needed is None else f"about {found.needed:,}"
        return "over seeds, on these texts", seeds, f"{wanted} would show {small}"
    places = decimals([found.half_width])
    of_seeds, of_examples = (f"{part:.{places}f}" for part in found.parts)
    numbers, unit = f"{seeds}, {found.examples:,} {examples}", examples
    if examples == "text":
        numbers = f"{seeds}, {found.examples:,} blocks of {row.block:,.0f} windows"
        unit = "windows"
    if found.needed is not None:
        wanted = f"about {found.needed:,} seeds would show {small}"
    elif found.examples_needed is not None:
        wanted = f"about {found.examples_needed * row.block:,.0f} {unit} would show {small}"
    else:
        wanted = f"neither more seeds nor more {examples} alone would show {small}"
    return f"seeds {of_seeds}, {examples} {of_examples}", numbers, wanted


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
