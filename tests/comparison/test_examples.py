"""Tables of what each example has to do with a measure: their means, blocks, and what has none."""

import numpy as np
import pytest

from tlite.comparison.examples import blocks, ratio_by_example
from tlite.comparison.statistics import variance
from tlite.training.examples import Examples


def examples(rng, count, seeds=3, step=40):
    count = np.asarray(count, float)
    losses = count * (1.5 + 0.1 * rng.standard_normal((seeds, len(count))))
    return Examples(step, count, {"loss": losses})


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
