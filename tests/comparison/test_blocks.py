"""Tables of scores by example keep the means, and blocks of windows are long enough."""

import numpy as np
import pytest

from experiments.tools.coverage import TEXTS, autoregressive, text_coverage
from tlite.comparison.blocks import (
    PairedScores,
    block_length,
    in_blocks,
    num_blocks,
    pair_scores,
    ratio_by_example,
)
from tlite.comparison.statistics import difference, variance
from tlite.text.subwords import bleu_by_sentence
from tlite.training.metrics import ExampleScores


def examples(rng, count):
    """Return loss sums of three seeds for examples of `count` tokens."""
    count = np.asarray(count, float)
    sums = count * (1.5 + 0.1 * rng.standard_normal((3, len(count))))
    return ExampleScores(40, count, {"loss": sums})


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_table_has_the_mean_of_the_measure_of_each_seed(contiguous):
    rng = np.random.default_rng(0)
    runs = [examples(rng, [8.0] * 90 + [3.0]) for _ in range(2)]  # a shorter last window
    tables = pair_scores(*runs, "loss", contiguous=contiguous)[:2]
    for table, run in zip(tables, runs, strict=True):
        ratio = run.sums["loss"].sum(1) / run.count.sum()
        np.testing.assert_allclose(table.mean(1), ratio)
        assert table.shape == (3, 10 if contiguous else 91)


def test_a_ratio_is_as_uncertain_as_new_examples_make_it():
    """Compare its variance with that over many studies of other lengths and losses."""
    rng, ratios, variances = np.random.default_rng(1), [], []
    for _ in range(1000):
        count = rng.integers(1, 30, 200).astype(float)
        sums = count * (2 - count / 30 + 0.3 * rng.standard_normal((1, 200)))
        ratios.append(sums.sum() / count.sum())
        variances.append(variance(ratio_by_example(sums, count)).examples)
    assert np.mean(variances) == pytest.approx(np.var(ratios), rel=0.1)


def bleu_scores(rng, seeds, difficulty, ease):
    """Return scores (S, N) of sentences of 3 to 12 words, of which translations lack up to one."""
    number = len(difficulty)
    lengths = np.random.default_rng(0).integers(3, 13, number)
    present = lengths - (rng.random((seeds, number)) < 0.4)
    seed_noise = 0.03 * rng.standard_normal((seeds, 1))
    share = 1 / (1 + np.exp(-(ease + difficulty + seed_noise)))[..., None]
    is_right = (rng.random((seeds, number, 12)) < share) & (np.arange(12) < present[..., None])
    windows = [np.lib.stride_tricks.sliding_window_view(is_right, k, -1) for k in range(1, 5)]
    matches = [window.all(-1).sum(-1) for window in windows]
    totals = [np.maximum(present - k, 0) for k in range(4)]
    references = np.broadcast_to(lengths, present.shape)
    statistics = np.stack([present, references, *matches, *totals], -1).astype(float)
    return np.stack([*map(bleu_by_sentence, statistics)])


def test_intervals_of_bleu_cover_over_seeds_and_sentences():
    """The linearised scores have the variance of a bootstrap over sentences."""
    pytest.importorskip("sacrebleu")
    rng, studies, covered = np.random.default_rng(0), 200, 0
    ease = 0.8, 1.0
    population = np.random.default_rng(1).standard_normal(20_000)
    truth = np.subtract(*(bleu_scores(rng, 20, population, e).mean() for e in ease))
    for _ in range(studies):
        difficulty = rng.standard_normal(150)
        one, other = (bleu_scores(rng, 10, difficulty, e) for e in ease)
        by_seed = (dict(enumerate(scores.mean(1))) for scores in (one, other))
        result = difference(*by_seed, PairedScores(one, other, 1.0), paired=False)
        covered += abs(result.mean - truth) <= result.half_width
    assert 0.92 <= covered / studies <= 0.985


LEAST = {
    "independent": 0.93, "AR(1) 0.7": 0.91, "AR(1) 0.95": 0.88, "scenes of 30 windows": 0.88,
}  # fmt: skip


