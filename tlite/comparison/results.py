"""What a comparison finds: a run for each entry, its difference from the first, and sentences."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tlite.comparison.blocks import PairedScores, new_examples, pair_scores
from tlite.comparison.comparable import common_metric, differing_fields, warnings
from tlite.comparison.flops import GENERATOR, TRANSLATOR
from tlite.comparison.speedup import Entry, Match, speedups
from tlite.comparison.statistics import Difference, difference, holm
from tlite.comparison.summaries import (
    Metric,
    RunSummary,
    common_steps,
    read_summaries,
    shares_initial_values,
)
from tlite.errors import UserError
from tlite.training.metrics import ExampleScores, read_example_scores

EXAMPLES_OF = {GENERATOR: "text", TRANSLATOR: "pairs"}
"""Name of a validation's examples, "texts" by default; those of a generator are one text."""
FEW_SEEDS, FEW_BLOCKS = 5, 10


class Results(NamedTuple):
    runs: list[RunSummary]
    differences: list[Difference | None]
    """Each run's from the reference's, which has none itself."""
    reference: RunSummary
    """What the others are compared with: the first that has not failed."""
    metric: Metric
    fields: dict[str, list[str]]
    """What differs between the configs: by field a text for each run."""
    conclusions: list[str]
    """A sentence for each run but the reference."""
    notes: list[str]
    """What has failed, what is not finished, what to keep in mind."""
    smallest_effect: float | None = None
    """The smallest difference of interest, in the metric's unit."""
    match: Match | None = None
    """Unit of the budgets of `speedups`."""
    speedups: Sequence[Entry] = ()
    """Runs by number of steps, with their speedups over the reference."""

    @property
    def intervals(self) -> list[tuple[RunSummary, Difference]]:
        """The runs whose difference has an interval."""
        pairs = zip(self.runs, self.differences, strict=True)
        return [(run, by) for run, by in pairs if by and by.half_width is not None]


def compare_runs(
    folders: Sequence[Path], smallest_effect: float | None = None, match: Match | None = None
) -> Results:
    """Compare runs, and the variants of studies, with the first one.

    Args:
        smallest_effect: difference of interest, in the metric's unit: each sentence ends with the
            number of seeds that show it.
        match: also compute effective speedups, of runs at several numbers of steps.

    Raises:
        UserError: they can't be read, or not be compared.
    """
    runs, missing = read_summaries(folders)
    if not runs:
        raise UserError(f"there is nothing to compare: {'; '.join(missing) or 'no variants'}")
    metric, reference = common_metric(runs), next((r for r in runs if not r.failed), runs[0])
    there = read_example_scores(reference.folder)
    found = [None if r is reference else _compared(r, reference, there, metric) for r in runs]
    tested = [index for index, by in enumerate(found) if by and by.p is not None]
    for index, p in zip(tested, holm([found[i].p for i in tested]), strict=True):
        found[index] = dataclasses.replace(found[index], p_adjusted=p)
    pairs = [(run, by) for run, by in zip(runs, found, strict=True) if run is not reference]
    notes = [*missing, *filter(None, (_state(run, metric) for run in runs)), *warnings(runs)]
    notes += _meanings(pairs, reference)
    conclusions = [_conclusion(*pair, reference, metric, smallest_effect) for pair in pairs]
    entries = speedups(runs, reference, metric, match) if match else ()
    results = Results(
        runs, found, reference, metric, differing_fields(runs), conclusions, notes, smallest_effect
    )
    return results._replace(match=match, speedups=entries)


def _compared(
    run: RunSummary, reference: RunSummary, there: ExampleScores | None, metric: Metric
) -> Difference | None:
    """The difference from the reference, by examples where both have saved their scores."""
    here, table, scale = read_example_scores(run.folder), None, metric.scale
    steps = common_steps(run, reference)
    if None in steps:
        return None
    if here and there and (here.step, there.step) == steps:
        contiguous = run.experiment["kind"] == GENERATOR
        found = pair_scores(here, there, metric.name, contiguous=contiguous)
        table = found and PairedScores(scale * found.run, scale * found.reference, found.block)
    values = [r.values(metric, s) for r, s in zip((run, reference), steps, strict=True)]
    return difference(*values, table, paired=shares_initial_values(run, reference))


def _meanings(
    pairs: Sequence[tuple[RunSummary, Difference | None]], reference: RunSummary
) -> list[str]:
    """What the numbers of the sentences mean, and which are to be read with care."""
    runs = [run for run, by in pairs if by]
    if not runs:
        return []
    steps = {step for run in runs for step in common_steps(run, reference)}
    where = f"step {max(steps):,}" if len(steps) == 1 else "the last validation of each run"
    notes = [
        f"compared at {where}, and not at the best checkpoint: the same validation has chosen it"
    ]
    by_example = [(run, by) for run, by in pairs if by and by.examples]
    if by_example:
        new = new_examples(_examples_of(reference))
        notes.append(
            f"± is the 95 % interval for new seeds and {new}; in brackets for new seeds alone, and "
            f"for {new} alone"
        )
    if (number := sum(by is not None and by.p is not None for _, by in pairs)) > 1:
        notes.append(
            f"p is Holm's, of {number} differences: where one is below 0.05, at most one study in "
            "20 takes any for a difference that is none"
        )
    if (least := min(min(by.seeds) for _, by in pairs if by)) < FEW_SEEDS:
        notes.append(
            f"{least} seeds are few: an interval is wide and depends on normal errors; "
            f"take {FEW_SEEDS} or more"
        )
    if any(by.block > 1 and by.examples < FEW_BLOCKS for _, by in by_example):
        notes.append(
            f"fewer than {FEW_BLOCKS} blocks: the validation text is short for its correlations, "
            "and intervals may be too narrow"
        )
    return notes


