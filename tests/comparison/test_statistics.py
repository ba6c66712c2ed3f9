"""Intervals: coverage, the meaning of each part, tests that agree with them, required seeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from experiments.tools.coverage import RATIOS, coverage
from tlite.comparison.blocks import Table
from tlite.comparison.statistics import (
    MAX_SEEDS,
    Difference,
    difference,
    holm,
    required_seeds,
    variance,
    wilson,
)

NUMBERS = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2, max_size=8)
TABLES = st.tuples(st.integers(2, 5), st.integers(2, 6)).flatmap(
    lambda shape: arrays(float, shape, elements=st.floats(-10, 10).map(lambda x: round(x, 3)))
)


def by_seed(values, first=0):
    return dict(enumerate(map(float, values), first))


def of_table(table):
    """The difference of a table (S, N) from 0."""
    zero = by_seed(np.zeros(len(table)))
    return difference(by_seed(table.mean(1)), zero, Table(table, np.zeros_like(table), 1.0))


def drawn(rng, of_seed, of_text, seeds, texts, studies, own=0.3):
    """Scores (K, S, N): each is the sum of a seed's, a text's and its own."""
    residual = own * rng.standard_normal((studies, seeds, texts), np.float32)
    of_seeds = of_seed * rng.standard_normal((studies, seeds, 1))
    return of_seeds + of_text * rng.standard_normal((studies, 1, texts)) + residual


# Coverage


@pytest.mark.parametrize("examples", [2, 4, 10, 26, 200])
@pytest.mark.parametrize("seeds", [2, 3, 5, 10, 20, 30])
def test_intervals_cover_for_any_number_of_seeds_and_blocks(seeds, examples):
    """93 to 98 %; more where two seeds or blocks make the wider part alone cover that much."""
    for ratio in RATIOS:
        covered, by_parts = coverage(seeds, examples, ratio, studies=1500)
        assert covered >= 0.93
        assert covered <= (0.998 if min(seeds, examples) == 2 else 0.983)
        assert covered >= by_parts


@pytest.mark.parametrize(("seeds", "examples"), [(2, 200), (3, 26), (5, 4), (10, 10)])
def test_intervals_of_unpaired_seeds_cover(seeds, examples):
    for ratio in RATIOS:
        covered, _ = coverage(seeds, examples, ratio, studies=1500, groups=2)
        assert 0.93 <= covered <= (0.99 if seeds == 2 else 0.983)


def right(rng, seeds, hard, wanders):
    """Which texts classifiers get right (K, S, N), given how hard the texts are for the model."""
    studies, _, texts = hard.shape
    of_seed = 0.03 * rng.standard_normal((studies, seeds, 1))
    own = wanders * rng.standard_normal((studies, seeds, texts))
    return (hard + of_seed + own > 0).astype(np.float32)


@pytest.mark.parametrize("paired", [True, False])
def test_equal_models_differ_significantly_in_5_of_100_studies(paired):
    """One model twice: under the same seeds with other noise, or under other seeds."""
    rng, significant = np.random.default_rng(2), 0
    for _ in range(400):
        hard = 0.5 + rng.standard_normal((1, 1, 300))
        sides = [right(rng, 5, hard, 0.5)[0] for _ in range(2)]
        values = by_seed(sides[0].mean(-1)), by_seed(sides[1].mean(-1))
        found = difference(*values, Table(*sides, 1.0), paired=paired)
        assert found.method == ("paired" if paired else "welch")
        significant += found.significant
    assert 0.02 <= significant / 400 <= 0.08


# What each number means


@given(TABLES)
def test_parts_are_t_intervals_over_seeds_and_over_examples(table):
    """And the interval for both is never narrower than either of them."""
    found = of_table(table)
    for half, means in zip(found.parts, (table.mean(1), table.mean(0)), strict=True):
        error = means.std(ddof=1) / np.sqrt(len(means))
        expected = stats.t.ppf(0.975, len(means) - 1) * error
        assert half == pytest.approx(expected, rel=1e-6, abs=1e-8)
        assert found.half_width >= half


def test_total_and_dof_are_those_of_the_two_way_layout():
    """By the textbook's sums, element by element."""
    table = np.array([[1.0, 2.0, 4.0, 3.0], [2.0, 2.5, 6.0, 3.0], [1.5, 4.0, 5.0, 1.0]])
    (seeds, examples), mean = table.shape, table.mean()
    cells = [(s, n) for s in range(seeds) for n in range(examples)]
    errors = [table[s, n] - table[s].mean() - table[:, n].mean() + mean for s, n in cells]
    ms_residual = sum(e**2 for e in errors) / ((seeds - 1) * (examples - 1))
    ms_examples = seeds * sum((m - mean) ** 2 for m in table.mean(0)) / (examples - 1)
    found = variance(table)
    assert found.seeds < found.residual  # the variance of seeds is estimated below 0
    assert found.total == pytest.approx(ms_examples / 12)
    table = table + np.array([[-2.0], [0.0], [2.0]])
    ms_seeds = examples * sum((m - mean) ** 2 for m in table.mean(1)) / (seeds - 1)
    v = ms_seeds + ms_examples - ms_residual
    found = variance(table)
    assert found.total == pytest.approx(v / 12)
    terms = ms_seeds**2 / 2, ms_examples**2 / 3, ms_residual**2 / 6
    assert found.dof == pytest.approx(v**2 / sum(terms))
    assert found.dof > 2


