"""The difference of two runs, with a 95 % interval for new seeds and new examples.

Runs are validated on the same examples, so the difference is taken example by example (`blocks`
makes examples of the windows of a text).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import stdtr, stdtrit

from tlite.comparison.blocks import PairedScores

CONFIDENCE = 0.95
POWER = 0.8
MAX_SEEDS = 1000
TINY = np.finfo(float).tiny
ROUNDING = 1e-9  # relative to the mean: smaller errors are rounding

Number = float | int | np.floating | Float[np.ndarray, "..."]


class HalfWidths(NamedTuple):
    """Half-widths t(0.975, f) sqrt(v) of 95 % intervals; scalars, or arrays of many studies."""

    total: Number
    """Over new seeds and new examples, with Satterthwaite's degrees of freedom."""
    seeds: Number
    """Over new seeds on the same examples."""
    examples: Number
    """Over new examples with the same seeds."""
    within_examples: Number
    """Over seeds that are new for each example."""


class Variance(NamedTuple):
    """Variance of a mean over seeds and examples; scalars, or arrays of many studies."""

    seeds: Number
    """Over new seeds on the same examples; NaN with a single seed."""
    examples: Number
    """Over new examples with the same seeds; 0 where the scores of examples are unknown."""
    residual: Number
    """Of seed and example together; both of the above contain it."""
    within_examples: Number
    """Over seeds that are new for each example; 0 only if all seeds have the same scores."""
    one_seed: Number
    """`seeds` if there were a single seed."""
    dof: Number
    """Degrees of freedom of `total`."""
    seeds_dof: Number
    examples_dof: Number
    within_examples_dof: Number

    @property
    def total(self) -> Number:
        """seeds + examples - residual, at least the larger of the first two."""
        larger = np.maximum(self.seeds, self.examples)
        return np.maximum(self.seeds + self.examples - self.residual, larger)

    @property
    def half_widths(self) -> HalfWidths:
        return HalfWidths(*(t_critical(dof) * np.sqrt(v) for v, dof in self._intervals))

    @property
    def half_width(self) -> Number:
        """Half-width of the 95 % interval: the largest of `half_widths`.

        With two or three seeds Satterthwaite's is too narrow whenever the variance of seeds is
        large and its estimate small by chance. That within examples is the widest where seeds and
        examples have nearly equal means of scores that vary, as two classifiers that always predict
        opposite classes. 0 lies outside of the widest if and only if all four tests reject
        it (an intersection-union test: Berger 1982, "Multiparameter hypothesis testing and
        acceptance sampling"). `experiments/tools/coverage.py` simulates its coverage.
        """
        return reduce(np.maximum, self.half_widths)

    def p_value(self, mean: Number) -> Number:
        """p-value of a mean of 0: below 0.05 if and only if 0 is outside of mean ± half_width."""
        errors = ((np.sqrt(np.maximum(v, TINY)), dof) for v, dof in self._intervals)
        return reduce(np.maximum, (2 * stdtr(dof, -np.abs(mean) / e) for e, dof in errors))

    @property
    def _intervals(self) -> list[tuple[Number, Number]]:
        """Variance and degrees of freedom of each of the t intervals."""
        alone = (self.seeds, self.seeds_dof), (self.examples, self.examples_dof)
        return [(self.total, self.dof), *alone, (self.within_examples, self.within_examples_dof)]


def variance(*groups: Float[np.ndarray, "*studies _ N"]) -> Variance:
    """Variance of the sum of the groups' means over S seeds and N examples, for new ones of both.

    For a group d, with the mean squares of a two-way random layout (Scheffé 1959, "The analysis of
    variance", chapter 7),

        MS_seeds = N sum_s (d_s. - d..)^2 / (S - 1),
        MS_examples = S sum_n (d_.n - d..)^2 / (N - 1),
        MS_residual = sum_sn (d_sn - d_s. - d_.n + d..)^2 / ((S - 1) (N - 1)),
        v = (MS_seeds + MS_examples - MS_residual) / (S N),

    at least MS_seeds / (S N) and MS_examples / (S N). Its degrees of freedom f (Satterthwaite 1946)

        (S N v)^2 / f = MS_seeds^2 / (S - 1) + MS_examples^2 / (N - 1)
                        + MS_residual^2 / ((S - 1) (N - 1))

    are at least min(S - 1, N - 1). Seeds that are new for each example would give the variance

        (MS_seeds + (N - 1) MS_residual) / N / (S N),   f = (S - 1) N.

    Runs paired by seed are one group, run minus reference. Runs of independent seeds are two: seeds
    and residual are of each group, examples of their sum. With N = 1 it is the variance of the
    paired t interval (Student 1908), or of Welch's (1947).
    """
    seeds, residuals, within = zip(*map(_variances_of_group, groups), strict=True)
    means, number = sum(group.mean(-2) for group in groups), groups[0].shape[-1]
    examples = [(_variance(means) / number, number - 1)] if number > 1 else []
    sums = [sum(v for v, _ in terms) for terms in (seeds, examples, residuals, within)]
    one_seed, seeds_dof = sum(v * (dof + 1) for v, dof in seeds), satterthwaite(sums[0], seeds)
    within_dof = satterthwaite(sums[3], within)
    result = Variance(*sums, one_seed, 0.0, seeds_dof, max(number - 1, 1), within_dof)
    return result._replace(dof=satterthwaite(result.total, [*seeds, *examples], residuals))


