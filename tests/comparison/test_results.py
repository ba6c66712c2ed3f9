"""Conclusions state differences with their intervals, notes the limits of a comparison."""

import dataclasses
import re

import numpy as np
import pytest

from tests.helpers.fake_runs import CLASSIFIER, GENERATOR, MASKED, TRANSLATOR, fake_run, fake_study
from tests.helpers.runs import varied
from tlite.comparison.comparable import METRICS
from tlite.comparison.results import compare_runs, decimals
from tlite.comparison.statistics import difference
from tlite.comparison.summaries import common_steps, read_summaries
from tlite.comparison.tables import result_table
from tlite.training.metrics import save_example_scores

FIVE, ONE = varied(GENERATOR, seeds=5), varied(GENERATOR, seeds=1)
OTHER_SEEDS, CLASSIFIERS = varied(FIVE, seed=10, seeds=3), varied(CLASSIFIER, seeds=5)
BASE = np.array([1.50, 1.60, 1.55, 1.58, 1.52])
NOISE = np.array([0.01, -0.01, 0.02, -0.02, 0.0])


def results(tmp_path, *runs):
    """Compare runs of (name, experiment, final values)."""
    return compare_runs([fake_run(tmp_path / name, *run) for name, *run in runs])


def has_pattern(text, pattern):
    """Return whether `text` is the pattern, with anything in place of each ellipsis."""
    return re.fullmatch(re.escape(pattern).replace(r"\.\.\.", ".*"), text)


NO_CI = "no CI over seeds: two seeds of each are needed"
FEW = "worse, difference +0.200 nats, 95 % CI [...] (3 and 5 seeds)"
UNPAIRED = "worse, difference +0.200 nats, 95 % CI [0.145, 0.255] (5 and 5 seeds)"
POINTS = "better, difference +5.0 points, 95 % CI [3.0, 7.0] (5 paired seeds)"
PAIRED = [  # scores of five seeds, compared with BASE
    (BASE - 0.03 + 0.1 * NOISE, "better, difference -0.0300 nats, 95 % CI [-0.0320, -0.0280]"),
    (BASE + 0.05 + NOISE, "worse, difference +0.050 nats, 95 % CI [0.030, 0.070]"),
    (BASE - 0.005 + NOISE, "not significant, difference -0.005 nats, 95 % CI [-0.025, 0.015]"),
    (BASE, "identical scores"),
    # An interval without a width is no proof.
    (BASE + 0.1, "difference +0.1000 nats with every seed, no CI"),
]
CONCLUSIONS = [
    *((FIVE, BASE, FIVE, scores, f"{sentence} (5 paired seeds)") for scores, sentence in PAIRED),
    (FIVE, BASE, OTHER_SEEDS, BASE[:3] + 0.2, FEW),
    # Arrays of other shapes have other initial values with the same seed.
    (FIVE, BASE, varied(FIVE, width=16), BASE + 0.2 + NOISE, UNPAIRED),
    (ONE, [1.5], ONE, [1.5], "identical scores (1 seed)"),
    (ONE, [1.5], ONE, [1.4], f"difference -0.1000 nats, {NO_CI} (1 seed)"),
    (ONE, [1.5], varied(ONE, seed=3), [1.4], f"difference -0.1000 nats, {NO_CI} (1 and 1 seeds)"),
    (CLASSIFIERS, BASE - 1, CLASSIFIERS, BASE - 0.95 + NOISE, POINTS),
]


@pytest.mark.parametrize(("reference", "base", "experiment", "scores", "sentence"), CONCLUSIONS)
def test_conclusions_over_seeds(tmp_path, reference, base, experiment, scores, sentence):
    result = results(tmp_path, ("a", reference, base), ("b", experiment, scores))
    (conclusion,) = result.conclusions
    assert has_pattern(conclusion, f"b vs a: {sentence}")


def test_common_seeds_are_compared_and_all_are_in_the_mean(tmp_path):
    three = varied(FIVE, seeds=3)
    result = results(tmp_path, ("a", FIVE, BASE), ("b", three, BASE[:3] + 0.1 + NOISE[:3]))
    assert result.conclusions[0].endswith(" (3 paired seeds)")
    assert result.differences[1].mean == pytest.approx(0.1 + NOISE[:3].mean())
    assert result_table(result)[1][1] == "1.550 (0.041)"