def test_the_total_equals_a_bootstrap_over_seeds_and_examples():
    """Both axes are drawn with replacement (Owen 2007, "The pigeonhole bootstrap")."""
    rng = np.random.default_rng(9)
    (table,) = drawn(rng, 0.1, 0.5, 20, 60, studies=1)
    draws = (rng.integers(size, size=(4000, size)) for size in table.shape)
    means = [table[np.ix_(*indices)].mean() for indices in zip(*draws, strict=True)]
    assert np.std(means) == pytest.approx(np.sqrt(variance(table).total), rel=0.1)


@given(TABLES)
def test_a_difference_is_significant_exactly_if_0_is_outside(table):
    found = of_table(table)
    if found.half_width:
        assert found.significant == (abs(found.mean) > found.half_width)
        assert found.significant == (found.p < 0.05)


@pytest.mark.filterwarnings("ignore:Precision loss")
@pytest.mark.parametrize("method", ["paired", "welch"])
@given(one=NUMBERS, other=NUMBERS)
def test_an_interval_over_seeds_is_scipys(method, one, other):
    paired = method == "paired"
    if paired:
        one, other = zip(*zip(one, other, strict=False), strict=True)
    found = difference(by_seed(one), by_seed(other), paired=paired)
    if not found.half_width:  # scipy divides by it
        return
    test = stats.ttest_rel(one, other) if paired else stats.ttest_ind(one, other, equal_var=False)
    ends = found.mean - found.half_width, found.mean + found.half_width
    atol = 0 if paired else 1e-9
    np.testing.assert_allclose(ends, test.confidence_interval(0.95), atol=atol)
    assert found.p == pytest.approx(test.pvalue)
    assert found.significant == (test.pvalue < 0.05)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_his_steps_do(p):
    rejected, left = set(), sorted(range(len(p)), key=lambda i: p[i])
    while left and p[left[0]] * len(left) < 0.05:
        rejected.add(left.pop(0))
    assert {i for i, value in enumerate(holm(p)) if value < 0.05} == rejected
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_proportions_interval_is_wilsons(numbers):
    right, number = numbers
    expected = stats.binomtest(right, number).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson(right / number, number), expected, atol=1e-9)


# Pairs


def test_seeds_are_paired_only_if_initial_values_are_shared():
    """Examples are paired in any case."""
    rng = np.random.default_rng(7)
    one, other = rng.standard_normal((2, 4, 30)) + 5 * rng.standard_normal(30)
    values, table = (by_seed(one.mean(1)), by_seed(other.mean(1))), Table(one, other, 1.0)
    paired, apart = (difference(*values, table, paired=paired) for paired in (True, False))
    assert paired.half_width == pytest.approx(variance(one - other).half_width)
    assert apart.half_width == pytest.approx(variance(one, -other).half_width)
    assert paired.mean == pytest.approx(apart.mean)
    assert (paired.method, apart.method) == ("paired", "welch")
    assert paired.variance.examples == pytest.approx(apart.variance.examples)
    for found in (paired, apart):
        assert found.correlation == pytest.approx(stats.pearsonr(one.mean(1), other.mean(1))[0])


