"""Successive halving of the values of a hyperparameter, on paired validation losses."""

from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np
from jaxtyping import Float

from tlite.comparison.statistics import quantile, variance

Value = TypeVar("Value", bound=Hashable)


def rungs(steps: int, num_values: int, reduction: int = 2) -> list[int]:
    """Return the steps after which values are dropped: ..., steps / 4, steps / 2.

    Successive halving (Karnin, Koren and Somekh 2013; Jamieson and Talwalkar 2016): each rung
    divides the number of values by `reduction` and multiplies the steps by it.
    """
    count = max(int(np.log(num_values) / np.log(reduction) + 1e-9), 0)
    return [steps // reduction**i for i in range(count - 1, 0, -1) if steps // reduction**i]


def survivors(
    scores: Mapping[Value, Float[np.ndarray, "S N"] | None], num_kept: int
) -> list[Value]:
    """Return the values to train further, the best first.

    These are the `num_kept` best, and each other one unless it is worse than the best by a 95 %
    interval over seeds and examples: a value that only looks worse is not dropped.

    Args:
        scores: losses by seed and example of each value, on the same seeds and examples; None or
            a mean that is not finite: it has diverged, and is dropped.
    """
    means = {value: np.mean(by_cell) for value, by_cell in scores.items() if by_cell is not None}
    ranked = sorted((v for v in means if np.isfinite(means[v])), key=means.__getitem__)
    if not ranked:
        return []
    best = scores[ranked[0]]
    return [
        value
        for rank, value in enumerate(ranked)
        if rank < num_kept or not is_worse(scores[value] - best)
    ]


def is_worse(differences: Float[np.ndarray, "S N"]) -> bool:
    """True if the interval of the mean difference over seeds and examples is above 0.

    With a single seed the interval is over the examples alone.
    """
    spread = variance(differences)
    half_width = spread.half_width
    if len(differences) == 1:
        half_width = quantile(spread.examples_dof) * np.sqrt(spread.examples)
    return bool(differences.mean() > half_width)
