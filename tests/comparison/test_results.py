"""The sentences: better or worse, by how much, how sure, and what is to be kept in mind."""

import dataclasses
import re

import numpy as np
import pytest

from tests.helpers.fake_runs import CLASSIFIER, GENERATOR, fake_run, fake_study, varied
from tlite.comparison.comparable import MEASURES
from tlite.comparison.results import decimals, find_results
from tlite.comparison.rows import common_steps, read_rows
from tlite.comparison.statistics import difference
from tlite.comparison.tables import result_table
from tlite.training.metrics import save_example_scores

FIVE, ONE = varied(GENERATOR, seeds=5), varied(GENERATOR, seeds=1)
LATER, OF_TEXTS = varied(FIVE, seed=10, seeds=3), varied(CLASSIFIER, seeds=5)
BASE = np.array([1.50, 1.60, 1.55, 1.58, 1.52])
NOISE = np.array([0.01, -0.01, 0.02, -0.02, 0.0])


def results(tmp_path, *runs):
    """Of (name, experiment, final values)."""
    return find_results([fake_run(tmp_path / name, *run) for name, *run in runs])


ON_THESE = "(over seeds, on these texts) nats"
FIVE_SEEDS = "5 paired seeds (correlation 0.93)"
OF_BASE = {
    f"b is 0.0300 ± 0.0020 {ON_THESE} better than a, 5 paired seeds (correlation 1.00)": (
        BASE - 0.03 + 0.1 * NOISE
    ),
    f"b is 0.050 ± 0.020 {ON_THESE} worse than a, {FIVE_SEEDS}": BASE + 0.05 + NOISE,
    f"b and a: no significant difference (0.005 ± 0.020 {ON_THESE} better), {FIVE_SEEDS}": (
        BASE - 0.005 + NOISE
    ),
    "b and a: the same numbers, 5 seeds": BASE,
    # An interval without a width is no proof.
    "b is 0.1000 nats worse than a with each of 5 seeds: no interval": BASE + 0.1,
    "b and a: no significant difference (0...": BASE + NOISE,
}
OTHERS = {
    # Of accuracy more is better, and it is in points.
    f"b is 5.0 ± 2.0 (over seeds, on these texts) points better than a, {FIVE_SEEDS}": (
        (OF_TEXTS, BASE - 1),
        (OF_TEXTS, BASE - 0.95 + NOISE),
    ),
    "b and a: the same numbers, 1 seed": ((ONE, [1.0]), (ONE, [1.0])),
    "b is 0.1000 nats better than a with the one seed that both have: two seeds of each are needed "
    "for an interval": ((ONE, [1.5]), (ONE, [1.4])),
    "b is ... than a with other seeds: ...": ((ONE, [1.5]), (varied(ONE, seed=3), [1.4])),
    "b is 0.200 ± 0.0... worse than a, 3 and 5 seeds, not paired": (
        (FIVE, BASE),
        (LATER, BASE[:3] + 0.2),
    ),
    # Other arrays draw other initial values from the same seed.
    "b is 0.200 ± 0.055 ... worse than a, 5 and 5 seeds, not paired (correlation 0.93)": (
        (FIVE, BASE),
        (varied(FIVE, {"width": 16}), BASE + 0.2 + NOISE),
    ),
}
SENTENCES = {said: ((FIVE, BASE), (FIVE, final)) for said, final in OF_BASE.items()} | OTHERS


def matches(sentence, told):
    """Whether it is what was told, with anything in place of each ellipsis."""
    return re.fullmatch(re.escape(sentence).replace(r"\.\.\.", ".*"), told)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence(tmp_path, sentence):
    reference, run = SENTENCES[sentence]
    (told,) = results(tmp_path, ("a", *reference), ("b", *run)).verdicts
    assert matches(sentence, told)


def test_common_seeds_are_compared_and_all_are_in_the_mean(tmp_path):
    three = varied(FIVE, seeds=3)
    found = results(tmp_path, ("a", FIVE, BASE), ("b", three, BASE[:3] + 0.1 + NOISE[:3]))
    assert ", 3 paired seeds (" in found.verdicts[0]
    assert found.differences[1].mean == pytest.approx(0.1 + NOISE[:3].mean())
    assert result_table(found)[1][1] == "1.550 (0.041)"


