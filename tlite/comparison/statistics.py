"""Whether one of two runs is better: their difference, with an interval for new seeds and examples.

Both runs have the same initial values, where the models allow it, and the same batches at a seed,
and are validated on the same examples: what a seed or an example makes in both falls out of the
difference.

A text or a pair is an example, independent of the others. Windows of one text are not, as a scene
goes on in the next: neighbours are one block, as in batch means.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtr, stdtrit

from tlite.training.metrics import Examples

CONFIDENCE = 0.95
POWER = 0.8
SEEDS = np.arange(2, 1001)  # numbers that are looked for
EXAMPLES = np.unique(np.geomspace(2, 1e6, 1000).astype(int))
ROUNDING = 1e-9  # of a mean: no error is smaller
FEW = 10  # windows, of which each is a block

Number = float | int | np.floating | Float[np.ndarray, "..."]


class Variance(NamedTuple):
    """Of a mean over seeds and examples; the numbers of one study, or arrays of many."""

    seeds: Number
    """On the very same examples. NaN: a single seed does not tell."""
    examples: Number
    """With the very same seeds; 0 where nothing is known of each."""
    rest: Number
    """What is in both of them."""
    one_seed: Number
    """As `seeds`, with a single one of each run in place of all."""
    freedom: Number
    """Degrees of freedom of the whole."""

    @property
    def whole(self) -> Number:
        """seeds + examples - rest, never below one of the first two."""
        either = np.maximum(self.seeds, self.examples)
        return np.maximum(self.seeds + self.examples - self.rest, either)

    @property
    def half_width(self) -> Number:
        """Of the 95 % interval, t(0.975, f) sqrt(v)."""
        return quantile(self.freedom) * np.sqrt(self.whole)


def variance(*sides: Float[np.ndarray, "*studies _ N"]) -> Variance:
    """Of the sum of the sides' means over S seeds and N examples, for new ones of both.

    Of a side d, with the mean squares of a two-way layout (Scheffé 1959, "The analysis of
    variance", chapter 7),

        MS_seeds = N sum_s (d_s. - d..)^2 / (S - 1),
        MS_examples = S sum_n (d_.n - d..)^2 / (N - 1),
        MS_rest = sum_sn (d_sn - d_s. - d_.n + d..)^2 / ((S - 1) (N - 1)),
        v = (MS_seeds + MS_examples - MS_rest) / (S N),

    never below MS_seeds / (S N) or MS_examples / (S N), and degrees of freedom f (Satterthwaite
    1946), at least S - 1,

        (S N v)^2 / f = MS_seeds^2 / (S - 1) + MS_examples^2 / (N - 1)
                        + MS_rest^2 / ((S - 1) (N - 1)).

    Runs of the same seeds are one side, run minus reference. Of other seeds they are two, whose
    parts of seeds and rest are found in each by itself; that of examples in their sum. With N = 1
    it is the variance of the paired t interval (Student 1908), or of Welch's (1947).
    """
    parts, rests, one_seed, least = [], [], 0.0, np.inf
    for side in sides:
        seeds, examples = side.shape[-2:]
        of_seeds, of_examples = side.mean(-1, keepdims=True), side.mean(-2, keepdims=True)
        left = side - of_seeds - of_examples + of_seeds.mean(-2, keepdims=True)
        freedom, of_one = (seeds - 1) * (examples - 1), _variance(of_seeds[..., 0])
        parts.append((of_one / seeds, seeds - 1))
        rests.append(((left**2).sum((-2, -1)) / max(freedom, 1) / (seeds * examples), freedom))
        one_seed += of_one
        least = min(least, seeds - 1)
    number = sides[0].shape[-1]
    of_examples = _variance(sum(side.mean(-2) for side in sides)) / number if number > 1 else 0.0
    seeds, rest = (sum(value for value, _ in values) for values in (parts, rests))
    found = Variance(seeds, of_examples, rest, one_seed, 0.0)
    terms = (v**2 / f for v, f in [*parts, (of_examples, number - 1), *rests] if f)
    freedom = found.whole**2 / np.maximum(sum(terms), np.finfo(float).tiny)
    return found._replace(freedom=np.maximum(freedom, least))


def _variance(values: Float[np.ndarray, "*studies N"]) -> Number:
    """Over the last axis, with N - 1; NaN of a single one."""
    number = values.shape[-1]
    return values.var(-1, ddof=1) if number > 1 else np.full(values.shape[:-1], np.nan)[()]


class Blocks(NamedTuple):
    """Two tables, and what a column of them is."""

    run: Float[np.ndarray, "S N"]
    reference: Float[np.ndarray, "R N"]
    size: float
    """Examples of a block, about."""


@dataclass(frozen=True)
class Difference:
    """How far a run's mean is from the reference's."""

    mean: float
    """Run minus reference."""
    variance: Variance
    seeds: tuple[int, int]
    """How many of the run and of the reference are in it."""
    method: Literal["paired", "welch"] = "paired"
    """By seed, or of two independent groups."""
    examples: int = 0
    """How many, or how many blocks of them, it is for; 0: for these very examples only."""
    block: float = 1.0
    """Examples of a block, about."""
    same: bool = False
    """Whether every seed has the same numbers in both."""
    corrected: float | None = None
    """Its p-value among those of several differences (`holm`)."""

    @property
    def half_width(self) -> float | None:
        """Of the 95 % interval, mean ± half_width; None with fewer than two seeds."""
        return self._half(self.variance.whole, self.variance.freedom)

    @property
    def parts(self) -> tuple[float | None, float | None]:
        """What half_width would be of new seeds alone, and of new examples alone."""
        freedom = self.variance.freedom
        if np.isnan(freedom):
            freedom = max(self.examples - 1, 1)
        examples = self._half(self.variance.examples, freedom) if self.examples else None
        return self._half(self.variance.seeds, freedom), examples

    def _half(self, variance: Number, freedom: Number) -> float | None:
        if np.isnan(variance):
            return None
        error = np.sqrt(variance)
        return float(quantile(freedom) * error) if error > ROUNDING * abs(self.mean) else 0.0

    @property
    def p(self) -> float | None:
        """Of as large a difference where there is none; None where there is no interval."""
        if not self.half_width:
            return None
        error = self.half_width / quantile(self.variance.freedom)
        return float(2 * stdtr(self.variance.freedom, -abs(self.mean) / error))

    @property
    def shown(self) -> bool:
        """Whether 0 is outside of the interval, of several one by Holm's correction; one without
        any width says nothing."""
        p = self.p if self.corrected is None else self.corrected
        return p is not None and p < 1 - CONFIDENCE

    @property
    def needed(self) -> int | None:
        """Seeds of each that would show as large a difference; None: more than 1,000."""
        v, sides = self.variance, 1 if self.method == "paired" else 2
        fixed = max(v.examples - v.rest, 0.0), max(self.examples - 1, 1)
        return number_needed(self.mean, v.one_seed, SEEDS, sides, *fixed)

    @property
    def examples_needed(self) -> int | None:
        """Examples, or blocks, that would show it with as many seeds; None: more than 1,000,000."""
        v = self.variance
        fixed = max(v.seeds - v.rest, 0.0), min(self.seeds) - 1
        return number_needed(self.mean, self.examples * v.examples, EXAMPLES, 1, *fixed)


def difference(
    run: Mapping[int, float], reference: Mapping[int, float], tables: Blocks | None = None
) -> Difference | None:
    """The difference of a measure by seed.

    By pairs of the seeds that both have, where these are half of all or more; else of all of them,
    as of two independent groups.

    Args:
        tables: what of each example, or block of them, makes the values of all seeds, whose means
            over examples they are. Without them the interval is for these very examples.

    Returns:
        None if one of them has no seeds.
    """
    if not run or not reference:
        return None
    common, numbers = sorted(run.keys() & reference.keys()), (len(run), len(reference))
    mine, theirs = (np.array([*values.values()], float) for values in (run, reference))
    one, other, size = tables or Blocks(mine[:, None], theirs[:, None], 1.0)
    known = {"examples": one.shape[1] if tables else 0, "block": size}
    if len(common) < (1 if 1 in numbers else max(2, sum(numbers) / 4)):
        mean = float(mine.mean() - theirs.mean())
        return Difference(mean, variance(one, -other), numbers, "welch", **known)
    here, there = ([list(values).index(seed) for seed in common] for values in (run, reference))
    by_seed, found = mine[here] - theirs[there], variance(one[here] - other[there])
    known["same"] = not by_seed.any()
    return Difference(float(by_seed.mean()), found, (len(common), len(common)), **known)


def holm(p: Sequence[float]) -> list[float]:
    """p-values of m tests, so corrected that below 0.05 at most one study in 20 has a wrong one.

    Of the i-th smallest the greatest (m - j + 1) p_j of all j <= i, at most 1 (Holm 1979).
    """
    order, number = np.argsort(p), len(p)
    raised = np.maximum.accumulate(np.sort(p) * np.arange(number, 0, -1))
    found = np.empty(number)
    found[order] = np.minimum(raised, 1.0)
    return found.tolist()


def number_needed(
    mean: float,
    falling: Number,
    numbers: Int[np.ndarray, "N"] = SEEDS,
    groups: int = 1,
    fixed: Number = 0.0,
    fixed_freedom: Number = 1.0,
) -> int | None:
    """The least n with |d| >= (t(0.975, f) + t(0.8, f)) sqrt(falling / n + fixed).

    So many show a true difference of d, at 5 %, in 80 of 100 studies (Cohen 1988, with t in place
    of z). f is Satterthwaite's, of groups (n - 1) and `fixed_freedom` degrees of freedom.

    Args:
        falling: variance of the mean of one seed (or example) of each of the groups.
        fixed: that which more of them do not lessen.

    Returns:
        None if that is none of `numbers`.
    """
    part = falling / numbers
    terms = part**2 / (groups * (numbers - 1)) + fixed**2 / max(fixed_freedom, 1)
    freedom = (part + fixed) ** 2 / np.maximum(terms, np.finfo(float).tiny)
    freedom = np.maximum(freedom, 1)
    least = (quantile(freedom) + stdtrit(freedom, POWER)) * np.sqrt(part + fixed)
    found = np.flatnonzero(abs(mean) >= least)
    return int(numbers[found[0]]) if len(found) and mean else None


def quantile(freedom: Number) -> Number:
    """t(0.975, freedom): half of the interval's width in standard errors."""
    return stdtrit(freedom, (1 + CONFIDENCE) / 2)


def blocks(run: Examples, reference: Examples, measure: str, *, of_a_text: bool) -> Blocks | None:
    """The tables of a measure; None where it, or the same examples, are not in both.

    Args:
        of_a_text: N windows of one text make sqrt(N) blocks (Flegal and Jones 2010, "Batch means
            and spectral variance estimators in Markov chain Monte Carlo"). Those of runs with
            different contexts or tokens are divided at the same places of the text.
    """
    (mine, here), (theirs, there) = both = [_sums_and_counts(x, measure) for x in (run, reference)]
    windows = min(len(here), len(there))
    if mine is None or theirs is None or windows < 2:
        return None
    if not of_a_text:
        same = np.array_equal(here, there)
        return Blocks(*(ratio_by_example(*one) for one in both), 1.0) if same else None
    if not np.isclose(here.sum(), there.sum(), rtol=0.01):  # but for what comes before the first
        return None
    number = max(math.isqrt(windows), min(windows, FEW))
    return Blocks(*(_in_blocks(*one, number) for one in both), len(here) / number)


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
