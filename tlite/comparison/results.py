"""What a comparison finds: a row for each entry, and what can be said of them in sentences."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tlite.comparison.comparable import Measure, common_measure, warnings
from tlite.comparison.configs import differing_fields
from tlite.comparison.cost import Cost, cost
from tlite.comparison.courses import Course, read_log
from tlite.comparison.entries import Found
from tlite.comparison.examples import Blocks, blocks
from tlite.comparison.flops import GENERATOR, TRANSLATOR
from tlite.comparison.statistics import Difference, difference, holm, spread
from tlite.training.examples import Examples, read_examples


@dataclass(frozen=True)
class Row:
    """An entry and what was found of it; numbers of the measure as they are told (`scale`)."""

    course: Course
    cost: Cost
    values: dict[int, float]
    """By seed at the best step."""
    difference: Difference | None
    """From the first entry, which has none itself."""
    blocks: Blocks | None = None
    """What both have found of each example, where it is known."""

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
    rows = _rows(courses, measure)
    notes = [*found.missing, *(note for row in rows for note in _state(row)), *warnings(entries)]
    if (
        number := sum(row.difference is not None and row.difference.p is not None for row in rows)
    ) > 1:
        notes.append(
            f"p is Holm's, of {number} differences: where one is below 0.05, at most one study in "
            "20 takes any for a difference that is none"
        )
    return Results(rows, measure, differing_fields(entries), notes)


def _rows(courses: Sequence[Course], measure: Measure) -> list[Row]:
    """With Holm's correction of several differences."""
    values = [_scaled(course, measure) for course in courses]
    examples = [_examples(course) for course in courses]
    rows = []
    for course, of_one, each in zip(courses, values, examples, strict=True):
        found = both = None
        if rows:
            if each and examples[0]:
                of_a_text = course.entry.experiment["kind"] == GENERATOR
                both = blocks(each, examples[0], measure.name, of_a_text=of_a_text)
            tables = tuple(measure.scale * table for table in both[:2]) if both else None
            found = difference(of_one, values[0], tables)
        rows.append(Row(course, cost(course.entry), of_one, found, both))
    tested = [i for i, row in enumerate(rows) if row.difference and row.difference.p is not None]
    corrected = holm([rows[i].difference.p for i in tested])
    for i, p in zip(tested, corrected, strict=True):
        found = dataclasses.replace(rows[i].difference, corrected=p)
        rows[i] = dataclasses.replace(rows[i], difference=found)
    return rows


def _examples(course: Course) -> Examples | None:
    """What was found of each example at the best step of all of an entry's seeds."""
    found = read_examples(course.entry.folder)
    if found is None or found.step != course.best_step:
        return None
    seeds = course.entry.training.seeds
    return found if all(len(sums) == seeds for sums in found.sums.values()) else None


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
    if found.same:
        return f"{label} and {other}: the same numbers, {counted(found.seeds[0], 'seed')}"
    half = found.half_width
    size, half_told = with_error(abs(found.mean), half)
    word = "better" if measure.better(found.mean) else "worse"
    if half is None:
        return f"{label} is {size} {measure.unit} {word} than {other} {_of_one_seed(row)}"
    if found.p is None and found.mean:
        each = counted(found.seeds[0], "seed")
        return (
            f"{label} is {size} {measure.unit} {word} than {other} with each of {each}: no interval"
        )
    interval = f"{size} ± {half_told} ({_parts(row)}) {measure.unit}"
    if found.shown:
        return f"{label} is {interval} {word} than {other}, {_numbers(row)}{_welch(found)}"
    nothing = f"{label} and {other}: no difference that {_numbers(row)} can show"
    if not found.mean:
        return f"{nothing} ({interval}){_welch(found)}"
    holm = f", p {found.corrected:.2g} by Holm" if found.p < 0.05 else ""
    return f"{nothing} ({interval} {word}{holm}); {_needed(row)}{_welch(found)}"


def _of_one_seed(row: Row) -> str:
    which = "the one seed that both have" if row.difference.method == "paired" else "other seeds"
    _, examples = row.difference.parts
    told = ""
    if examples is not None:
        told = f" (on new {example_name(row)} ± {with_error(0.0, examples)[1]}, with these seeds)"
    return f"with {which}: two seeds of each are needed for an interval{told}"


def example_name(row: Row) -> str:
    """What the validation's examples are called."""
    kind = row.course.entry.experiment["kind"]
    return {GENERATOR: "text", TRANSLATOR: "pairs"}.get(kind, "texts")


def _parts(row: Row) -> str:
    """What an interval is over."""
    if not row.difference.examples:
        return "over seeds, on these texts"
    seeds, examples = (with_error(0.0, part)[1] for part in row.difference.parts)
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


def _welch(found: Difference) -> str:
    return "" if found.method == "paired" else "; not of the same seeds: Welch's interval"


def _needed(row: Row) -> str:
    """How many seeds, or examples, would show as large a difference."""
    found = row.difference
    small = np.format_float_positional(abs(found.mean), 2, fractional=False, trim="-")
    if not found.examples:
        wanted = "more than 1,000" if found.needed is None else f"about {found.needed:,}"
        return f"{wanted} would show {small}"
    if found.needed is not None:
        return f"about {found.needed:,} seeds would show {small}"
    if found.examples_needed is None:
        return f"neither more seeds nor more {example_name(row)} alone would show {small}"
    name = "windows" if example_name(row) == "text" else example_name(row)
    return f"about {found.examples_needed * row.blocks.size:,.0f} {name} would show {small}"


def counted(number: int, what: str) -> str:
    """ "1 seed", "5 seeds"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


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