def _variances_of_group(group: Float[np.ndarray, "*studies S N"]) -> list[tuple[Number, int]]:
    """Variances of seeds, residual and within examples, each with its degrees of freedom."""
    seeds, examples = group.shape[-2:]
    centred = group - group.mean(-1, keepdims=True)
    squares = ((centred - centred.mean(-2, keepdims=True)) ** 2).sum((-2, -1))
    dof = (seeds - 1) * (examples - 1)
    residual = squares / (max(dof, 1) * seeds * examples)
    by_seed = _variance(group.mean(-1)) / seeds
    within = (by_seed + (examples - 1) * residual) / examples
    return [(by_seed, seeds - 1), (residual, dof), (within, (seeds - 1) * examples)]


def satterthwaite(
    total: Number,
    added: Sequence[tuple[Number, int]],
    subtracted: Sequence[tuple[Number, int]] = (),
) -> Number:
    """Degrees of freedom v^2 / sum_i v_i^2 / f_i of a combination of mean squares (v_i, f_i).

    At least the smallest f_i of those that are added.
    """
    divisor = sum(v**2 / dof for v, dof in [*added, *subtracted] if dof)
    return np.maximum(total**2 / np.maximum(divisor, TINY), min(dof for _, dof in added))


def _variance(values: Float[np.ndarray, "*studies N"]) -> Number:
    """Sample variance over the last axis; NaN of a single value."""
    number = values.shape[-1]
    return values.var(-1, ddof=1) if number > 1 else np.full(values.shape[:-1], np.nan)[()]


@dataclass(frozen=True)
class Difference:
    """The difference of a run's mean score from the reference's."""

    mean: float
    """Run minus reference."""
    variance: Variance
    seeds: tuple[int, int]
    """Number of seeds of the run and of the reference."""
    method: Literal["paired", "welch"] = "paired"
    """Paired by seed, or two independent groups of seeds."""
    examples: int = 0
    """Number of examples, or of blocks; 0: the interval is for these very examples only."""
    block: float = 1.0
    """Windows in a block, on average."""
    same: bool = False
    """True if every seed has the same score in both."""
    correlation: float | None = None
    """Of the scores of both at the same seed; None with fewer than three common seeds."""
    p_adjusted: float | None = None
    """p-value corrected for several differences (`holm`)."""

    @property
    def half_width(self) -> float | None:
        """Half of the 95 % interval for new seeds and examples; None with fewer than two seeds."""
        return self._rounded(self.variance.half_width)

    @property
    def half_widths_by_source(self) -> tuple[float | None, float | None]:
        """Half of the 95 % interval for new seeds on the same examples, and of the one for new
        examples with the same seeds: each is the t interval with its own degrees of freedom."""
        half = self.variance.half_widths
        return self._rounded(half.seeds), self._rounded(half.examples if self.examples else np.nan)

    def _rounded(self, half: Number) -> float | None:
        if np.isnan(half):
            return None
        return float(half) if half > ROUNDING * abs(self.mean) else 0.0

    @property
    def p(self) -> float | None:
        """p-value of no difference; None where there is no interval."""
        return float(self.variance.p_value(self.mean)) if self.half_width else None

    @property
    def significant(self) -> bool:
        """True if the p-value, p_adjusted if it is one of several, is below 0.05."""
        p = self.p if self.p_adjusted is None else self.p_adjusted
        return p is not None and p < 1 - CONFIDENCE

    def required_seeds(self, effect: float) -> int | None:
        """Seeds of each run that show a true difference of `effect` in 80 of 100 studies with as
        many examples; None: more than 1,000."""
        v, groups = self.variance, 1 if self.method == "paired" else 2
        examples = max(v.examples - v.residual, 0.0)
        return required_seeds(effect, v.one_seed, groups, examples, max(self.examples - 1, 1))


