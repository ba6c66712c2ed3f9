"""What a comparison finds: a row for each entry, and what can be said of them in sentences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tlite.comparison.comparable import Measure, common_measure, warnings
from tlite.comparison.configs import differing_fields
from tlite.comparison.cost import Cost, cost
from tlite.comparison.courses import Course, read_log
from tlite.comparison.entries import Found
from tlite.comparison.statistics import Difference, difference, spread


@dataclass(frozen=True)
class Row:
    """An entry and what was found of it; numbers of the measure as they are told (`scale`)."""

    course: Course
    cost: Cost
    values: dict[int, float]
    """By seed at the best step."""
    difference: Difference | None
    """From the first entry, which has none itself."""

    @property
    def label(self) -> str:
        return self.course.entry.label

    @property
    def mean(self) -> float | None:
        return float(np.mean([*self.values.values()])) if self.values else None

    @property
    def spread(self) -> float | None:
        return spread(np.array([*self.values.values()]))

    @property
    def flops(self) -> float | None:
        """Of one model, up to the last step."""
        of_step = self.cost.flops_per_step
        return None if of_step is None else of_step * self.course.step

    @property
    def minutes(self) -> float | None:
        """Of training, up to the last step."""
        found = self.course.minutes(self.cost.tokens_per_step)
        return float(found[-1]) if len(found) else None


@dataclass(frozen=True)
class Results:
    rows: list[Row]
    measure: Measure
    fields: dict[str, list[str]]
    """What differs between the configs: by field a text for each row."""
    notes: list[str]
    """What has failed, what is not finished, what to keep in mind."""

    @property
    def verdicts(self) -> list[str]:
        """A sentence for each row but the first."""
        return [_verdict(row, self.rows[0], self.measure) for row in self.rows[1:]]

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
    logs = [read_log(entry.folder / "metrics.jsonl", entry.training.seeds) for entry in entries]
    courses = [Course(*each, measure.name) for each in zip(entries, logs, strict=True)]
    values = [_scaled(course, measure) for course in courses]
    differences = [None, *(difference(of_one, values[0]) for of_one in values[1:])]
    costs = map(cost, entries)
    rows = [Row(*parts) for parts in zip(courses, costs, values, differences, strict=True)]
    notes = [*found.missing, *(note for row in rows for note in _state(row)), *warnings(entries)]
    results = Results(rows, measure, differing_fields(entries), notes)
    if (number := len(results.intervals)) > 1:
        results.notes.append(
            f"each interval is a 95 % one by itself: that all {number} hold is less sure"
        )
    return results


def _scaled(course: Course, measure: Measure) -> dict[int, float]:
    return {seed: measure.scale * value for seed, value in course.best.items()}


def _state(row: Row) -> list[str]:
    """Where an entry has failed, and how far it is where it has not ended."""
    course = row.course
    if (step := course.log.failed) is not None:
        return [f"{row.label} has failed: its training loss is not finite at step {step:,}"]
    if not course.finished:
        state = f"{row.label} is at step {course.step:,} of {course.entry.training.steps:,}"
        return [state if row.values else f"{state}, and has no validation yet"]
    if not row.values:
        return [f"{row.label} has no {course.measure.replace('_', ' ')} in its validations"]
    return []


def _verdict(row: Row, first: Row, measure: Measure) -> str:
    """One plain sentence on a row and the first."""
    label, other, found = row.label, first.label, row.difference
    if found is None:
        lacking = label if first.values else other
        return f"{label} and {other} can't be compared yet: {lacking} has no value"
    paired, (mine, theirs) = found.method == "paired", found.seeds
    seeds = "1 seed" if mine == 1 else f"{mine} seeds"
    if found.same:
        return f"{label} and {other}: the same numbers, {seeds}"
    size, half = with_error(abs(found.mean), found.half_width)
    unit = measure.unit
    word = "better" if measure.better(found.mean) else "worse"
    if found.half_width is None:
        which = "with the one seed that both have" if paired else "with other seeds"
        return (
            f"{label} is {size} {unit} {word} than {other} {which}: "
            "two seeds of each are needed for an interval"
        )
    if not paired:
        seeds = f"{mine} and {theirs} seeds, which are not the same: by Welch's interval"
    if found.shown:
        return f"{label} is {size} ± {half} {unit} {word} than {other}, {seeds}"
    if not found.deviation and found.mean:
        return f"{label} is {size} {unit} {word} than {other} with each of {seeds}: no interval"
    number = f"{mine} seeds" if paired else f"{mine} and {theirs} seeds"
    wanted = "more than 1,000" if found.needed is None else f"about {found.needed:,}"
    if not found.mean:
        return f"{label} and {other}: no difference that {number} can show (0 ± {half} {unit})"
    small = np.format_float_positional(abs(found.mean), 2, fractional=False, trim="-")
    welch = "" if paired else "; they are not the same: by Welch's interval"
    return (
        f"{label} and {other}: no difference that {number} can show "
        f"({size} ± {half} {unit} {word}); {wanted} would show {small}{welch}"
    )


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
