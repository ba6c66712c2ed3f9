"""The sentences: better or worse, by how much, how sure, and what is to be kept in mind."""

import numpy as np
import pytest

from tests.helpers.fake_runs import CLASSIFIER, GENERATOR, fake_run, fake_study, varied
from tlite.comparison.entries import find_entries
from tlite.comparison.results import decimals, find_results, with_error

FIVE = varied(GENERATOR, seeds=5)
BASE = np.array([1.50, 1.60, 1.55, 1.58, 1.52])
NOISE = np.array([0.01, -0.01, 0.02, -0.02, 0.0])


def results(tmp_path, *runs):
    """Of (name, experiment, final values)."""
    folders = [fake_run(tmp_path / name, experiment, final) for name, experiment, final in runs]
    return find_results(find_entries(folders))


def verdict(tmp_path, experiment, reference, run, other=None):
    runs = ("a", experiment, reference), ("b", other or experiment, run)
    return results(tmp_path, *runs).verdicts[0]


def test_a_better_run(tmp_path):
    told = verdict(tmp_path, FIVE, BASE, BASE - 0.03 + 0.1 * NOISE)
    assert told == "b is 0.0300 ± 0.0020 nats better than a, 5 seeds"


def test_a_worse_run(tmp_path):
    told = verdict(tmp_path, FIVE, BASE, BASE + 0.05 + NOISE)
    assert told == "b is 0.050 ± 0.020 nats worse than a, 5 seeds"


def test_no_difference(tmp_path):
    told = verdict(tmp_path, FIVE, BASE, BASE - 0.005 + NOISE)
    assert told == (
        "b and a: no difference that 5 seeds can show (0.005 ± 0.020 nats better); "
        "about 81 would show 0.005"
    )


def test_no_difference_however_many(tmp_path):
    told = verdict(tmp_path, FIVE, BASE, BASE - 0.00003 + NOISE)
    assert told.endswith("more than 1,000 would show 0.00003")


def test_equal_runs_have_the_same_numbers(tmp_path):
    assert verdict(tmp_path, FIVE, BASE, BASE) == "b and a: the same numbers, 5 seeds"
    one = varied(GENERATOR, seeds=1)
    assert verdict(tmp_path / "one", one, [1.0], [1.0]) == "b and a: the same numbers, 1 seed"


def test_more_is_better_of_accuracy_and_it_is_told_in_points(tmp_path):
    experiment = varied(CLASSIFIER, seeds=5)
    told = verdict(tmp_path, experiment, BASE - 1, BASE - 0.95 + NOISE)
    assert told == "b is 5.0 ± 2.0 points better than a, 5 seeds"


def test_other_seeds_are_compared_by_welch(tmp_path):
    later = varied(FIVE, seed=10, seeds=3)
    told = verdict(tmp_path, FIVE, BASE, BASE[:3] + 0.2, later)
    assert told.startswith("b is 0.200 ± 0.0")
    assert told.endswith(
        "nats worse than a, 3 and 5 seeds, which are not the same: by Welch's interval"
    )
    told = verdict(tmp_path / "near", FIVE, BASE, BASE[:3] + 0.01, later)
    assert told.startswith("b and a: no difference that 3 and 5 seeds can show")
    assert "by Welch's interval" in told


def test_one_seed_wants_two(tmp_path):
    one = varied(GENERATOR, seeds=1)
    told = verdict(tmp_path, one, [1.5], [1.4])
    assert told == (
        "b is 0.1000 nats better than a with the one seed that both have: "
        "two seeds of each are needed for an interval"
    )
    told = verdict(tmp_path / "b", one, [1.5], [1.4], varied(one, seed=3))
    assert "better than a with other seeds" in told


def test_only_the_seeds_of_both_are_compared_and_all_are_in_the_mean(tmp_path):
    three = varied(FIVE, seeds=3)
    found = results(tmp_path, ("a", FIVE, BASE), ("b", three, BASE[:3] + 0.1 + NOISE[:3]))
    assert found.verdicts[0].endswith("3 seeds")
    assert found.rows[0].mean == pytest.approx(BASE.mean())
    assert found.rows[1].difference.mean == pytest.approx(0.1 + NOISE[:3].mean())