def test_holms_correction_decides_among_several_differences(tmp_path):
    """The same difference is significant alone, but not among three."""
    runs = [("a", FIVE, BASE)]
    runs += [(name, FIVE, BASE + 0.021 + NOISE * sign) for name, sign in [("b", 1), ("c", -1)]]
    runs += [("far", FIVE, BASE + 0.2 + NOISE)]
    result = results(tmp_path, *runs)
    assert [difference.p < 0.05 for difference in result.differences[1:]] == [True, True, True]
    assert [d.significant for d in result.differences[1:]] == [False, False, True]
    assert "b vs a: not significant" in result.conclusions[0]
    assert "p 0.082 (Holm)" in result.conclusions[0]
    header, *rows = result_table(result)
    assert [row[header.index("p (Holm)")] for row in rows][:3] == ["–", "0.082", "0.082"]
    alone = results(tmp_path / "two", *runs[:2])
    assert alone.differences[1].significant
    assert "p (Holm)" not in result_table(alone)[0]


INTERVALS = [  # experiment, standard deviation of a run's own text noise, shift of b
    (
        "b vs a: better, difference +30.3 points, 95 % CI [23.3, 37.2] (5 paired seeds, 400 texts)",
        (CLASSIFIERS, 0.5, 0.3),
    ),
    (  # a difference that five seeds show on these texts may be absent on others
        "b vs a: not significant, difference +4.3 points, 95 % CI [-2.7, 11.2] ...",
        (CLASSIFIERS, 0.5, 0.04),
    ),
    (
        "b vs a: worse, difference ... nats, 95 % CI [...] (5 and 5 seeds, 20 blocks)",
        (varied(FIVE, seed=20), 0.1, 0.5),
    ),
    (
        "b vs a: worse, difference ... nats, 95 % CI [...] (5 paired seeds, 20 blocks)",
        (varied(MASKED, seeds=5), 0.1, 0.5),
    ),
    (
        "b vs a: better, difference ... BLEU, 95 % CI [...] (5 paired seeds, 400 pairs)",
        (varied(TRANSLATOR, seeds=5), 0.1, 0.5),
    ),
    (
        f"b vs a: difference ..., {NO_CI}; with these seeds 95 % CI [...] (1 seed, 400 texts)",
        (varied(CLASSIFIER, seeds=1), 0.5, 0.3),
    ),
]


@pytest.mark.parametrize(("sentence", "case"), INTERVALS)
def test_intervals_are_for_new_examples_if_each_is_known(tmp_path, sentence, case):
    (experiment, text_std, shift), rng, folders = case, np.random.default_rng(0), []
    difficulty = rng.standard_normal(400)
    for name, by, seed in (("a", 0.0, 0), ("b", shift, experiment.training.seed)):
        texts = difficulty + text_std * rng.standard_normal(400) + by
        scores = 3 + texts + 0.01 * rng.standard_normal((experiment.training.seeds, 400))
        scores += 0.005 * rng.standard_normal((len(scores), 1))
        folders.append(fake_run(tmp_path / name, varied(experiment, seed=seed), examples=scores))
    assert has_pattern(compare_runs(folders).conclusions[0], sentence)


@pytest.mark.parametrize(("number", "step"), [(50, 30), (60, 40), (0, 0)])
def test_examples_of_other_steps_or_damaged_files_are_ignored(tmp_path, number, step):
    experiment, rng = varied(CLASSIFIER, seeds=2), np.random.default_rng(0)
    runs = [
        fake_run(tmp_path / name, experiment, examples=rng.random((2, 50))) for name in ("a", "b")
    ]
    before, path = compare_runs(runs).differences[1], runs[1] / "examples.npz"
    assert before.examples == 50
    if number:
        sums = {"accuracy": rng.random((2, number)), "count": np.ones((2, number))}
        save_example_scores(runs[1], step, sums)
    else:
        path.write_bytes(path.read_bytes()[:900] + b"?" * 20 + path.read_bytes()[920:])
    after = compare_runs(runs)
    assert (after.differences[1].examples, after.differences[1].mean) == (0, before.mean)
    assert "95 % CI: for new seeds and the same texts" in after.notes


