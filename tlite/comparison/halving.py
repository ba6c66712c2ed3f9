"""Successive halving: drop values of hyperparameters that are worse on the same validation."""

from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np
from jaxtyping import Float

from tlite.comparison.blocks import score_tables, sums_and_counts
from tlite.comparison.statistics import variance
from tlite.training.metrics import ExampleScores

Value = TypeVar("Value", bound=Hashable)


def rungs(steps: int, num_values: int) -> list[int]:
    """Return the numbers of steps after which values are dropped: ..., steps / 4, steps / 2.

    In successive halving (Karnin, Koren and Somekh 2013; Jamieson and Talwalkar 2016) each rung
    halves the number of values and doubles the steps.
    """
    num_halvings = max(num_values, 1).bit_length() - 1
    numbers = [steps // 2**i for i in range(num_halvings - 1, 0, -1)]
    return [number for number in numbers if number > 0]


def survivors(
    scores: Mapping[Value, Float[np.ndarray, "S N"] | None], num_kept: int
) -> list[Value]:
    """Return the values to train further, the best first.

    These are the `num_kept` best, and every other value that is not significantly worse than the
    best (`is_worse`).

    Args:
        scores: losses of each value, on the same S seeds and N examples. A value whose training
            diverged (None, or a mean that is not finite) is dropped.
    """
    means = {value: np.mean(losses) for value, losses in scores.items() if losses is not None}
    ranked = sorted((v for v in means if np.isfinite(means[v])), key=means.__getitem__)
    if not ranked:
        return []
    best = scores[ranked[0]]
    return [
        value
        for rank, value in enumerate(ranked)
        if rank < num_kept or not is_worse(scores[value] - best)
    ]


def losses_by_example(
    scores: Mapping[Value, ExampleScores], *, contiguous: bool
) -> dict[Value, Float[np.ndarray, "S N"]]:
    """Return the losses of each value for `survivors`, without values that diverged.

    Args:
        contiguous: True if examples are the windows of one text. Blocks of windows then count as
            examples; their length follows from the differences to the best value (`num_blocks`).
    """
    finite = {value: s for value, s in scores.items() if np.isfinite(s.sums["loss"]).all()}
    pairs = {value: sums_and_counts(s, "loss") for value, s in finite.items()}
    # Mean losses per target: sums of windows grow with the context, which may differ.
    ranked = sorted(finite, key=lambda value: pairs[value][0].sum() / pairs[value][1].sum())
    pairs = [pairs[value] for value in ranked]
    return dict(zip(ranked, score_tables(pairs, contiguous=contiguous), strict=True))


def is_worse(differences: Float[np.ndarray, "S N"]) -> bool:
    """True if the 95 % interval of the mean difference over seeds and examples is above 0.

    With a single seed the interval is over the examples alone; a single seed with a single example
    has no interval: False.
    """
    if differences.size == 1:
        return False
    spread = variance(differences)
    half_width = spread.half_width if len(differences) > 1 else spread.half_widths.examples
    return bool(differences.mean() > half_width)
