"""Results of a comparison: summaries of runs, differences from the first one, and conclusions."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tlite.comparison.blocks import PairedScores, pair_scores, population_phrase
from tlite.comparison.comparable import common_metric, differing_fields, warnings
from tlite.comparison.flops import GENERATOR, TRANSLATOR, base_kind
from tlite.comparison.speedup import Entry, Match, fixed_decay_notes, speedups
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

EXAMPLE_NOUNS = {GENERATOR: "text", TRANSLATOR: "pairs"}
"""Noun for the validation examples of each kind of run; "texts" for the other kinds."""
RECOMMENDED_SEEDS, RECOMMENDED_BLOCKS = 5, 10
"""Intervals of fewer get a note."""


class Results(NamedTuple):
    """Runs, their differences from a reference run, and sentences about them."""

    runs: list[RunSummary]
    differences: list[Difference | None]
    """Difference of each run from the reference; None for the reference itself."""
    reference: RunSummary
    """The first run that has not failed."""
    metric: Metric
    fields: dict[str, list[str]]
    """Fields of the configs that differ, by dotted name: the value of each run as text."""
    conclusions: list[str]
    """A sentence for each run but the reference."""
    notes: list[str]
    """Failed and unfinished runs, and limits of the comparison."""
    smallest_effect: float | None = None
    """The smallest difference of interest, in the metric's unit."""
    match: Match | None = None
    """Unit of the budgets in `speedups`: steps, FLOPs or seconds."""
    speedups: Sequence[Entry] = ()
    """Groups of runs that differ in the number of steps only, with their speedups."""

    @property
    def intervals(self) -> list[tuple[RunSummary, Difference]]:
        """Pairs (run, difference) of the runs whose difference has an interval."""
        pairs = zip(self.runs, self.differences, strict=True)
        return [(run, d) for run, d in pairs if d and d.half_width is not None]


def compare_runs(
    folders: Sequence[Path], smallest_effect: float | None = None, match: Match | None = None
) -> Results:
    """Compare runs, and the variants of studies, with the first one.

    Args:
        smallest_effect: difference of interest, in the metric's unit: each conclusion ends with
            the number of seeds that would show it.
        match: also compute effective speedups, of runs with several numbers of steps.

    Raises:
        UserError: a run can't be read, or the runs can't be compared.
    """
    runs, notes = read_summaries(folders)
    if not runs:
        raise UserError(f"there is nothing to compare: {'; '.join(notes) or 'no variants'}")
    metric, reference = common_metric(runs), next((r for r in runs if not r.failed), runs[0])
    scores = read_example_scores(reference.folder)
    differences = [
        None if run is reference else _difference(run, reference, scores, metric) for run in runs
    ]
    tested = [index for index, d in enumerate(differences) if d and d.p is not None]
    for index, p in zip(tested, holm([differences[i].p for i in tested]), strict=True):
        differences[index] = dataclasses.replace(differences[index], p_adjusted=p)
    pairs = [pair for pair in zip(runs, differences, strict=True) if pair[0] is not reference]
    notes += [*filter(None, (_progress_note(run, metric) for run in runs)), *warnings(runs)]
    notes += _interval_notes([(run, d) for run, d in pairs if d], reference)
    conclusions = [conclude(run, reference, d, metric, smallest_effect) for run, d in pairs]
    entries = speedups(runs, reference, metric, match) if match else ()
    notes += fixed_decay_notes(entries, runs)
    fields = differing_fields(runs)
    return Results(
        runs, differences, reference, metric, fields, conclusions, notes, smallest_effect, match,
        entries,
    )  # fmt: skip


def _difference(
    run: RunSummary,
    reference: RunSummary,
    reference_scores: ExampleScores | None,
    metric: Metric,
) -> Difference | None:
    """Return the difference from the reference; None if no step has a validation of both.

    Its interval is over examples too, if both runs have saved the scores of examples.
    """
    steps = common_steps(run, reference)
    if None in steps:
        return None
    scores, pairs, scale = read_example_scores(run.folder), None, metric.scale
    if scores and reference_scores and (scores.step, reference_scores.step) == steps:
        contiguous = base_kind(run.experiment) == GENERATOR
        if pairs := pair_scores(scores, reference_scores, metric.name, contiguous=contiguous):
            pairs = PairedScores(scale * pairs.run, scale * pairs.reference, pairs.block)
    values = [r.values(metric, s) for r, s in zip((run, reference), steps, strict=True)]
    return difference(*values, pairs, paired=shares_initial_values(run, reference))


