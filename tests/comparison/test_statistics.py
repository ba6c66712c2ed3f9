"""Known cases: the same runs, a planted difference, how often intervals cover, how many seeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tlite.comparison.statistics import (
    MOST_SEEDS,
    difference,
    paired,
    quantile,
    seeds_needed,
    spread,
    welch,
)

STUDIES, SEEDS, PLANTED = 2000, 5, -0.01
NUMBERS = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2, max_size=8)


def by_seed(values, first=0):
    return dict(enumerate(map(float, values), first))


@pytest.fixture(scope="module")
def studies():
    """(2, N, M): reference and run; what a seed decides is in both, and most of the spread."""
    rng = np.random.default_rng(0)
    of_seed = 1 + rng.normal(0, 0.05, (STUDIES, SEEDS))
    noise = rng.normal(0, 0.01, (2, STUDIES, SEEDS))
    return of_seed + noise + np.array([0.0, PLANTED])[:, None, None]


def coverage(intervals):
    """The share of (mean, half width) that the planted difference lies in."""
    return np.mean([abs(mean - PLANTED) <= half_width for mean, half_width in intervals])


def test_the_interval_covers_the_difference_in_95_of_100_studies(studies):
    found = [paired(run, reference) for reference, run in zip(*studies, strict=True)]
    assert 0.93 <= coverage((d.mean, d.half_width) for d in found) <= 0.97


def test_a_wrong_interval_would_not(studies):
    """Without pairing it is far too wide, and with z for t too narrow."""
    pairs = list(zip(*studies, strict=True))
    unpaired = [welch(run, reference) for reference, run in pairs]
    assert coverage((d.mean, d.half_width) for d in unpaired) > 0.99
    z = stats.norm.ppf(0.975) / np.sqrt(SEEDS)
    narrow = [((b - a).mean(), z * (b - a).std(ddof=1)) for a, b in pairs]
    assert coverage(narrow) < 0.9


def test_two_groups_are_covered_too():
    rng = np.random.default_rng(1)
    groups = rng.normal(0, 0.03, (STUDIES, 3)) + PLANTED, rng.normal(0, 0.01, (STUDIES, 6))
    found = [welch(run, reference) for run, reference in zip(*groups, strict=True)]
    assert 0.93 <= coverage((d.mean, d.half_width) for d in found) <= 0.97


@given(NUMBERS, NUMBERS)
def test_paired_is_scipys(one, other):
    number = min(len(one), len(other))
    run, reference = np.array(one[:number]), np.array(other[:number])
    found = paired(run, reference)
    if found.deviation < 1e-9:  # scipy divides by it
        return
    test = stats.ttest_rel(run, reference)
    low, high = test.confidence_interval(0.95)
    np.testing.assert_allclose([found.mean, found.half_width], [(low + high) / 2, (high - low) / 2])
    assert found.shown == (test.pvalue < 0.05)


@pytest.mark.filterwarnings("ignore:Precision loss")
@given(NUMBERS, NUMBERS)
def test_welch_is_scipys(one, other):
    run, reference = np.array(one), np.array(other)
    found = welch(run, reference)
    if found.deviation < 1e-9:
        return
    test = stats.ttest_ind(run, reference, equal_var=False)
    low, high = test.confidence_interval(0.95)
    np.testing.assert_allclose(found.mean - found.half_width, low, atol=1e-9)
    np.testing.assert_allclose(found.mean + found.half_width, high, atol=1e-9)


def test_equal_runs_are_the_same():
    values = by_seed([1.2, 1.3, 1.1])
    found = difference(values, dict(values))
    assert found.same
    assert not found.shown
    assert (found.mean, found.half_width) == (0, 0)


def test_a_planted_difference_is_found_and_another_noise_is_not():
    rng = np.random.default_rng(2)
    reference = 1 + rng.normal(0, 0.05, 5)
    noise = rng.normal(0, 0.001, 5)
    assert difference(by_seed(reference - 0.01 + noise), by_seed(reference)).shown
    assert not difference(by_seed(reference + noise), by_seed(reference)).shown


def test_only_seeds_that_both_have_are_paired():
    run, reference = by_seed([1.0, 1.2, 5.0]), by_seed([7.0, 1.1, 1.3, 5.2], first=-1)
    found = difference(run, reference)
    shared = paired(np.array([1.0, 1.2, 5.0]), np.array([1.1, 1.3, 5.2]))
    assert found == shared
    assert found.seeds == (3, 3)


def test_without_common_seeds_it_is_welchs():
    run, reference = by_seed([1.0, 1.2]), by_seed([1.1, 1.3, 1.4], first=10)
    found = difference(run, reference)
    assert found == welch(np.array([*run.values()]), np.array([*reference.values()]))
    assert found.method == "welch"


@pytest.mark.parametrize(
    ("run", "reference", "method"),
    [
        ({0: 1.0}, {0: 2.0}, "paired"),
        ({0: 1.0}, {5: 2.0}, "welch"),
        ({0: 1.0}, {0: 2.0, 1: 3.0}, "paired"),
        ({0: 1.0, 7: 1.0}, {0: 2.0}, "paired"),
    ],
)
def test_one_seed_has_no_interval(run, reference, method):
    found = difference(run, reference)
    assert found.half_width is None
    assert not found.shown
    assert found.method == method
    assert found.mean < 0


def test_nothing_is_no_difference():
    assert difference({}, {0: 1.0}) is None
    assert difference({0: 1.0}, {}) is None


def test_groups_without_spread_have_a_width_of_0():
    found = welch(np.ones(2), np.zeros(3))
    assert (found.mean, found.half_width, found.shown) == (1, 0, False)


@pytest.mark.parametrize(("mean", "deviation"), [(0.01, 0.01), (0.02, 0.01), (0.005, 0.01)])
def test_so_many_seeds_show_a_difference_in_80_of_100_studies(mean, deviation):
    """By simulation: with two fewer the power is below 0.8, with two more above."""
    rng, number = np.random.default_rng(3), seeds_needed(mean, deviation)

    def power(seeds):
        drawn = rng.normal(mean, deviation, (10_000, seeds))
        half = quantile(seeds - 1) * drawn.std(1, ddof=1) / np.sqrt(seeds)
        return np.mean(np.abs(drawn.mean(1)) > half)

    assert power(number - 2) < 0.8 < power(number + 2)


def test_seeds_of_two_groups_show_a_difference_in_80_of_100_studies():
    deviation = np.hypot(0.01, 0.02)
    number = seeds_needed(0.02, deviation, groups=2)
    rng = np.random.default_rng(4)
    run = rng.normal(0.02, 0.01, (1000, number))
    reference = rng.normal(0, 0.02, (1000, number))
    shown = [welch(a, b).shown for a, b in zip(run, reference, strict=True)]
    assert 0.75 < np.mean(shown) < 0.87


def test_more_seeds_than_anyone_has_are_not_counted():
    assert seeds_needed(0.0, 0.01) is None
    assert seeds_needed(1e-9, 0.01) is None
    assert 0.8 * MOST_SEEDS < seeds_needed(0.09, 1.0) <= MOST_SEEDS
    assert seeds_needed(1.0, 0.0) == 2


def test_the_spread_of_one_is_not_known():
    assert spread(np.array([1.0])) is None
    assert spread(np.array([1.0, 3.0])) == pytest.approx(np.sqrt(2))