def difference(
    run: Mapping[int, float],
    reference: Mapping[int, float],
    table: PairedScores | None = None,
    paired: bool = True,
) -> Difference | None:
    """The difference of two runs' scores by seed.

    Args:
        table: the scores of each example or block of examples, from which those of all seeds
            result. Without it the interval is for these very examples.
        paired: True if runs of one seed begin with the same initial values. Then the seeds that
            both have are paired, if these are half of all or more; otherwise all seeds are used as
            two independent groups. Examples are paired in any case.

    Returns:
        None if one of them has no seeds.
    """
    if not run or not reference:
        return None
    common, numbers = sorted(run.keys() & reference.keys()), (len(run), len(reference))
    scores, others = (np.array([*values.values()], float) for values in (run, reference))
    run_cells, reference_cells, block = table or PairedScores(scores[:, None], others[:, None], 1.0)
    i, j = ([list(values).index(seed) for seed in common] for values in (run, reference))
    by_seed = scores[i] - others[j]
    settings = {
        "examples": run_cells.shape[1] if table else 0,
        "block": block,
        "same": len(common) == min(numbers) and not by_seed.any(),
        "correlation": correlation(scores[i], others[j]),
    }
    if paired and len(common) >= (1 if 1 in numbers else max(2, sum(numbers) / 4)):
        spread, numbers = variance(run_cells[i] - reference_cells[j]), (len(common), len(common))
        return Difference(float(by_seed.mean()), spread, numbers, **settings)
    mean, spread = float(scores.mean() - others.mean()), variance(run_cells, -reference_cells)
    return Difference(mean, spread, numbers, "welch", **settings)


def correlation(one: Float[np.ndarray, "S"], other: Float[np.ndarray, "S"]) -> float | None:
    """Pearson's; None of fewer than three values, or of equal ones."""
    if len(one) < 3 or not (np.ptp(one) and np.ptp(other)):
        return None
    return float(np.corrcoef(one, other)[0, 1])


def holm(p: Sequence[float]) -> list[float]:
    """Corrected p-values of m tests: one study in 20 at most rejects a true hypothesis at 0.05.

    For the i-th smallest the largest (m - j + 1) p_j of all j <= i, at most 1 (Holm 1979).
    """
    order, number = np.argsort(p), len(p)
    raised = np.maximum.accumulate(np.sort(p) * np.arange(number, 0, -1))
    p_adjusted = np.empty(number)
    p_adjusted[order] = np.minimum(raised, 1.0)
    return p_adjusted.tolist()


def required_seeds(
    effect: float,
    one_seed: Number,
    groups: int = 1,
    examples: Number = 0.0,
    examples_dof: Number = 1.0,
) -> int | None:
    """The least n with |effect| >= (t(0.975, f) + t(0.8, f)) sqrt(one_seed / n + examples).

    So many seeds show a true difference of `effect`, at 5 %, in 80 of 100 studies (Cohen 1988, with
    t in place of z). f is Satterthwaite's, and the same must hold over seeds alone.

    Args:
        effect: the smallest difference of interest, chosen before the runs were.
        one_seed: variance of the mean of one seed, summed over the groups.
        groups: 1 if seeds are paired.
        examples: variance that more seeds do not reduce.

    Returns:
        None if n is more than 1,000.
    """
    numbers = np.arange(2.0, MAX_SEEDS + 1)
    seeds, seeds_dof = one_seed / numbers, groups * (numbers - 1)
    terms = seeds**2 / seeds_dof + examples**2 / examples_dof
    dof = np.maximum((seeds + examples) ** 2 / np.maximum(terms, TINY), 1)
    enough = np.ones(len(numbers), bool)
    for v, f in ((seeds + examples, dof), (seeds, seeds_dof)):
        enough &= abs(effect) >= (t_critical(f) + stdtrit(f, POWER)) * np.sqrt(v)
    return int(numbers[enough.argmax()]) if enough.any() and effect else None


def t_critical(dof: Number) -> Number:
    """t(0.975, dof): half of the interval's width in standard errors."""
    return stdtrit(dof, (1 + CONFIDENCE) / 2)