def test_of_several_holms_correction_decides(tmp_path):
    """What one comparison would show is not shown among three, and the table says so."""
    runs = [("a", FIVE, BASE)]
    runs += [(name, FIVE, BASE + 0.021 + NOISE * sign) for name, sign in [("b", 1), ("c", -1)]]
    runs += [("far", FIVE, BASE + 0.2 + NOISE)]
    found = results(tmp_path, *runs)
    assert [by.p < 0.05 for by in found.differences[1:]] == [True, True, True]
    assert [by.significant for by in found.differences[1:]] == [False, False, True]
    assert found.verdicts[0].startswith("b and a: no significant difference (0.021 ± ")
    assert "worse, p 0.082 by Holm)" in found.verdicts[0]
    assert "p is Holm's, of 3 differences" in found.notes[1]
    header, *rows = result_table(found)
    assert [row[header.index("p (Holm)")] for row in rows][:3] == ["–", "0.082", "0.082"]
    alone = results(tmp_path / "two", *runs[:2])
    assert alone.differences[1].significant
    assert len(alone.notes) == 1
    assert "p (Holm)" not in result_table(alone)[0]


OF_EXAMPLES = {  # how texts differ by run, and how far apart the runs are
    "b is 30.3 ± 7.0 (seeds 1.1, texts 6.9) points better than a, 5 paired seeds (correlation 0.05)"
    ", 400 texts": (varied(CLASSIFIER, seeds=5), 0.5, 0.3),
    # A difference that five seeds show on these texts may be absent on others.
    "b and a: no significant difference (4.3 ± 7.0 (seeds 1.1, texts 6.9) points better), 5 paired "
    "seeds (correlation 0.05), 400 texts": (varied(CLASSIFIER, seeds=5), 0.5, 0.04),
    "b is ... (seeds 0.0..., text 0.0...) nats worse than a, 5 and 5 seeds, not paired, "
    "20 blocks of 20 windows": (varied(FIVE, seed=20), 0.1, 0.5),
    "b is ... than a with the one seed that both have: two seeds of each are needed for an interval"
    " (for new texts ± 7..., with these seeds)": (varied(CLASSIFIER, seeds=1), 0.5, 0.3),
    "b is ... than a with the one seed that both have: two seeds of each are needed for an interval"
    " (for new stretches of text like this one ± ..., with these seeds)": (ONE, 0.1, 0.5),
}


@pytest.mark.parametrize("sentence", OF_EXAMPLES)
def test_intervals_are_for_new_examples_where_each_is_known(tmp_path, sentence):
    """Of two runs that find the same 400 hard, each some of its `own` more."""
    experiment, own, by = OF_EXAMPLES[sentence]
    rng, folders, seeds = np.random.default_rng(0), [], experiment.training.seeds
    hard = rng.standard_normal(400)
    for name, shift, seed in (("a", 0.0, 0), ("b", by, experiment.training.seed)):
        of_text = hard + own * rng.standard_normal(400) + shift
        of_all = 3 + of_text + 0.01 * rng.standard_normal((seeds, 400))
        of_all += 0.005 * rng.standard_normal((seeds, 1))
        folders.append(fake_run(tmp_path / name, varied(experiment, seed=seed), examples=of_all))
    assert matches(sentence, find_results(folders).verdicts[0])


@pytest.mark.parametrize(("number", "step"), [(50, 30), (60, 40), (0, 0)])
def test_examples_of_something_else_are_not_taken(tmp_path, number, step):
    """Of another step, or others; or of a damaged file."""
    experiment, rng = varied(CLASSIFIER, seeds=2), np.random.default_rng(0)
    runs = [
        fake_run(tmp_path / name, experiment, examples=rng.random((2, 50))) for name in ("a", "b")
    ]
    found = find_results(runs).differences[1]
    assert found.examples == 50
    if number:
        sums = {"accuracy": rng.random((2, number)), "count": np.ones((2, number))}
        save_example_scores(runs[1], step, sums)
    else:
        content = (runs[1] / "examples.npz").read_bytes()
        (runs[1] / "examples.npz").write_bytes(content[:900] + b"?" * 20 + content[920:])
    again = find_results(runs)
    assert again.differences[1].examples == 0
    assert "over seeds, on these texts" in again.verdicts[0]
    assert again.differences[1].mean == found.mean


def test_a_noisier_curve_is_not_better_by_its_best_step(tmp_path):
    """Of two equal variants, one with a noisier curve, "better" is one study in 40, not in 11."""
    rng, experiment, studies = np.random.default_rng(5), varied(GENERATOR, steps=200, seeds=5), 200
    read, better = fake_run(tmp_path / "run", experiment), 0
    (row,) = read_rows([read])[0]
    for _ in range(studies):
        rows = []
        for noise in (0.01, 0.03):
            curve = 1 + noise * rng.standard_normal((20, 5))
            lines = {10 * i: {"loss_replicas": [*v]} for i, v in enumerate(curve, 1)}
            rows.append(dataclasses.replace(row, validations=lines))
        steps = common_steps(*rows)
        values = [r.values(MEASURES["loss"], step) for r, step in zip(rows, steps, strict=True)]
        found = difference(values[1], values[0])
        better += found.significant and found.mean < 0
    assert better / studies < 0.055