def test_several_intervals_are_said_to_be_by_themselves(tmp_path):
    runs = [(name, FIVE, BASE + shift) for name, shift in [("a", 0), ("b", 0.1), ("c", 0.2)]]
    assert results(tmp_path, *runs).notes == [
        "each interval is a 95 % one by itself: that all 2 hold is less sure"
    ]
    assert results(tmp_path / "two", *runs[:2]).notes == []


def test_one_run_alone_is_told_without_a_comparison(tmp_path):
    found = results(tmp_path, ("a", FIVE, BASE))
    assert (found.verdicts, found.notes, found.fields) == ([], [], {})
    assert found.rows[0].difference is None


def test_runs_on_their_way_are_told(tmp_path):
    folders = [
        fake_run(tmp_path / "a", FIVE, BASE),
        fake_run(tmp_path / "b", FIVE, BASE, until=25),
        fake_run(tmp_path / "c", FIVE, BASE, until=5),
    ]
    found = find_results(find_entries(folders))
    assert found.notes == [
        "b is at step 25 of 40",
        "c is at step 5 of 40, and has no validation yet",
    ]
    assert found.verdicts[0].startswith("b is ")
    assert found.verdicts[1] == "c and a can't be compared yet: c has no value"
    assert find_results(find_entries(folders[::-1])).verdicts == [
        "b and c can't be compared yet: c has no value",
        "a and c can't be compared yet: c has no value",
    ]


def test_an_interval_without_a_width_is_no_proof(tmp_path):
    moved = np.array([0.01, -0.01, 0.02, -0.02, 0.0])
    folders = [
        fake_run(tmp_path / name, FIVE, BASE + by)
        for name, by in {"a": 0.0, "all": 0.1, "none": moved}.items()
    ]
    by_same, on_average = find_results(find_entries(folders)).verdicts
    assert by_same == "all is 0.1000 nats worse than a with each of 5 seeds: no interval"
    assert on_average.startswith("none and a: no difference that 5 seeds can show (0")
    assert "would show" not in on_average


def test_what_has_failed_is_told(tmp_path):
    study = tmp_path / "s"
    fake_run(study / "base", FIVE, BASE)
    final = np.where(np.arange(5) == 3, np.nan, BASE)
    fake_run(study / "high", varied(FIVE, learning_rate=1.0), final)
    fake_study(study, {"base": "base", "high": "high"}, ["higher"])
    found = find_results(find_entries([study]))
    assert found.notes == [
        "higher failed: it was not finite",
        "high has failed: its training loss is not finite at step 1",
    ]
    assert found.verdicts == ["high and base can't be compared yet: high has no value"]


def test_a_measure_that_a_run_lacks_is_told(tmp_path):
    runs = [
        fake_run(tmp_path / "a", FIVE, BASE, others=["bits_per_byte"]),
        fake_run(tmp_path / "b", FIVE, BASE, tokens="u"),
    ]
    found = find_results(find_entries(runs))
    assert "b has no bits per byte in its validations" in found.notes
    assert found.rows[0].mean == pytest.approx(BASE.mean())


@pytest.mark.parametrize(
    ("value", "error", "texts"),
    [
        (0.01234, 0.00456, ("0.0123", "0.0046")),
        (12.34, 4.56, ("12.3", "4.6")),
        (123.4, 45.6, ("123", "46")),
        (0.5, None, ("0.5000", "")),
        (0.5, 0.0, ("0.5000", "0.0000")),
        (0.5, 1e-12, ("0.500000", "0.000000")),
    ],
)
def test_numbers_have_two_digits_of_their_error(value, error, texts):
    assert with_error(value, error) == texts


def test_a_column_has_the_decimals_of_the_middle_error():
    assert decimals([None, 0.5, 0.05, 0.005]) == 3
    assert decimals([]) == 4
