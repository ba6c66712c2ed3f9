"""Intervals have their coverage, agree with tests and SciPy, and give required seeds."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from experiments.tools.coverage import RATIOS, coverage
from tlite.comparison.blocks import PairedScores
from tlite.comparison.statistics import (
    Difference,
    correlation,
    difference,
    holm,
    required_seeds,
    variance,
)

NUMBERS = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2, max_size=8)
TABLES = st.tuples(st.integers(2, 5), st.integers(2, 6)).flatmap(
    lambda shape: arrays(float, shape, elements=st.floats(-10, 10).map(lambda x: round(x, 3)))
)


def by_seed(values, first=0):
    return dict(enumerate(map(float, values), first))


def draw_scores(rng, seed_std, text_std, shape, residual_std=0.3):
    """Return scores (K, S, N), each a sum of noise of its seed, its text and its own."""
    studies, seeds, texts = shape
    seed_noise = seed_std * rng.standard_normal((studies, seeds, 1))
    text_noise = text_std * rng.standard_normal((studies, 1, texts))
    return seed_noise + text_noise + residual_std * rng.standard_normal(shape, np.float32)


@pytest.mark.parametrize("examples", [2, 4, 10, 26, 200])
@pytest.mark.parametrize("seeds", [2, 3, 5, 10, 20, 30])
def test_intervals_cover_for_any_number_of_seeds_and_blocks(seeds, examples):
    """Coverage is 93 to 98 %, and up to 99.8 % with two seeds or two blocks."""
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


@pytest.mark.parametrize("paired", [True, False])
def test_equal_models_differ_significantly_in_5_of_100_studies(paired):
    """Compare the accuracy of one model with itself, with other noise of seeds and texts."""
    rng, significant = np.random.default_rng(2), 0
    for _ in range(400):
        difficulty = 0.5 + rng.standard_normal(300)
        noise = 0.03 * rng.standard_normal((2, 5, 1)) + 0.5 * rng.standard_normal((2, 5, 300))
        one, other = (difficulty + noise > 0).astype(np.float32)
        values = by_seed(one.mean(-1)), by_seed(other.mean(-1))
        result = difference(*values, PairedScores(one, other, 1.0), paired=paired)
        assert result.method == ("paired" if paired else "welch")
        significant += result.significant
    assert 0.02 <= significant / 400 <= 0.08


@given(TABLES)
def test_parts_are_t_intervals_over_seeds_and_over_examples(table):
    """The interval over both is never narrower, and excludes 0 exactly if it is significant."""
    zeros = np.zeros_like(table)
    values = by_seed(table.mean(1)), by_seed(zeros.mean(1))
    result = difference(*values, PairedScores(table, zeros, 1.0))
    for half, means in zip(
        result.half_widths_by_source, (table.mean(1), table.mean(0)), strict=True
    ):
        error = means.std(ddof=1) / np.sqrt(len(means))
        expected = stats.t.ppf(0.975, len(means) - 1) * error
        assert half == pytest.approx(expected, rel=1e-6, abs=1e-8)
        assert result.half_width >= half
    error = np.sqrt(table.var(0, ddof=1).mean() / table.size)
    expected = stats.t.ppf(0.975, table.size - table.shape[1]) * error
    within = result.variance.half_widths.within_examples
    assert within == pytest.approx(expected, rel=1e-6, abs=1e-8)
    assert result.half_width >= within * (1 - 1e-9) or within < 1e-8
    if result.half_width:
        assert result.significant == (abs(result.mean) > result.half_width)
        assert result.significant == (result.p < 0.05)


@pytest.mark.parametrize("groups", [1, 2])
def test_scores_that_vary_have_an_interval_if_their_means_are_equal(groups):
    """Two classifiers always predict opposite classes; half of the texts have either."""
    table = np.repeat(np.eye(2), 20, axis=1)
    result = variance(*[table] * groups)
    assert result.seeds == result.total == 0
    # 80 scores of variance 1/4, of which 40 means of examples are estimated, for each group
    expected = stats.t.ppf(0.975, 40 * groups) * np.sqrt(groups * 0.25 / 40)
    assert result.half_width == pytest.approx(expected)
    assert result.p_value(1.5 * expected) < 0.05 < result.p_value(0.9 * expected)


def test_total_and_dof_are_those_of_the_two_way_layout():
    """Compute the textbook's sums element by element."""
    table = np.array([[1.0, 2.0, 4.0, 3.0], [2.0, 2.5, 6.0, 3.0], [1.5, 4.0, 5.0, 1.0]])
    (seeds, examples), mean = table.shape, table.mean()
    cells = [(s, n) for s in range(seeds) for n in range(examples)]
    errors = [table[s, n] - table[s].mean() - table[:, n].mean() + mean for s, n in cells]
    ms_residual = sum(e**2 for e in errors) / ((seeds - 1) * (examples - 1))
    ms_examples = seeds * sum((m - mean) ** 2 for m in table.mean(0)) / (examples - 1)
    result = variance(table)
    assert result.seeds < result.residual  # the variance of seeds is estimated below 0
    assert result.total == pytest.approx(ms_examples / 12)
    table = table + np.array([[-2.0], [0.0], [2.0]])
    ms_seeds = examples * sum((m - mean) ** 2 for m in table.mean(1)) / (seeds - 1)
    v = ms_seeds + ms_examples - ms_residual
    result = variance(table)
    assert result.total == pytest.approx(v / 12)
    terms = ms_seeds**2 / 2, ms_examples**2 / 3, ms_residual**2 / 6
    assert result.dof == pytest.approx(v**2 / sum(terms))
    assert result.dof > 2


