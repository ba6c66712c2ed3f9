"""Known cases: the same runs, a planted difference, how often intervals cover, what it takes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tlite.comparison.statistics import (
    EXAMPLES,
    SEEDS,
    Blocks,
    Difference,
    blocks,
    difference,
    holm,
    number_needed,
    quantile,
    ratio_by_example,
    variance,
)
from tlite.training.metrics import Examples

STUDIES, PLANTED = 600, -0.01
NUMBERS = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2, max_size=8)
OVER = {"seeds": (0.03, 0.0), "texts": (0.0, 0.5), "both": (0.03, 0.5)}


def by_seed(values, first=0):
    return dict(enumerate(map(float, values), first))


def coverage(tables, found):
    """The share of studies (K, S, N) whose interval holds the planted difference."""
    return np.mean(np.abs(tables.mean((-2, -1)) - PLANTED) <= found.half_width)


def drawn(rng, of_seed, of_text, seeds, texts, studies=STUDIES):
    """Differences (K, S, N): each is a seed's, a text's and their own."""
    own = 0.3 * rng.standard_normal((studies, seeds, texts), np.float32)
    of_seeds = of_seed * rng.standard_normal((studies, seeds, 1))
    return PLANTED + of_seeds + of_text * rng.standard_normal((studies, 1, texts)) + own


@pytest.mark.parametrize("texts", [200, 2000])
@pytest.mark.parametrize("seeds", [5, 10])
@pytest.mark.parametrize("over", OVER)
def test_the_interval_covers_the_difference_in_95_of_100_studies(over, seeds, texts):
    """With new seeds and texts in each; one of seeds alone holds only where texts say nothing."""
    tables = drawn(np.random.default_rng(0), *OVER[over], seeds, texts)
    assert 0.92 <= coverage(tables, variance(tables)) <= 0.98
    of_seeds = coverage(tables, variance(tables.mean(-1, keepdims=True)))
    assert (of_seeds >= 0.92) == (over == "seeds")


def right(rng, seeds, hard, wanders):
    """Whether classifiers have each text right (K, S, N), the texts of a model as hard as told."""
    studies, _, texts = hard.shape
    of_seed = 0.03 * rng.standard_normal((studies, seeds, 1))
    own = wanders * rng.standard_normal((studies, seeds, texts))
    return (hard + of_seed + own > 0).astype(np.float32)


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("shared", [True, False])
def test_classifiers_that_disagree_on_texts_are_covered(seeds, shared):
    """Two models that are equal on average, and find other texts hard."""
    rng = np.random.default_rng(1)
    own = rng.standard_normal((2, STUDIES, 1, 400))
    hard = 0.5 + (rng.standard_normal((STUDIES, 1, 400)) + 0.5 * own) / np.sqrt(1.25)
    run, reference = (right(rng, seeds, of_model, 0.3) for of_model in hard)
    found = variance(run - reference) if shared else variance(run, -reference)
    means = (run - reference).mean((-2, -1))
    assert 0.92 <= np.mean(np.abs(means) <= found.half_width) <= 0.98
    of_seeds = variance(*(side.mean(-1, keepdims=True) for side in (run, -reference)))
    assert np.mean(np.abs(means) <= of_seeds.half_width) < 0.92


@pytest.mark.parametrize("shared", [True, False])
def test_seeds_alone_make_no_difference_in_95_of_100_studies_on_new_texts(shared):
    """One model twice: under the same seeds with other noise, or under other seeds."""
    rng, shown = np.random.default_rng(2), 0
    for _ in range(400):
        hard = 0.5 + rng.standard_normal((1, 1, 300))
        sides = [right(rng, 5, hard, 0.5)[0] for _ in range(2)]
        values = by_seed(sides[0].mean(-1)), by_seed(sides[1].mean(-1), 0 if shared else 9)
        found = difference(*values, Blocks(*sides, 1.0))
        assert found.method == ("paired" if shared else "welch")
        shown += found.shown
    assert 0.02 <= shown / 400 <= 0.08


def test_one_part_alone_is_never_below_zero_nor_above_the_whole():
    tables = drawn(np.random.default_rng(4), 0.0, 0.0, 3, 20)
    found = variance(tables)
    assert (found.whole >= np.maximum(found.seeds, found.examples)).all()
    assert (found.freedom >= 2).all()
    same_for_all = np.zeros((3, 1)) + np.linspace(0, 1, 7)
    only_texts = variance(same_for_all)
    assert only_texts.seeds == pytest.approx(0)
    assert only_texts.half_width == pytest.approx(
        quantile(6) * same_for_all[0].std(ddof=1) / 7**0.5
    )


@pytest.mark.filterwarnings("ignore:Precision loss")
@pytest.mark.parametrize("method", ["paired", "welch"])
@given(one=NUMBERS, other=NUMBERS)
def test_an_interval_is_scipys(method, one, other):
    paired = method == "paired"
    if paired:
        one, other = zip(*zip(one, other, strict=False), strict=True)
    found = difference(by_seed(one), by_seed(other, first=0 if paired else 100))
    if not found.half_width:  # scipy divides by it
        return
    test = stats.ttest_rel(one, other) if paired else stats.ttest_ind(one, other, equal_var=False)
    ends = found.mean - found.half_width, found.mean + found.half_width
    atol = 0 if paired else 1e-9
    np.testing.assert_allclose(ends, test.confidence_interval(0.95), atol=atol)
    assert found.p == pytest.approx(test.pvalue)
    assert found.shown == (test.pvalue < 0.05)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_his_steps_do(p):
    rejected, left = set(), sorted(range(len(p)), key=lambda i: p[i])
    while left and p[left[0]] * len(left) < 0.05:
        rejected.add(left.pop(0))
    assert {i for i, value in enumerate(holm(p)) if value < 0.05} == rejected
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_where_both_have_most_of_the_seeds_these_are_paired():
    run, reference = by_seed([1.0, 1.2, 5.0]), by_seed([7.0, 1.1, 1.3, 5.2], first=-1)
    found = difference(run, reference)
    assert found == difference(run, by_seed([1.1, 1.3, 5.2]))
    assert (found.seeds, found.method) == ((3, 3), "paired")
    two_of_ten = difference(by_seed(range(10)), by_seed(range(10), first=8))
    assert (two_of_ten.seeds, two_of_ten.method) == ((10, 10), "welch")


@pytest.mark.parametrize(
    ("run", "reference", "method"),
    [([0], [0], "paired"), ([0], [5], "welch"), ([0], [0, 1], "paired"), ([0, 7], [0], "paired")],
)
def test_one_seed_has_no_interval(run, reference, method):
    found = difference(dict.fromkeys(run, 1.0), dict.fromkeys(reference, 2.0))
    assert (found.half_width, found.parts, found.shown) == (None, (None, None), False)
    assert (found.mean, found.method) == (-1, method)


def test_of_one_seed_the_part_of_texts_is_known():
    rng = np.random.default_rng(6)
    one, other = rng.standard_normal((2, 1, 50))
    found = difference({0: one.mean()}, {0: other.mean()}, Blocks(one, other, 1.0))
    assert found.half_width is None
    (interval,) = stats.ttest_1samp(one[0] - other[0], 0).confidence_interval()[1:]
    assert found.mean + found.parts[1] == pytest.approx(interval)


def test_tables_are_paired_by_seed():
    rng = np.random.default_rng(7)
    one, other = rng.standard_normal((4, 30)), rng.standard_normal((3, 30))
    values = by_seed(one.mean(1)), by_seed(other.mean(1), first=1)
    found = difference(*values, Blocks(one, other, 1.0))
    expected = variance(one[1:] - other)
    assert found.half_width == pytest.approx(expected.half_width)
    assert (found.seeds, found.examples) == ((3, 3), 30)


def test_nothing_is_no_difference_and_without_spread_none_is_shown():
    assert difference({}, {0: 1.0}) is difference({0: 1.0}, {}) is None
    found = difference(by_seed([1.2, 1.3]), by_seed([1.2, 1.3]))
    assert (found.same, found.mean, found.half_width, found.shown) == (True, 0, 0, False)
    found = difference(by_seed([1, 1]), by_seed([0, 0, 0], first=5))
    assert (found.mean, found.half_width, found.shown) == (1, 0, False)


@pytest.mark.parametrize(("mean", "deviation"), [(0.01, 0.01), (0.02, 0.01), (0.005, 0.01)])
def test_so_many_seeds_show_a_difference_in_80_of_100_studies(mean, deviation):
    """By simulation: with two fewer the power is below 0.8, with two more above."""
    rng, number = np.random.default_rng(3), number_needed(mean, deviation**2)

    def power(seeds):
        drawn = rng.normal(mean, deviation, (10_000, seeds, 1))
        return np.mean(np.abs(drawn.mean((1, 2))) > variance(drawn).half_width)

    assert power(number - 2) < 0.8 < power(number + 2)


def test_seeds_of_two_groups_show_a_difference_in_80_of_100_studies():
    rng = np.random.default_rng(4)
    number = number_needed(0.02, 0.01**2 + 0.02**2, groups=2)
    run = rng.normal(0.02, 0.01, (1000, number, 1))
    reference = rng.normal(0, 0.02, (1000, number, 1))
    means = run.mean((1, 2)) - reference.mean((1, 2))
    assert 0.75 < np.mean(np.abs(means) > variance(run, -reference).half_width) < 0.87


@pytest.mark.parametrize("what", ["seeds", "texts"])
def test_so_many_seeds_or_texts_show_it_where_both_vary(what):
    """Advised by a large study, tried in many with so many of one and as many of the other."""
    rng, of_seed, of_text = np.random.default_rng(8), 0.03, 0.3
    mean = 0.045
    (table,) = drawn(rng, of_seed, of_text, 40, 600, studies=1)
    found = Difference(mean, variance(table), (40, 40), examples=600)
    number = found.needed if what == "seeds" else found.examples_needed
    size = (number, 600) if what == "seeds" else (40, number)
    tables = drawn(rng, of_seed, of_text, *size) - PLANTED + mean
    shown = np.abs(tables.mean((1, 2))) > variance(tables).half_width
    assert 0.7 < shown.mean() < 0.9


def test_more_seeds_than_anyone_has_are_not_counted():
    assert number_needed(0.0, 1e-4) is None
    assert number_needed(1e-9, 1e-4) is None
    assert 0.8 * SEEDS[-1] < number_needed(0.09, 1.0) <= SEEDS[-1]
    assert number_needed(1.0, 0.0) == 2
    assert number_needed(0.1, 1.0, EXAMPLES, fixed=0.01, fixed_freedom=4) is None


# What each example has to do with a measure


def examples(rng, count):
    count = np.asarray(count, float)
    return Examples(40, count, {"loss": count * (1.5 + 0.1 * rng.standard_normal((3, len(count))))})


@pytest.mark.parametrize("of_a_text", [True, False])
def test_a_table_has_the_mean_of_the_measure_of_each_seed(of_a_text):
    """Whatever the examples count: the last window of a text less than the others."""
    rng = np.random.default_rng(0)
    one, other = (examples(rng, [8.0] * 90 + [3.0]) for _ in range(2))
    found = blocks(one, other, "loss", of_a_text=of_a_text)
    for table, made_of in zip(found[:2], (one, other), strict=True):
        ratio = made_of.sums["loss"].sum(1) / made_of.count.sum()
        np.testing.assert_allclose(table.mean(1), ratio)
        assert table.shape == (3, 10 if of_a_text else 91)


def test_a_ratio_is_as_uncertain_as_new_examples_make_it():
    """By its spread over many studies with lengths and losses of their own."""
    rng, ratios, told = np.random.default_rng(1), [], []
    for _ in range(1000):
        count = rng.integers(1, 30, 200).astype(float)
        sums = count * (2 - count / 30 + 0.3 * rng.standard_normal((1, 200)))
        ratios.append(sums.sum() / count.sum())
        told.append(variance(ratio_by_example(sums, count)).examples)
    assert np.mean(told) == pytest.approx(np.var(ratios), rel=0.1)


def test_windows_that_go_on_in_the_next_are_covered_by_blocks():
    """A text whose windows resemble their neighbours: one by one they promise too much."""
    rng, studies, windows, covered = np.random.default_rng(2), 300, 900, np.zeros(2)
    noise, of_text = rng.standard_normal((windows, studies)), np.zeros((windows, studies))
    for place in range(1, windows):
        of_text[place] = 0.7 * of_text[place - 1] + noise[place]
    for text in of_text.T:
        seen = 32 * (text + 0.5 * rng.standard_normal((4, windows)))
        of_run = Examples(1, np.full(windows, 32.0), {"loss": seen})
        of_other = of_run._replace(sums={"loss": np.zeros((4, windows))})
        for kind, of_a_text in enumerate((True, False)):
            one, other, _ = blocks(of_run, of_other, "loss", of_a_text=of_a_text)
            covered[kind] += abs((one - other).mean()) <= variance(one - other).half_width
    assert 0.91 <= covered[0] / studies <= 0.98
    assert covered[1] / studies < 0.7


def test_other_contexts_are_cut_at_the_same_places_of_the_text():
    rng = np.random.default_rng(3)
    of_tokens = rng.standard_normal((2, 6400)) + np.sin(np.arange(6400) / 300)
    runs = [
        Examples(1, np.full(6400 // context, float(context)), {"loss": cut.sum(-1)})
        for context in (16, 32)
        for cut in [of_tokens.reshape(2, -1, context)]
    ]
    one, other, size = blocks(*runs, "loss", of_a_text=True)
    assert (one.shape, size) == ((2, 14), 400 / 14)
    assert np.corrcoef(one[0], other[0])[0, 1] > 0.98
    small = [Examples(1, run.count[:7], {"loss": run.sums["loss"][:, :7]}) for run in runs]
    assert blocks(small[0], small[0], "loss", of_a_text=True).run.shape == (2, 7)


def test_other_tokens_are_cut_at_the_same_places_of_the_text_by_bytes():
    """Of 1 to 3 bytes, and of single ones; the first token of each is not predicted."""
    rng, runs = np.random.default_rng(5), []
    of_bytes = 1 + rng.random(6403) + np.sin(np.arange(6403) / 300)
    for sizes, number in ((np.ones(6403, int), 6400), (np.tile([3, 1, 2], 1067), 3192)):
        nats = np.add.reduceat(of_bytes[: sizes.sum()], sizes.cumsum() - sizes)
        of_windows = (a[1 : number + 1].reshape(1, -1, 8).sum(-1) for a in (nats, 1.0 * sizes))
        sums = dict(zip(("loss", "bytes"), of_windows, strict=True))
        runs.append(Examples(1, np.full(number // 8, 8.0), sums))
    found = blocks(*runs, "bits_per_byte", of_a_text=True)
    for run, table in zip(runs, found[:2], strict=True):
        bits = run.sums["loss"].sum() / np.log(2) / run.sums["bytes"].sum()
        assert table.mean() == pytest.approx(bits)
    assert np.corrcoef(found.run[0], found.reference[0])[0, 1] > 0.98


def test_what_is_not_the_same_has_no_table():
    rng = np.random.default_rng(4)
    one, other = examples(rng, [4.0, 5, 6, 7]), examples(rng, [4.0, 5, 6, 8])
    assert blocks(one, one, "bleu", of_a_text=False) is None
    for of_a_text in (True, False):
        assert blocks(one, other, "loss", of_a_text=of_a_text) is None
        single = examples(rng, [4.0])
        assert blocks(single, single, "loss", of_a_text=of_a_text) is None
