"""Effective speedup: the reference's budget over the one at which a run reaches its final loss."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from tlite.comparison.blocks import have_same_examples, score_tables, sums_and_counts
from tlite.comparison.flops import GENERATOR, base_kind
from tlite.comparison.statistics import variance
from tlite.comparison.summaries import Metric, RunSummary, shares_initial_values
from tlite.errors import UserError
from tlite.training.metrics import read_example_scores

Match = Literal["steps", "flops", "seconds"]

GRID = 401
"""Budgets, evenly spaced in log steps, at which the interval is evaluated."""
MAX_SCORES = 2**18
"""Scores (of budgets, seeds and examples) that are interpolated at once."""
BUDGET_FIELDS = "steps", "evaluate_every", "save_every_minutes", "max_to_keep"
"""Training fields in which runs of one variant may differ: the budget, validation and saving."""


class Speedup(NamedTuple):
    """How many times as much of the reference's budget as of the run's own gives the same loss.

    Nothing is extrapolated: 0 stands for a budget above the largest one that was run, and infinity
    for one below the smallest.
    """

    value: float
    """Reference budget over run budget at equal loss; 0: the run does not reach the loss."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""
    smallest: float
    """Speedup if the run needed all of its largest budget."""
    largest: float
    """Speedup if the run's smallest budget were enough."""

    def __str__(self) -> str:
        texts = [self._text(number) for number in (self.value, self.low, self.high)]
        if self.high == 0:
            return f"{texts[0]}: the loss is not reached in the steps that were run"
        return "{}, 95 % CI [{}, {}]".format(*texts)

    def _text(self, number: float) -> str:
        if number == 0:
            return f"below {self.smallest:.2f}"
        return f"above {self.largest:.2f}" if number == np.inf else f"{number:.2f}"


def speedup(
    run: Mapping[int, Float[np.ndarray, "S N"]],
    reference: Float[np.ndarray, "R N"],
    reference_steps: int,
    *,
    relative_cost: float = 1.0,
    paired: bool = True,
) -> Speedup | None:
    """Return the effective speedup of a run over a reference, with a 95 % interval.

    With the run's mean loss L(b) after b steps and the reference's final loss L0 after b0 steps,

        speedup = b0 / (c b),   L(b) = L0,

    c the cost of a step of the run relative to one of the reference. L(b) is interpolated between
    the budgets in log b (`interpolation_weights`), so that D(b) = L(b) - L0 is a linear combination
    of the scores with the interval of `variance`. The speedup's interval is of all b whose interval
    of D(b) contains 0 (Fieller 1954).

    Args:
        run: losses by seed and example for each budget in steps, each with its own decay.
        reference: final losses of the reference on the same examples.
        paired: True if row s of both has the same seed and the same initial values.

    Returns:
        None with fewer than two budgets or seeds.
    """
    steps = sorted(run)
    if len(steps) < 2 or min(len(reference), *(len(scores) for scores in run.values())) < 2:
        return None
    grid = np.geomspace(steps[0], steps[-1], GRID)
    weights = interpolation_weights(np.log(steps), np.log(grid))
    scores = np.stack([run[s] for s in steps])
    differences, half_widths = differences_by_budget(weights, scores, reference, paired)
    factor = reference_steps / relative_cost
    budgets = [first_zero(grid, differences + sign * half_widths) for sign in (0, 1, -1)]
    speedups = [factor / budget if budget else math.inf for budget in budgets]
    return Speedup(*speedups, factor / steps[-1], factor / steps[0])


