"""What two runs have found of each example of the same validation, as tables of seeds x blocks.

A text or a pair is a block of its own: examples are taken as independent of each other. Windows of
one text are not, as a scene goes on in the next: neighbours are one block, as in batch means.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tlite.training.examples import Examples

FEW = 10  # windows, of which each is a block


class Blocks(NamedTuple):
    """Two tables, and what a column of them is."""

    run: Float[np.ndarray, "S N"]
    reference: Float[np.ndarray, "R N"]
    size: float
    """Examples of a block, about."""


def blocks(run: Examples, reference: Examples, measure: str, *, of_a_text: bool) -> Blocks | None:
    """The tables of a measure; None where it, or the same examples, are not in both.

    Args:
        of_a_text: N windows of one text make sqrt(N) blocks (Flegal and Jones 2010, "Batch means
            and spectral variance estimators in Markov chain Monte Carlo"). Those of runs with
            different contexts or tokens are divided at the same places of the text.
    """
    both = [_sums_and_counts(one, measure) for one in (run, reference)]
    (mine, here), (theirs, there) = both
    windows = min(len(here), len(there))
    if mine is None or theirs is None or windows < 2:
        return None
    if not of_a_text:
        same = np.array_equal(here, there)
        return Blocks(*(ratio_by_example(*one) for one in both), 1.0) if same else None
    if not np.isclose(here.sum(), there.sum(), rtol=0.01):  # but for what comes before the first
        return None
    number = _number_of_blocks(windows)
    return Blocks(*(_in_blocks(*one, number) for one in both), len(here) / number)


def of_a_text(one: Examples, measure: str) -> Float[np.ndarray, "S N"]:
    """As `blocks`, the table of one run whose examples are windows of a text."""
    sums, count = _sums_and_counts(one, measure)
    return _in_blocks(sums, count, _number_of_blocks(len(count)))


def _number_of_blocks(windows: int) -> int:
    return max(math.isqrt(windows), min(windows, FEW))


def _sums_and_counts(one: Examples, measure: str) -> tuple[np.ndarray | None, np.ndarray]:
    """What the measure is the ratio of; bits per byte are nats / log 2 over bytes."""
    if measure == "bits_per_byte" and "bytes" in one.sums:
        return one.sums["loss"] / math.log(2), one.sums["bytes"][0]
    return one.sums.get(measure), one.count


def _in_blocks(
    sums: Float[np.ndarray, "S W"], count: Float[np.ndarray, "W"], number: int
) -> Float[np.ndarray, "S N"]:
    """By blocks of as many targets; a window is in the block of its middle."""
    middle = (count.cumsum() - count / 2) / count.sum()
    block = (number * middle).astype(int)
    of_seeds = [np.bincount(block, row, number) for row in sums]
    return ratio_by_example(np.stack(of_seeds), np.bincount(block, count, number))


def ratio_by_example(
    sums: Float[np.ndarray, "S N"], count: Float[np.ndarray, "N"]
) -> Float[np.ndarray, "S N"]:
    """What each example has to do with R_s = sum_n L_sn / sum_n c_n, the mean of which it is.

    d_sn = R_s + (L_sn - R_s c_n) / c, with the mean c of counts c_n: the ratio of two means, made
    linear (Cochran 1977, "Sampling techniques", chapter 6).
    """
    sums, count = np.asarray(sums, float), np.asarray(count, float)
    ratio = sums.sum(-1, keepdims=True) / count.sum()
    return ratio + (sums - ratio * count) / count.mean()