def conclude(
    run: RunSummary,
    reference: RunSummary,
    difference: Difference | None,
    metric: Metric,
    smallest_effect: float | None = None,
) -> str:
    """Return a sentence on the difference of a run from the reference, and its interval."""
    pair = f"{run.label} vs {reference.label}:"
    if reference.failed:
        return f"{pair} both failed"
    if run.failed:
        seeds = f" ({len(run.diverged[1])} of {run.training.seeds} seeds)" if run.diverged else ""
        return f"{pair} worse, it failed{seeds}"
    if difference is None:
        missing = [r.label for r in (reference, run) if not r.values(metric)]
        reason = f"{missing[0]} has no value" if missing else "no validation at the same step"
        return f"{pair} not comparable yet, {reason}"
    sizes = _sample_sizes(run, difference)
    if difference.same:
        return f"{pair} identical scores ({sizes})"
    half_width, over_examples = difference.half_width, difference.half_widths_by_source[1]
    text = f"difference {difference.mean:+.{decimals([half_width])}f} {metric.unit}"
    if half_width is None:
        text += ", no CI over seeds: two seeds of each are needed"
        if over_examples:
            text += f"; with these seeds 95 % CI {_interval(difference.mean, over_examples)}"
    elif not half_width:
        text += " with every seed, no CI"
    else:
        verdict = "better" if metric.better(difference.mean) else "worse"
        text = f"{verdict if difference.significant else 'not significant'}, {text}"
        text += f", 95 % CI {_interval(difference.mean, half_width)}"
        if difference.p < 0.05 and not difference.significant:
            text += f", p {difference.p_adjusted:.2g} (Holm)"
        if smallest_effect:
            required = difference.required_seeds(smallest_effect)
            seeds = "more than 1,000 seeds" if required is None else f"{required:,} seeds each"
            sizes += f"; to show {smallest_effect:g} {metric.unit}: {seeds}"
    return f"{pair} {text} ({sizes})"


def _interval(mean: float, half_width: float) -> str:
    places = decimals([half_width])
    return f"[{mean - half_width:.{places}f}, {mean + half_width:.{places}f}]"


def _sample_sizes(run: RunSummary, difference: Difference) -> str:
    """Return the numbers of seeds, and of examples or blocks."""
    run_seeds, reference_seeds = difference.seeds
    seeds = f"{run_seeds} and {reference_seeds} seeds"
    if difference.method == "paired":
        seeds = f"{run_seeds} paired seeds" if run_seeds > 1 else "1 seed"
    examples = "blocks" if base_kind(run.experiment) == GENERATOR else _example_noun(run)
    return f"{seeds}, {difference.examples:,} {examples}" if difference.examples else seeds


def _interval_notes(
    pairs: Sequence[tuple[RunSummary, Difference]], reference: RunSummary
) -> list[str]:
    """Return notes on the step, population and correction of intervals, and on small samples."""
    if not pairs:
        return []
    steps = {step for run, _ in pairs for step in common_steps(run, reference)}
    shared = "the last validations that both runs have"
    where = f"step {max(steps):,}" if len(steps) == 1 else shared
    by_example, noun = [d for _, d in pairs if d.examples], _example_noun(reference)
    others = [run.label for run, d in pairs if not d.examples]
    population = population_phrase(noun) if by_example else f"the same {noun}"
    if by_example and others:
        population += f"; of {', '.join(others)} for new seeds and the same {noun}"
    notes = [
        f"compared at {where}, not at the best checkpoint, which the same validation has chosen",
        f"95 % CI: for new seeds and {population}",
    ]
    if (number := sum(d.p is not None for _, d in pairs)) > 1:
        notes.append(f"p-values are corrected for {number} differences (Holm)")
    if min(min(d.seeds) for _, d in pairs) < RECOMMENDED_SEEDS:
        notes.append(
            f"fewer than {RECOMMENDED_SEEDS} seeds: intervals are wide and assume "
            "normally distributed errors"
        )
    is_text = base_kind(reference.experiment) == GENERATOR
    if is_text and any(d.examples < RECOMMENDED_BLOCKS for d in by_example):
        notes.append(
            f"fewer than {RECOMMENDED_BLOCKS} blocks: the validation text is short for its "
            "correlations, and intervals may be too narrow"
        )
    return notes


def _example_noun(run: RunSummary) -> str:
    return EXAMPLE_NOUNS.get(base_kind(run.experiment), "texts")


def _progress_note(run: RunSummary, metric: Metric) -> str:
    """Return why a run failed, or at which step it is if it is not finished, else ""."""
    has_value = bool(run.values(metric))
    if run.failed:
        return f"{run.label} failed: {run.failed}"
    if not run.finished:
        state = f"{run.label} is at step {run.step:,} of {run.training.steps:,}"
        return state if has_value else f"{state}, and has no validation yet"
    name = metric.name.replace("_", " ")
    return "" if has_value else f"{run.label} has no {name} in its validations"


def decimals(errors: Sequence[float | None]) -> int:
    """Return how many decimals show two digits of the median error; 4 if no error is known."""
    ordered = sorted(error for error in errors if error)
    if not ordered:
        return 4
    median = ordered[(len(ordered) - 1) // 2]
    return min(max(1 - math.floor(math.log10(median)), 0), 6)