@pytest.mark.parametrize("name", LEAST)
def test_blocks_cover_texts_whose_windows_are_correlated(name):
    """Square-root blocks cover 82 % of AR(1) 0.95 and 72 % of scenes of 30 windows."""
    covered, _ = text_coverage(TEXTS[name], 676, studies=300)
    assert LEAST[name] <= covered <= 0.985


@pytest.mark.parametrize("correlation", [0.3, 0.7])
def test_the_block_length_of_ar1_scores_is_the_optimal_one(correlation):
    """An AR(1) process has G / g = 2 c / (1 - c^2)."""
    rng, draw, windows = np.random.default_rng(2), autoregressive(correlation), 20_000
    optimal = (2 * correlation / (1 - correlation**2)) ** (2 / 3) * windows ** (1 / 3)
    length = np.median([block_length(draw(rng, windows)) for _ in range(9)])
    assert length == pytest.approx(optimal, rel=0.2)


@pytest.mark.parametrize("windows", [2, 3, 9, 50])
def test_few_or_equal_windows_have_two_blocks_or_more(windows):
    for scores in (np.zeros(windows), np.arange(windows), np.arange(windows) % 2):
        assert 2 <= num_blocks(scores.astype(float)) <= max(windows, 2)


def test_the_middle_of_a_window_decides_its_block():
    sums, count = np.array([[1.0, 2.0, 4.0]]), np.array([3.0, 3.0, 3.0])
    expected = ratio_by_example(np.array([[1.0, 6.0]]), np.array([3.0, 6.0]))
    np.testing.assert_allclose(in_blocks(sums, count, 2), expected)


def test_other_contexts_are_cut_at_the_same_positions():
    rng, runs = np.random.default_rng(3), []
    losses = rng.standard_normal((2, 6400)) + np.sin(np.arange(6400) / 300)
    for context in (16, 32):
        sums = {"loss": losses.reshape(2, -1, context).sum(-1)}
        runs.append(ExampleScores(1, np.full(6400 // context, float(context)), sums))
    one, other, block = pair_scores(*runs, "loss", contiguous=True)
    assert one.shape == other.shape == (2, 14)
    assert block == 400 / 14
    assert np.corrcoef(one[0], other[0])[0, 1] > 0.98


def test_other_tokens_are_cut_at_the_same_bytes():
    """Compare tokens of one byte with tokens of 1 to 3; the first token is not predicted."""
    rng, runs = np.random.default_rng(5), []
    byte_losses = 1 + rng.random(6403) + np.sin(np.arange(6403) / 300)
    for sizes, number in ((np.ones(6403, int), 6400), (np.tile([3, 1, 2], 1067), 3192)):
        nats = np.add.reduceat(byte_losses[: sizes.sum()], sizes.cumsum() - sizes)
        windows = (a[1 : number + 1].reshape(1, -1, 8).sum(-1) for a in (nats, 1.0 * sizes))
        sums = dict(zip(("loss", "bytes"), windows, strict=True))
        runs.append(ExampleScores(1, np.full(number // 8, 8.0), sums))
    table = pair_scores(*runs, "bits_per_byte", contiguous=True)
    for run, values in zip(runs, table[:2], strict=True):
        bits = run.sums["loss"].sum() / np.log(2) / run.sums["bytes"].sum()
        assert values.mean() == pytest.approx(bits)
    assert np.corrcoef(table.run[0], table.reference[0])[0, 1] > 0.98


def test_runs_with_other_measures_or_examples_have_no_table():
    rng = np.random.default_rng(4)
    one, other = examples(rng, [4.0, 5, 6, 7]), examples(rng, [4.0, 5, 6, 8])
    single = examples(rng, [4.0])
    assert pair_scores(one, other, "loss", contiguous=False) is None
    for contiguous in (True, False):
        assert pair_scores(one, one, "bleu", contiguous=contiguous) is None
        assert pair_scores(single, single, "loss", contiguous=contiguous) is None
