"""What a comparison finds: a row for each entry, its difference from the first, and sentences."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tlite.comparison.comparable import common_measure, differing_fields, warnings
from tlite.comparison.flops import GENERATOR, TRANSLATOR
from tlite.comparison.rows import Measure, Row, read_rows
from tlite.comparison.statistics import CONFIDENCE, Blocks, Difference, blocks, difference, holm
from tlite.errors import UserError
from tlite.training.metrics import Examples, read_examples

EXAMPLES_OF = {GENERATOR: "text", TRANSLATOR: "pairs"}
"""What a validation's examples are called, unless texts; all of a generator's are one text."""


class Results(NamedTuple):
    rows: list[Row]
    differences: list[Difference | None]
    """Each row's from the reference's, which has none itself."""
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
    def intervals(self) -> list[tuple[Row, Difference]]:
        """The rows whose difference has an interval."""
        pairs = zip(self.rows, self.differences, strict=True)
        return [(row, by) for row, by in pairs if by and by.half_width is not None]


def find_results(folders: Sequence[Path]) -> Results:
    """Everything that is told of runs and of studies' variants.

    Raises:
        UserError: they can't be read, or not be compared.
    """
    rows, missing = read_rows(folders)
    if not rows:
        raise UserError(f"there is nothing to compare: {'; '.join(missing) or 'no variants'}")
    measure, reference = common_measure(rows), next((r for r in rows if not r.failed), rows[0])
    there = read_examples(reference.folder)
    found = [None if r is reference else _compared(r, reference, there, measure) for r in rows]
    tested = [index for index, by in enumerate(found) if by and by.p is not None]
    for index, p in zip(tested, holm([found[i].p for i in tested]), strict=True):
        found[index] = dataclasses.replace(found[index], corrected=p)
    notes = [*missing, *filter(None, (_state(row, measure) for row in rows)), *warnings(rows)]
    if (number := len(tested)) > 1:
        notes.append(
            f"p is Holm's, of {number} differences: where one is below 0.05, at most one study in "
            "20 takes any for a difference that is none"
        )
    pairs = [(row, by) for row, by in zip(rows, found, strict=True) if row is not reference]
    verdicts = [_verdict(*pair, reference, measure) for pair in pairs]
    return Results(rows, found, reference, measure, differing_fields(rows), verdicts, notes)


def _compared(
    row: Row, reference: Row, there: Examples | None, measure: Measure
) -> Difference | None:
    """The difference from the reference, by examples where both have kept them."""
    here, tables, scale = read_examples(row.folder), None, measure.scale
    if here and there and (here.step, there.step) == (row.best_step, reference.best_step):
        found = blocks(here, there, measure.name, of_a_text=row.experiment["kind"] == GENERATOR)
        tables = found and Blocks(scale * found.run, scale * found.reference, found.size)
    return difference(row.values(measure), reference.values(measure), tables)


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


def _verdict(row: Row, by: Difference | None, reference: Row, measure: Measure) -> str:
    """One plain sentence on a row and the reference."""
    label, other = row.label, reference.label
    if reference.failed:
        return f"{label} and {other} have both failed"
    if row.failed:  # no value is missing: it is the worse one
        of = f", {len(row.diverged[1])} of its {row.training.seeds} seeds" if row.diverged else ""
        return f"{label} is worse than {other}: it has failed{of}"
    if by is None:
        lacking = label if reference.values(measure) else other
        return f"{label} and {other} can't be compared yet: {lacking} has no value"
    seeds = "1 seed" if by.seeds[0] == 1 else f"{by.seeds[0]} seeds"
    if by.same:
        return f"{label} and {other}: the same numbers, {seeds}"
    word = "better" if measure.better(by.mean) else "worse"
    examples, places = EXAMPLES_OF.get(row.experiment["kind"], "texts"), decimals([by.half_width])
    size, half = f"{abs(by.mean):.{places}f}", by.half_width
    told = f"{label} is {size} {measure.unit} {word} than {other}"
    if half is None:
        return f"{told} {_of_one_seed(by, examples)}"
    if not half and by.mean:
        return f"{told} with each of {seeds}: no interval"
    over, numbers, needed = _over(by, examples, places)
    interval = f"{size} ± {half:.{places}f} ({over}) {measure.unit}"
    welch = "" if by.method == "paired" else "; not of the same seeds: Welch's interval"
    if by.shown:
        return f"{label} is {interval} {word} than {other}, {numbers}{welch}"
    if by.mean:
        p = f", p {by.corrected:.2g} by Holm" if by.p < 1 - CONFIDENCE else ""
        interval, welch = f"{interval} {word}{p}", f"; {needed}{welch}"
    return f"{label} and {other}: no difference that {numbers} can show ({interval}){welch}"


def _of_one_seed(by: Difference, examples: str) -> str:
    which = "the one seed that both have" if by.method == "paired" else "other seeds"
    told, part = "", by.parts[1]
    if part is not None:
        told = f" (on new {examples} ± {part:.{decimals([part])}f}, with these seeds)"
    return f"with {which}: two seeds of each are needed for an interval{told}"


def _over(by: Difference, examples: str, places: int) -> tuple[str, str, str]:
    """What an interval is over, of how many seeds and examples, and how many would show it."""
    seeds = f"{by.seeds[0]} seeds" if by.method == "paired" else "{} and {} seeds".format(*by.seeds)
    small = np.format_float_positional(abs(by.mean), 2, fractional=False, trim="-")
    if not by.examples:
        needed = "more than 1,000" if by.needed is None else f"about {by.needed:,}"
        return "over seeds, on these texts", seeds, f"{needed} would show {small}"
    of_seeds, of_examples = (f"{part:.{places}f}" for part in by.parts)
    numbers, unit = f"{seeds}, {by.examples:,} {examples}", examples
    if examples == "text":
        numbers, unit = f"{seeds}, {by.examples:,} blocks of {by.block:,.0f} windows", "windows"
    if by.needed is not None:
        needed = f"about {by.needed:,} seeds"
    elif by.examples_needed is not None:
        needed = f"about {by.examples_needed * by.block:,.0f} {unit}"
    else:
        needed = f"neither more seeds nor more {examples} alone"
    over = f"seeds {of_seeds}, {examples} {of_examples}"
    return over, numbers, f"{needed} would show {small}"


def decimals(errors: Sequence[float | None]) -> int:
    """Decimals that show two digits of the middle one of errors; four where none is known."""
    known = sorted(error for error in errors if error)
    if not known:
        return 4
    middle = known[(len(known) - 1) // 2]
    return min(max(1 - math.floor(math.log10(middle)), 0), 6)