@pytest.mark.parametrize("groups", [1, 2])
def test_total_is_the_variance_of_the_mean_over_studies(groups):
    """Draw new seeds and new texts 8,000 times; a second group has the same texts."""
    rng, shape = np.random.default_rng(4), (8000, 5, 12)
    tables = [draw_scores(rng, 1.0, text_std, shape, 3.0) for text_std in (2.0, 0.0)[:groups]]
    means = sum(table.mean((1, 2)) for table in tables)
    estimates = variance(*tables)
    unclipped = estimates.seeds + estimates.examples - estimates.residual
    assert unclipped.mean() == pytest.approx(means.var(), rel=0.05)
    assert (estimates.total >= unclipped).all()


@pytest.mark.filterwarnings("ignore:Precision loss")
@pytest.mark.parametrize("method", ["paired", "welch"])
@given(one=NUMBERS, other=NUMBERS)
def test_an_interval_over_seeds_is_scipys(method, one, other):
    paired = method == "paired"
    if paired:
        one, other = zip(*zip(one, other, strict=False), strict=True)
    result = difference(by_seed(one), by_seed(other), paired=paired)
    if not result.half_width:  # SciPy divides by it
        return
    test = stats.ttest_rel(one, other) if paired else stats.ttest_ind(one, other, equal_var=False)
    ends = result.mean - result.half_width, result.mean + result.half_width
    atol = 0 if paired else 1e-9
    np.testing.assert_allclose(ends, test.confidence_interval(0.95), atol=atol)
    assert result.p == pytest.approx(test.pvalue)
    assert result.significant == (test.pvalue < 0.05)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_step_by_step(p):
    rejected, remaining = set(), sorted(range(len(p)), key=lambda i: p[i])
    while remaining and p[remaining[0]] * len(remaining) < 0.05:
        rejected.add(remaining.pop(0))
    assert {i for i, value in enumerate(holm(p)) if value < 0.05} == rejected
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1, 1]


def test_seeds_are_paired_only_if_initial_values_are_shared():
    """Examples are always paired."""
    rng = np.random.default_rng(7)
    one, other = rng.standard_normal((2, 4, 30)) + 5 * rng.standard_normal(30)
    values, table = (by_seed(one.mean(1)), by_seed(other.mean(1))), PairedScores(one, other, 1.0)
    paired, apart = (difference(*values, table, paired=paired) for paired in (True, False))
    assert paired.half_width == pytest.approx(variance(one - other).half_width)
    assert apart.half_width == pytest.approx(variance(one, -other).half_width)
    assert paired.mean == pytest.approx(apart.mean)
    assert (paired.method, apart.method) == ("paired", "welch")
    assert paired.variance.examples == pytest.approx(apart.variance.examples)
    correlation = stats.pearsonr(one.mean(1), other.mean(1))[0]
    assert paired.correlation == pytest.approx(correlation) == apart.correlation


@pytest.mark.parametrize(
    ("run", "reference", "method"),
    [([0], [0], "paired"), ([0], [5], "welch"), ([0], [0, 1], "paired"), ([0, 7], [0], "paired")],
)
def test_one_seed_has_no_interval_over_seeds(run, reference, method):
    result = difference(dict.fromkeys(run, 1.0), dict.fromkeys(reference, 2.0))
    assert result.half_width is result.correlation is None
    assert result.half_widths_by_source == (None, None)
    assert (result.mean, result.method, result.significant) == (-1, method, False)
    assert (result.examples, result.block) == (0, 1)
    assert np.isscalar(result.variance.seeds)