def _examples_of(run: RunSummary) -> str:
    return EXAMPLES_OF.get(run.experiment["kind"], "texts")


def _state(run: RunSummary, metric: Metric) -> str:
    """Where an entry has failed, and how far it is where it has not ended; else ""."""
    has_value = bool(run.values(metric))
    if run.failed:
        return f"{run.label} has failed: {run.failed}"
    if not run.finished:
        state = f"{run.label} is at step {run.step:,} of {run.training.steps:,}"
        return state if has_value else f"{state}, and has no validation yet"
    name = metric.name.replace("_", " ")
    return "" if has_value else f"{run.label} has no {name} in its validations"


def _conclusion(
    run: RunSummary,
    by: Difference | None,
    reference: RunSummary,
    metric: Metric,
    effect: float | None,
) -> str:
    """One plain sentence on a run and the reference."""
    label, other = run.label, reference.label
    if reference.failed:
        return f"{label} and {other} have both failed"
    if run.failed:  # no value is missing: it is the worse one
        of = f", {len(run.diverged[1])} of its {run.training.seeds} seeds" if run.diverged else ""
        return f"{label} is worse than {other}: it has failed{of}"
    if by is None:
        lacking = [r.label for r in (reference, run) if not r.values(metric)]
        why = f"{lacking[0]} has no value" if lacking else "no validation at the same step"
        return f"{label} and {other} can't be compared yet: {why}"
    seeds = "1 seed" if by.seeds[0] == 1 else f"{by.seeds[0]} seeds"
    if by.same:
        return f"{label} and {other}: the same numbers, {seeds}"
    word = "better" if metric.better(by.mean) else "worse"
    places, half = decimals([by.half_width]), by.half_width
    size = f"{abs(by.mean):.{places}f}"
    if half is None:
        return f"{label} is {size} {metric.unit} {word} than {other} {_one_seed(by, run)}"
    if not half and by.mean:
        difference = f"{size} {metric.unit} {word}"
        return f"{label} is {difference} than {other} with each of {seeds}: no interval"
    interval = f"{size} ± {half:.{places}f} ({_parts(by, run, places)}) {metric.unit} {word}"
    numbers = _numbers(by, run)
    if effect:
        needed = by.required_seeds(effect)
        many = "more than 1,000 seeds" if needed is None else f"{needed:,} seeds each"
        numbers += f"; to show {effect:g} {metric.unit}: {many}"
    if by.significant:
        return f"{label} is {interval} than {other}, {numbers}"
    p = f", p {by.p_adjusted:.2g} by Holm" if by.p and by.p < 0.05 else ""
    return f"{label} and {other}: no significant difference ({interval}{p}), {numbers}"


def _one_seed(by: Difference, run: RunSummary) -> str:
    """The ending of a sentence on a difference without an interval for new seeds."""
    which = "the one seed that both have" if by.method == "paired" else "other seeds"
    new, half = "", by.half_widths_by_source[1]
    if half is not None:
        examples = new_examples(_examples_of(run))
        new = f" (for {examples} ± {half:.{decimals([half])}f}, with these seeds)"
    return f"with {which}: two seeds of each are needed for an interval{new}"


def _parts(by: Difference, run: RunSummary, places: int) -> str:
    """Half-widths of the intervals for new seeds alone and for new examples alone."""
    if not by.examples:
        return "over seeds, on these texts"
    seeds, examples = (f"{half:.{places}f}" for half in by.half_widths_by_source)
    return f"seeds {seeds}, {_examples_of(run)} {examples}"


def _numbers(by: Difference, run: RunSummary) -> str:
    """Numbers of seeds and examples, and how seeds are paired."""
    apart = "{} and {} seeds, not paired".format(*by.seeds)
    numbers = f"{by.seeds[0]} paired seeds" if by.method == "paired" else apart
    if by.correlation is not None:
        numbers += f" (correlation {by.correlation:.2f})"
    examples = f"blocks of {by.block:,.0f} windows" if by.block > 1 else _examples_of(run)
    return f"{numbers}, {by.examples:,} {examples}" if by.examples else numbers


def decimals(errors: Sequence[float | None]) -> int:
    """Decimals that show two digits of the middle one of errors; four where none is known."""
    known = sorted(error for error in errors if error)
    if not known:
        return 4
    middle = known[(len(known) - 1) // 2]
    return min(max(1 - math.floor(math.log10(middle)), 0), 6)