def differences_by_budget(
    weights: Float[np.ndarray, "G K"],
    scores: Float[np.ndarray, "K S N"],
    reference: Float[np.ndarray, "R N"],
    paired: bool,
) -> tuple[Float[np.ndarray, "G"], Float[np.ndarray, "G"]]:
    """Return the difference of interpolated scores from the reference, and half of its interval."""
    differences, half_widths = [], []
    num_chunks = min(len(weights), len(weights) * scores[0].size // MAX_SCORES + 1)
    for chunk in np.array_split(weights, num_chunks):
        losses = np.tensordot(chunk, scores, 1)
        others = np.broadcast_to(reference, (len(chunk), *reference.shape))
        groups = (losses - others,) if paired else (losses, -others)
        differences.append(losses.mean((1, 2)) - reference.mean())
        half_widths.append(variance(*groups).half_width)
    return np.concatenate(differences), np.concatenate(half_widths)


def first_zero(grid: Float[np.ndarray, "G"], excess: Float[np.ndarray, "G"]) -> float:
    """Return the budget at which the excess over a loss first falls to 0.

    Infinity if it is above 0 everywhere; 0 if it is not above 0 at the first budget.
    """
    below = np.flatnonzero(excess <= 0)
    if not len(below) or not below[0]:
        return 0.0 if len(below) else math.inf
    i = below[0]
    share = excess[i - 1] / (excess[i - 1] - excess[i])
    return float(grid[i - 1] * (grid[i] / grid[i - 1]) ** share)


def interpolation_weights(
    nodes: Float[np.ndarray, "K"], points: Float[np.ndarray, "G"]
) -> Float[np.ndarray, "G K"]:
    """Return weights of values at the nodes that interpolate at points between them.

    The mean of the parabolas through the three nodes to the left and to the right of a point
    (one of them in the first and last interval; the line through two nodes if there are no more).
    """
    order = min(len(nodes), 3)
    weights = np.zeros((len(points), len(nodes)))
    intervals = np.searchsorted(nodes[1:-1], points, side="right")
    for start in range(len(nodes) - order + 1):
        subset = slice(start, start + order)
        inside = (intervals >= start) & (intervals <= start + order - 2)
        # Exact for the powers of x up to the parabola's or line's degree.
        at_nodes, at_points = (
            np.vander(x - nodes[start], order, increasing=True).T
            for x in (nodes[subset], points[inside])
        )
        weights[inside, subset] += np.linalg.solve(at_nodes, at_points).T
    return weights / weights.sum(1, keepdims=True)


class Entry(NamedTuple):
    """Runs that differ in the number of steps only, and their speedup over the reference."""

    label: str
    """Label of the run with the largest budget."""
    budgets: dict[int, float]
    """Mean final loss by number of steps that were made; patience may end a run early."""
    speedup: Speedup | None
    """None for the reference, and for runs with a single budget or seed."""


def speedups(
    runs: Sequence[RunSummary], reference: RunSummary, metric: Metric, match: Match
) -> list[Entry]:
    """Return the speedups over the reference's largest budget; its own entry is the first one.

    Args:
        match: unit of the budgets; seconds are those of training on the machine of each run.

    Raises:
        UserError: the metric is not a loss, the scores of examples are missing or of different
            examples, or the costs of a run are not known.
    """
    if not metric.lower:
        raise UserError(f"--match compares losses, not {metric.name}")
    if not reference.finished or reference.failed:
        raise UserError(f"--match needs the reference to be finished: {reference.label} is not")
    groups = group_by_budget([run for run in runs if run.finished and not run.failed])
    base = groups[without_budget(reference)]
    base_run = base[max(base)]
    if all(len(group) == 1 for group in groups.values()):
        raise UserError(
            "--match needs runs with several numbers of steps: --vary training.steps 500 1000 2000"
        )
    others = [run for group in groups.values() for run in group.values() if run is not base_run]
    scores = scores_by_block([base_run, *others], metric)
    entries = []
    for group in sorted(groups.values(), key=lambda group: group is not base):
        run, result = group[max(group)], None
        by_budget = {steps: scores[id(each)] for steps, each in group.items()}
        if group is not base:
            result = speedup(
                by_budget,
                scores[id(base_run)],
                base_run.step,
                relative_cost=cost_of_step(run, match) / cost_of_step(base_run, match),
                paired=is_paired(run, base_run),
            )
        losses = {steps: float(cells.mean()) for steps, cells in by_budget.items()}
        entries.append(Entry(run.label, losses, result))
    return entries


def without_budget(run: RunSummary) -> str:
    """Return a run's experiment as JSON, without its name and what a budget may change."""
    training = {n: v for n, v in run.experiment["training"].items() if n not in BUDGET_FIELDS}
    rest = {n: v for n, v in run.experiment.items() if n != "name"} | {"training": training}
    return json.dumps(rest, sort_keys=True)


def group_by_budget(runs: Sequence[RunSummary]) -> dict[str, dict[int, RunSummary]]:
    """Return groups of runs whose experiments are equal `without_budget`, each by last step.

    Of two budgets that patience has ended at the same step the smaller one is used.

    Raises:
        UserError: two runs have the same experiment and number of steps.
    """
    groups: dict[str, dict[int, RunSummary]] = {}
    for run in runs:
        group = groups.setdefault(without_budget(run), {})
        budget, other = run.experiment["training"]["steps"], group.get(run.step)
        other_budget = other.experiment["training"]["steps"] if other else math.inf
        if budget == other_budget:
            raise UserError(
                f"{other.folder} and {run.folder} have the same experiment, seeds and steps, "
                f"{budget:,}: name one of them"
            )
        if budget < other_budget:
            group[run.step] = run
    return {key: dict(sorted(group.items())) for key, group in groups.items()}


def scores_by_block(
    runs: Sequence[RunSummary], metric: Metric
) -> dict[int, Float[np.ndarray, "S N"]]:
    """Return the final scores of runs by seed and example, or block of windows, by id of the run.

    Raises:
        UserError: a run has no scores of its last validation, or of other examples.
    """
    pairs = []
    for run in runs:
        scores = read_example_scores(run.folder)
        if scores is None or scores.step != run.last_validation:
            raise UserError(f"{run.label} has no scores of the examples of its last validation")
        pairs.append(sums_and_counts(scores, metric.name))
        if pairs[-1][0] is None:
            raise UserError(f"{run.label} has no {metric.name} of each example")
    contiguous = base_kind(runs[0].experiment) == GENERATOR
    if not have_same_examples(pairs, contiguous=contiguous):
        raise UserError("the runs were validated on different examples")
    tables = score_tables(pairs, contiguous=contiguous)
    return {id(run): metric.scale * table for run, table in zip(runs, tables, strict=True)}


def fixed_decay_notes(entries: Sequence[Entry], runs: Sequence[RunSummary]) -> list[str]:
    """Return a note on runs whose schedule is a function, which does not know the budget."""
    schedules = {run.label: run.experiment["training"].get("schedule") for run in runs}
    several = [entry.label for entry in entries if len(entry.budgets) > 1]
    labels = [label for label in several if isinstance(schedules[label], dict)]
    if not labels:
        return []
    return [
        f"the schedule of {', '.join(labels)} is a function of the step: if it decays, the shorter "
        "budgets are cut before its end, and the speedup is too low"
    ]


def is_paired(run: RunSummary, reference: RunSummary) -> bool:
    """True if both have the same seeds and the same initial values."""
    same_seeds = run.training.seed_range == reference.training.seed_range
    return same_seeds and shares_initial_values(run, reference)


def cost_of_step(run: RunSummary, match: Match) -> float:
    """Return the cost of a step of one model: 1, its FLOPs, or its seconds.

    Raises:
        UserError: it is not known.
    """
    if match == "steps":
        return 1.0
    cost = run.flops_per_step
    if match == "seconds":
        cost = run.rates and 60 * run.minutes[-1] / max(run.rates) / run.training.seeds
    if not cost:
        raise UserError(f"the {match} of {run.label} are not known: --match steps")
    return float(cost)
