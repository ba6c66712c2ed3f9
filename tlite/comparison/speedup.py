"""Effective speedup: the share of the reference's budget at which a run reaches its final loss."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tlite.comparison.statistics import variance

GRID = 401
"""Budgets, evenly spaced in log steps, at which the interval is evaluated."""


class Speedup(NamedTuple):
    """How many times as much of the reference's budget as of the run's own gives the same loss.

    Nothing is extrapolated: None stands for a budget outside of those that were run.
    """

    value: float | None
    """None: the run does not reach the loss with its largest budget, or is below it with its
    smallest."""
    low: float | None
    """Lower end of the 95 % interval; None: the run may need more than its largest budget."""
    high: float | None
    """Upper end; None: the run may need less than its smallest budget."""
    smallest: float
    """Speedup if the run needed all of its largest budget."""
    largest: float
    """Speedup if the run's smallest budget were enough."""

    def __str__(self) -> str:
        if self.value is None and self.low is None and self.high is not None:
            return f"below {self.smallest:.2f}: the loss is not reached in the steps that were run"
        if self.value is None and self.low is not None and self.high is None:
            return f"above {self.largest:.2f}: the smallest budget is enough"
        low = f"below {self.smallest:.2f}" if self.low is None else f"{self.low:.2f}"
        high = f"above {self.largest:.2f}" if self.high is None else f"{self.high:.2f}"
        value = "outside of the budgets" if self.value is None else f"{self.value:.2f}"
        return f"{value}, 95 % CI [{low}, {high}]"


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
    of the scores and has the interval of `variance`, over new seeds and new examples. The interval
    of the speedup is that of all b whose interval of D(b) contains 0 (Fieller 1954, "Some problems
    in interval estimation"): it needs no bootstrap, which is too narrow with three seeds.

    Args:
        run: losses by seed and example for each budget in steps. Each budget has its own decay of
            the learning rate (of one trunk with the schedule "wsd", or of separate runs).
        reference: final losses of the reference on the same examples.
        paired: True if row s of both has the same seed and the same initial values.

    Returns:
        None with fewer than two budgets or seeds.
    """
    steps = np.array(sorted(run), float)
    if len(steps) < 2 or min(len(reference), *(len(scores) for scores in run.values())) < 2:
        return None
    scores = np.stack([run[int(s)] for s in steps])
    grid = np.geomspace(steps[0], steps[-1], GRID)
    weights = interpolation_weights(np.log(steps), np.log(grid))
    losses = np.tensordot(weights, scores, 1)
    differences = losses.mean((1, 2)) - reference.mean()
    groups = (losses - reference,) if paired else (losses, -np.broadcast_to(
        reference, (GRID, *reference.shape)
    ))  # fmt: skip
    half_widths = variance(*groups).half_width
    factor = reference_steps / relative_cost

    def steps_to_reach(excess: Float[np.ndarray, "G"]) -> float | None:
        """First budget at which the excess over the reference's loss is 0."""
        below = np.flatnonzero(excess <= 0)
        if not len(below) or not below[0]:
            return None
        i = below[0]
        share = excess[i - 1] / (excess[i - 1] - excess[i])
        return float(np.exp(np.log(grid[i - 1]) + share * np.log(grid[i] / grid[i - 1])))

    def as_speedup(budget: float | None) -> float | None:
        return None if budget is None else factor / budget

    return Speedup(
        as_speedup(steps_to_reach(differences)),
        as_speedup(steps_to_reach(differences + half_widths)),
        as_speedup(steps_to_reach(differences - half_widths)),
        factor / steps[-1],
        factor / steps[0],
    )


def interpolation_weights(
    nodes: Float[np.ndarray, "K"], points: Float[np.ndarray, "G"]
) -> Float[np.ndarray, "G K"]:
    """Return weights of values at the nodes that interpolate at points between them.

    The mean of the parabolas through the three nodes to the left and to the right of a point
    (one of them in the first and last interval; the line through two nodes if there are no more).
    """
    number = len(nodes)
    weights = np.zeros((len(points), number))
    intervals = np.clip(np.searchsorted(nodes, points, side="right") - 1, 0, number - 2)
    for row, (x, k) in enumerate(zip(points, intervals, strict=True)):
        starts = [i for i in (k - 1, k) if 0 <= i <= number - 3]
        subsets = [range(i, i + 3) for i in starts] or [range(2)]
        for subset in subsets:
            for i in subset:
                others = [j for j in subset if j != i]
                basis = np.prod([(x - nodes[j]) / (nodes[i] - nodes[j]) for j in others])
                weights[row, i] += basis / len(subsets)
    return weights
