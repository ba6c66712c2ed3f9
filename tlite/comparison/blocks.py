"""Scores by example: of texts, of pairs, or of blocks of a text's windows.

Texts and pairs are independent examples. Windows of one text are not, since a scene continues in
the next window: neighbouring windows form a block, and the blocks are the examples (the method of
batch means).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tlite.training.metrics import ExampleScores


class PairedScores(NamedTuple):
    """Scores of two runs by seed and example, whose means are the runs' scores."""

    run: Float[np.ndarray, "S N"]
    reference: Float[np.ndarray, "R N"]
    block: float
    """Windows in a block, on average; 1 where examples are independent."""


def population_phrase(name: str) -> str:
    """Return a phrase for the population to which an interval over examples generalizes."""
    return "new stretches of text like this one" if name == "text" else f"new {name}"


def pair_scores(
    run: ExampleScores, reference: ExampleScores, metric: str, *, contiguous: bool
) -> PairedScores | None:
    """Return the scores of two runs by example; None if a metric is missing or examples differ.

    Args:
        contiguous: True if examples are the windows of one text, which are grouped into blocks
            (`num_blocks`) at the same positions of the text in both runs.
    """
    pair = [sums_and_counts(scores, metric) for scores in (run, reference)]
    windows = min(len(count) for _, count in pair)
    if windows < 2 or not have_same_examples(pair, contiguous=contiguous):
        return None
    tables = score_tables(pair, contiguous=contiguous)
    return PairedScores(*tables, len(pair[0][1]) / tables[0].shape[1])


def have_same_examples(pairs: Sequence[tuple], *, contiguous: bool) -> bool:
    """Return True if all runs have the metric, on the same examples.

    Contiguous windows are not compared here: `comparable.check_comparable` compares their text.
    """
    first = pairs[0][1]
    is_same = (contiguous or np.array_equal(count, first) for _, count in pairs)
    return all(is_same) and all(sums is not None for sums, _ in pairs)


def score_tables(pairs: Sequence[tuple], *, contiguous: bool) -> list[Float[np.ndarray, "S N"]]:
    """Return scores by example from `sums_and_counts` of runs.

    Windows of a text are grouped into blocks, whose number is the smallest `num_blocks` of the
    differences between each run and the first.
    """
    windows = min((len(count) for _, count in pairs), default=0)
    if not contiguous or windows < 2:
        return [ratio_by_example(*pair) for pair in pairs]
    first, *others = (in_blocks(*pair, windows).mean(0) for pair in pairs)
    number = min((num_blocks(scores - first) for scores in others), default=windows)
    return [in_blocks(*pair, number) for pair in pairs]


def scores_of_one_run(run: ExampleScores, metric: str) -> PairedScores | None:
    """Return the scores of a run by block of its text, paired with a reference that scores 0."""
    zero = run._replace(sums=run.sums | {metric: np.zeros_like(run.sums[metric])})
    return pair_scores(run, zero, metric, contiguous=True)


def num_blocks(scores: Float[np.ndarray, "W"]) -> int:
    """Return the number of blocks of W consecutive windows, from the scores' autocorrelation.

    A block is twice as long as is best for the variance (`block_length`): an interval needs longer
    blocks than the estimate of a variance (Lazarus, Lewis, Stock and Watson 2018, "HAR inference").
    There are at most max(sqrt(W), 10) blocks (Flegal and Jones 2010, "Batch means"), at least 2.
    """
    windows = len(scores)
    most = max(math.isqrt(windows), min(windows, 10))
    return max(min(most, int(windows / (2 * block_length(scores)))), 2)


def block_length(scores: Float[np.ndarray, "W"]) -> float:
    """Return the block length b with the least mean squared error of the variance of a mean.

    b = (2 G^2 / D)^(1/3) W^(1/3), D = 2 g^2, g = sum_k l(k / M) R(k), G = sum_k l(k / M) |k| R(k),
    with the autocovariance R and the flat-top lag window l(x) = min(1, 2 (1 - |x|)) (Politis and
    White 2004, "Automatic block-length selection for the dependent bootstrap"; D as corrected by
    Patton, Politis and White 2009, which is that of blocks that do not overlap). M is twice the lag
    after which correlations are below 2 sqrt(log10(W) / W).
    """
    windows, centred = len(scores), scores - scores.mean()
    consecutive = max(5, math.ceil(math.sqrt(math.log10(windows))))
    most = min(math.isqrt(windows - 1) + 1 + consecutive, windows - 1)
    lags = range(min(most + consecutive, windows - 1) + 1)
    covariance = np.array([centred[: windows - k] @ centred[k:] for k in lags]) / windows
    if covariance[0] <= 0:
        return 1.0
    large = abs(covariance[1:]) > 2 * math.sqrt(math.log10(windows) / windows) * covariance[0]
    small_from = (m for m in range(most) if not large[m : m + consecutive].any())
    k = np.arange(1, min(2 * max(next(small_from, most), 1), most) + 1)
    weighted = np.minimum(1, 2 * (1 - k / k[-1])) * covariance[k]
    spectrum, slope = covariance[0] + 2 * weighted.sum(), 2 * (k * weighted).sum()
    longest = min(3 * math.sqrt(windows), windows / 3)
    if spectrum <= 0:
        return longest
    return float(np.clip((abs(slope) / spectrum) ** (2 / 3) * windows ** (1 / 3), 1, longest))


def sums_and_counts(
    examples: ExampleScores, metric: str
) -> tuple[Float[np.ndarray, "S W"] | None, Float[np.ndarray, "W"]]:
    """Return numerator and denominator of a metric for each example.

    Bits per byte are nats / log 2 over bytes. BLEU and exact match are means over the sentences
    that were translated; the scores of others are NaN.
    """
    if metric == "bits_per_byte" and "bytes" in examples.sums:
        return examples.sums["loss"] / math.log(2), examples.sums["bytes"][0]
    sums = examples.sums.get(metric)
    if sums is None or not metric.endswith(("bleu", "exact_match")):
        return sums, examples.count
    is_scored = ~np.isnan(sums[0])
    return sums[:, is_scored], np.ones(is_scored.sum())


def in_blocks(
    sums: Float[np.ndarray, "S W"], count: Float[np.ndarray, "W"], number: int
) -> Float[np.ndarray, "S N"]:
    """Return the scores of `number` blocks with about equally many targets.

    A window belongs to the block that contains its middle target.
    """
    middle = (count.cumsum() - count / 2) / count.sum()
    block = (number * middle).astype(int)
    by_seed = [np.bincount(block, row, number) for row in sums]
    return ratio_by_example(np.stack(by_seed), np.bincount(block, count, number))


def ratio_by_example(
    sums: Float[np.ndarray, "S N"], count: Float[np.ndarray, "N"]
) -> Float[np.ndarray, "S N"]:
    """Return linearised scores d_sn of the examples, whose mean is R_s = sum_n L_sn / sum_n c_n.

    d_sn = R_s + (L_sn - R_s c_n) / c, with the mean c of counts c_n (Cochran 1977, "Sampling
    techniques", chapter 6, ratio of two means).
    """
    sums, count = np.asarray(sums, float), np.asarray(count, float)
    ratio = sums.sum(-1, keepdims=True) / count.sum()
    return ratio + (sums - ratio * count) / count.mean()