def test_a_difference_without_spread_is_not_significant():
    assert difference({}, {0: 1.0}) is difference({0: 1.0}, {}) is None
    for one, other, first, same in (([1.2, 1.3], [1.2, 1.3], 0, True), ([1, 1], [0] * 3, 5, False)):
        result = difference(by_seed(one), by_seed(other, first))
        assert (result.same, result.half_width, result.significant) == (same, 0, False)
    assert not difference(by_seed([1, 2]), by_seed([1, 3])).same
    for seeds in ([1, 2], [1, 1, 1]):  # too few values, or equal ones
        assert difference(by_seed(seeds), by_seed([1, 2, 3])).correlation is None


@given(st.floats(0.05, 5), st.sampled_from([1, 2]), st.floats(0, 0.5), st.integers(1, 30))
@example(effect=0.0887, groups=1, examples=0.0, examples_dof=1)
@example(effect=7.0, groups=1, examples=1.0, examples_dof=1)
def test_required_seeds_are_the_least_that_show_the_effect(effect, groups, examples, examples_dof):
    """Compare with the docstring's formula for a variance of 1 of one seed."""

    def is_enough(number):
        seeds, dof = 1 / number, groups * (number - 1)
        total_dof = (seeds + examples) ** 2 / (seeds**2 / dof + examples**2 / examples_dof)
        return all(
            effect >= (stats.t.ppf(0.975, f) + stats.t.ppf(0.8, f)) * np.sqrt(v)
            for v, f in ((seeds + examples, total_dof), (seeds, dof))
        )

    number = required_seeds(effect, 1.0, groups, examples, examples_dof)
    assert required_seeds(effect, 1.0) == required_seeds(effect, 1.0, 1, 0.0, examples_dof)
    if number is None:
        assert not is_enough(1000)
    else:
        assert is_enough(number)
        assert number == 2 or not is_enough(number - 1)


def test_seeds_are_paired_if_half_of_them_are_common():
    run = {seed: float(seed % 3) for seed in range(8)}
    for first, method in ((4, "paired"), (5, "welch")):
        reference = {seed: float(seed % 2) for seed in range(first, first + 8)}
        assert difference(run, reference).method == method


def test_a_correlation_needs_three_seeds():
    one, other = np.arange(3.0), np.array([2.0, 4.0, 6.0])
    assert correlation(one, other) == pytest.approx(1)
    assert correlation(one[:2], other[:2]) is correlation(one, 0 * other) is None


@pytest.mark.parametrize(("method", "groups"), [("paired", 1), ("welch", 2)])
@pytest.mark.parametrize("text_std", [0.0, 2.0])
def test_required_seeds_of_a_difference_use_its_variances(method, groups, text_std):
    (table,) = draw_scores(np.random.default_rng(2), 1.0, text_std, (1, 4, 10), residual_std=3.0)
    v, effect = variance(table), 3.0
    examples = v.examples - v.residual
    assert (examples > 0) == (text_std > 0)
    expected = required_seeds(effect, v.one_seed, groups, max(examples, 0), 9)
    assert expected != required_seeds(effect, v.one_seed, 3 - groups, max(examples, 0), 9)
    result = Difference(0.0, v, (4, 4), method, examples=10)
    assert result.required_seeds(effect) == expected
    dofs = {1: 1, 2: 1, 3: 2, 4: 3}  # by number of examples
    numbers = [required_seeds(2.0, v.one_seed, groups, max(examples, 0), n) for n in dofs.values()]
    assert len({*numbers}) == (3 if text_std else 1)
    assert numbers == [
        Difference(0.0, v, (4, 4), method, examples=number).required_seeds(2.0) for number in dofs
    ]


@pytest.mark.parametrize(
    ("deviations", "text_std"),
    [((0.01,), 0.0), ((0.02,), 0.0), ((0.01, 0.02), 0.0), ((0.01,), 0.01)],
)
def test_required_seeds_show_the_effect_in_80_of_100_studies(deviations, text_std):
    """Simulated power is below 0.8 with two seeds fewer and above with two more."""
    rng, effect, texts = np.random.default_rng(3), 0.01, 20 if text_std else 1
    one_seed, text_variance = sum(d**2 for d in deviations), text_std**2 / texts
    number = required_seeds(effect, one_seed, len(deviations), text_variance, max(texts - 1, 1))

    def power(seeds):
        groups = [rng.normal(0, d, (10_000, seeds, 1)) for d in deviations]
        groups[0] = groups[0] + effect + rng.normal(0, text_std, (10_000, 1, texts))
        mean = sum(group.mean((1, 2)) for group in groups)
        return np.mean(np.abs(mean) > variance(*groups).half_width)

    assert power(number - 2) < 0.8 < power(number + 2)