def test_a_noisier_curve_is_not_better_by_its_best_step(tmp_path):
    """Two equal variants, one with a noisier curve: "better" in 1 of 40 studies, not in 11."""
    rng, experiment, studies = np.random.default_rng(5), varied(GENERATOR, steps=200, seeds=5), 200
    (run,), better = read_summaries([fake_run(tmp_path / "run", experiment)])[0], 0
    for _ in range(studies):
        runs = []
        for noise in (0.01, 0.03):
            curve = 1 + noise * rng.standard_normal((20, 5))
            lines = {10 * i: {"loss_replicas": [*v]} for i, v in enumerate(curve, 1)}
            runs.append(dataclasses.replace(run, validations=lines))
        steps = common_steps(*runs)
        values = [r.values(METRICS["loss"], step) for r, step in zip(runs, steps, strict=True)]
        result = difference(values[1], values[0])
        better += result.significant and result.mean < 0
    assert better / studies < 0.055


def test_fewer_than_five_seeds_give_a_warning(tmp_path):
    for seeds in (3, 5):
        one, base = varied(FIVE, seeds=seeds), BASE[:seeds]
        runs = ("a", one, base), ("b", one, base + NOISE[:seeds])
        notes = " ".join(results(tmp_path / str(seeds), *runs).notes)
        assert ("fewer than 5 seeds" in notes) == (seeds == 3)


def test_a_single_run_has_no_conclusion(tmp_path):
    result = results(tmp_path, ("a", FIVE, BASE))
    assert (result.conclusions, result.notes, result.fields) == ([], [], {})
    assert result.differences == [None]


def test_unfinished_runs_are_noted_and_compared_at_a_common_step(tmp_path):
    stops = {"a": None, "b": 25, "c": 5}
    folders = [fake_run(tmp_path / name, FIVE, BASE, until=step) for name, step in stops.items()]
    result = compare_runs(folders)
    assert "b is at step 25" in result.notes[0]
    assert "c is at step 5" in result.notes[1]
    assert "at step 20" in result.notes[2]
    assert result.conclusions == [
        "b vs a: identical scores (5 paired seeds)",
        "c vs a: not comparable yet, c has no value",
    ]
    every_15 = fake_run(tmp_path / "15", varied(FIVE, evaluate_every=15), BASE, until=20)
    (conclusion,) = compare_runs([folders[1], every_15]).conclusions
    assert "no validation at the same step" in conclusion
    longer = fake_run(tmp_path / "longer", varied(FIVE, steps=60), BASE)
    assert (
        "at the last validations that both runs have" in compare_runs([folders[0], longer]).notes[0]
    )


def test_a_diverged_seed_is_a_failure_of_its_variant(tmp_path):
    """It is worse than variants that have not failed, not a missing value."""
    study = tmp_path / "s"
    fake_run(study / "base", FIVE, BASE)
    final = np.where(np.arange(5) == 3, np.nan, BASE)
    fake_run(study / "high", varied(FIVE, learning_rate=1.0), final)
    fake_run(study / "large", FIVE, BASE - 0.1)
    variants = {"base": "base", "high": "high", "large": "large"}
    fake_study(study, variants, ["higher"], {"large": "no memory"})
    result = compare_runs([study])
    assert result.notes == [
        "higher failed: it was not finite",
        "high failed: the training loss of seed 3 is not finite at step 1",
        "large failed: no memory",
    ]
    assert result.conclusions == [
        "high vs base: worse, it failed (1 of 5 seeds)",
        "large vs base: worse, it failed",
    ]
    assert [row[1] for row in result_table(result)[2:]] == ["failed", "failed"]
    reordered = compare_runs([study / "high", study / "base", study / "large"])
    assert reordered.conclusions[0] == result.conclusions[0]
    assert reordered.conclusions[1].startswith("large vs base: difference -0.1000 nats")
    both = compare_runs([study / "high", study / "high"])
    assert both.conclusions == ["high vs high: both failed"]


def test_a_run_without_the_measure_is_noted(tmp_path):
    runs = [
        fake_run(tmp_path / "a", FIVE, BASE, others=["bits_per_byte"]),
        fake_run(tmp_path / "b", FIVE, BASE, tokens="u"),
    ]
    result = compare_runs(runs)
    assert "b has no bits per byte in its validations" in result.notes
    assert [*result.runs[0].values(result.metric).values()] == pytest.approx(BASE)


def test_numbers_have_two_digits_of_the_middle_error():
    assert [decimals([error]) for error in (0.00456, 45.6, None, 0.0, 1e-12)] == [4, 0, 4, 4, 6]
    assert decimals([None, 0.5, 0.05, 5e-3]) == 3