@pytest.mark.parametrize(("seeds", "warns"), [(3, True), (5, False)])
def test_fewer_than_five_seeds_are_warned_of(tmp_path, seeds, warns):
    one = varied(FIVE, seeds=seeds)
    base = BASE[:seeds]
    notes = results(tmp_path, ("a", one, base), ("b", one, base + NOISE[:seeds])).notes
    assert ("3 seeds are few" in " ".join(notes)) == warns
    assert "compared at step 40" in notes[0]


def test_one_run_alone_is_told_without_a_comparison(tmp_path):
    found = results(tmp_path, ("a", FIVE, BASE))
    assert (found.verdicts, found.notes, found.fields) == ([], [], {})
    assert found.differences[0] is None


def test_runs_on_their_way_are_told(tmp_path):
    stops = {"a": None, "b": 25, "c": 5}
    folders = [fake_run(tmp_path / name, FIVE, BASE, until=step) for name, step in stops.items()]
    found = find_results(folders)
    assert found.notes[:2] == [
        "b is at step 25 of 40",
        "c is at step 5 of 40, and has no validation yet",
    ]
    assert found.notes[2].startswith("compared at step 20, ")
    assert found.verdicts[0] == "b and a: the same numbers, 5 seeds"
    assert found.verdicts[1] == "c and a can't be compared yet: c has no value"
    assert find_results(folders[::-1]).verdicts == [
        "b and c can't be compared yet: c has no value",
        "a and c can't be compared yet: c has no value",
    ]


def test_runs_without_a_common_validation_are_not_compared(tmp_path):
    runs = [(10, 15), (15, 20)]
    folders = [
        fake_run(tmp_path / str(every), varied(FIVE, evaluate_every=every), BASE, until=step)
        for every, step in runs
    ]
    found = find_results(folders)
    assert found.differences[1] is None
    assert found.verdicts == ["15 and 10 can't be compared yet: no validation at the same step"]


def test_a_diverged_seed_is_a_failure_of_its_variant(tmp_path):
    """It is worse than what has not failed, and no missing value."""
    study = tmp_path / "s"
    fake_run(study / "base", FIVE, BASE)
    final = np.where(np.arange(5) == 3, np.nan, BASE)
    fake_run(study / "high", varied(FIVE, learning_rate=1.0), final)
    fake_run(study / "large", FIVE, BASE - 0.1)
    variants = {"base": "base", "high": "high", "large": "large"}
    fake_study(study, variants, ["higher"], {"large": "no memory"})
    found = find_results([study])
    assert found.notes == [
        "higher failed: it was not finite",
        "high has failed: the training loss of seed 3 is not finite at step 1",
        "large has failed: no memory",
    ]
    assert found.verdicts == [
        "high is worse than base: it has failed, 1 of its 5 seeds",
        "large is worse than base: it has failed",
    ]
    assert [row[1] for row in result_table(found)[2:]] == ["failed", "failed"]
    turned = find_results([study / "high", study / "base", study / "large"])
    assert turned.verdicts[0] == found.verdicts[0]
    assert turned.verdicts[1].startswith("large is 0.1000 nats better than base")
    both = find_results([study / "high", study / "high"])
    assert both.verdicts == ["high and high have both failed"]


def test_a_measure_that_a_run_lacks_is_told(tmp_path):
    runs = [
        fake_run(tmp_path / "a", FIVE, BASE, others=["bits_per_byte"]),
        fake_run(tmp_path / "b", FIVE, BASE, tokens="u"),
    ]
    found = find_results(runs)
    assert "b has no bits per byte in its validations" in found.notes
    assert [*found.rows[0].values(found.measure).values()] == pytest.approx(BASE)


@pytest.mark.parametrize(
    ("errors", "places"),
    [
        ([0.00456], 4),
        ([45.6], 0),
        ([None], 4),
        ([0.0], 4),
        ([1e-12], 6),
        ([None, 0.5, 0.05, 5e-3], 3),
    ],
)
def test_numbers_have_two_digits_of_the_middle_error(errors, places):
    assert decimals(errors) == places