def test_common_seeds_are_paired_if_they_are_half_of_all():
    rng = np.random.default_rng(7)
    one, other = rng.standard_normal((4, 30)), rng.standard_normal((3, 30))
    found = difference(by_seed(one.mean(1)), by_seed(other.mean(1), 1), Table(one, other, 1.0))
    assert found.half_width == pytest.approx(variance(one[1:] - other).half_width)
    assert (found.seeds, found.examples, found.method) == ((3, 3), 30, "paired")
    two_of_ten = difference(by_seed(range(10)), by_seed(range(10), first=8))
    assert (two_of_ten.seeds, two_of_ten.method) == ((10, 10), "welch")


@pytest.mark.parametrize(
    ("run", "reference", "method"),
    [([0], [0], "paired"), ([0], [5], "welch"), ([0], [0, 1], "paired"), ([0, 7], [0], "paired")],
)
def test_one_seed_has_no_interval(run, reference, method):
    found = difference(dict.fromkeys(run, 1.0), dict.fromkeys(reference, 2.0))
    assert (found.half_width, found.parts, found.significant) == (None, (None, None), False)
    assert (found.mean, found.method, found.correlation) == (-1, method, None)


def test_one_seed_has_an_interval_for_new_examples():
    rng = np.random.default_rng(6)
    one, other = rng.standard_normal((2, 1, 50))
    found = difference({0: one.mean()}, {0: other.mean()}, Table(one, other, 1.0))
    assert found.half_width is None
    interval = stats.ttest_1samp(one[0] - other[0], 0).confidence_interval()
    assert found.mean + found.parts[1] == pytest.approx(interval.high)


def test_a_difference_without_spread_is_not_significant():
    assert difference({}, {0: 1.0}) is difference({0: 1.0}, {}) is None
    found = difference(by_seed([1.2, 1.3]), by_seed([1.2, 1.3]))
    assert (found.same, found.mean, found.half_width, found.significant) == (True, 0, 0, False)
    found = difference(by_seed([1, 1]), by_seed([0, 0, 0], first=5))
    assert (found.mean, found.half_width, found.significant) == (1, 0, False)


# Required seeds


@pytest.mark.parametrize("deviations", [(0.01,), (0.02,), (0.01, 0.02)])
def test_required_seeds_show_the_effect_in_80_of_100_studies(deviations):
    """By simulation: with two fewer the power is below 0.8, with two more above."""
    rng, effect = np.random.default_rng(3), 0.01
    number = required_seeds(effect, sum(d**2 for d in deviations), groups=len(deviations))

    def power(seeds):
        groups = [rng.normal(0, d, (10_000, seeds, 1)) for d in deviations]
        groups[0] += effect
        mean = sum(group.mean((1, 2)) for group in groups)
        return np.mean(np.abs(mean) > variance(*groups).half_width)

    assert power(number - 2) < 0.8 < power(number + 2)


@pytest.mark.parametrize(
    ("of_seed", "of_text", "own", "effect"), [(0.03, 0.3, 0.3, 0.045), (0.0, 0.02, 3.0, 0.06)]
)
def test_required_seeds_depend_on_both_variances(of_seed, of_text, own, effect):
    """From a large study, tried in many with so many seeds; residuals decrease with more seeds."""
    rng = np.random.default_rng(8)
    (table,) = drawn(rng, of_seed, of_text, 40, 600, studies=1, own=own)
    few = Difference(0.0, variance(table[:20]), (20, 20), examples=600)
    number = few.required_seeds(effect)
    tables = drawn(rng, of_seed, of_text, number, 600, studies=1000, own=own) + effect
    significant = np.abs(tables.mean((1, 2))) > variance(tables).half_width
    assert 0.7 < significant.mean() < 0.93


def test_more_than_1000_required_seeds_are_none():
    assert required_seeds(0.0, 1e-4) is required_seeds(1e-9, 1e-4) is None
    assert required_seeds(0.1, 1e-4, examples=0.01, examples_dof=4) is None
    assert 0.8 * MAX_SEEDS < required_seeds(0.09, 1.0) <= MAX_SEEDS
    assert required_seeds(1.0, 0.0) == 2
