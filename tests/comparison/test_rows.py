"""What is read of a run: the measure by seed at the best step, how far it is, what has failed."""

import json

import numpy as np
import pytest

from tests.helpers.fake_runs import GENERATOR, RATE, fake_run, varied
from tlite.comparison.comparable import MEASURES
from tlite.comparison.entries import find_entries
from tlite.comparison.rows import read_row
from tlite.training.metrics import summarise


def row_of(folder, measure="loss"):
    (entry,) = find_entries([folder]).entries
    return read_row(entry, MEASURES[measure])


def write(folder, *lines):
    """Lines in place of the run's own."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def validation(step, *losses, **others):
    values = {"loss": np.array(losses)} | {name: np.array(v) for name, v in others.items()}
    return {"step": step, "split": "validation"} | summarise(values)


def training(step, *losses, rate=RATE):
    line = {"step": step, "split": "training"} | summarise({"loss": np.array(losses)})
    return line | {"tokens_per_second": rate}


def test_a_finished_run(tmp_path):
    row = row_of(fake_run(tmp_path / "r", final=[1.0, 2.0, 3.0]))
    assert (row.step, row.finished, row.best_step) == (40, True, 40)
    assert row.values == {0: 1.0, 1: 2.0, 2: 3.0}
    steps, values = row.curve
    assert steps.tolist() == [10, 20, 30, 40]
    np.testing.assert_allclose(values[1], np.array([1.0, 2.0, 3.0]) * 1.25)
    assert row.tokens_per_second == RATE
    assert row.diverged is None


def test_a_run_that_is_on_its_way(tmp_path):
    row = row_of(fake_run(tmp_path / "r", until=25))
    assert (row.step, row.finished, row.best_step) == (25, False, 20)


def test_a_run_without_a_validation(tmp_path):
    row = row_of(fake_run(tmp_path / "r", until=5))
    assert (row.step, row.finished, row.best_step, row.values) == (5, False, None, {})


def test_a_run_that_has_not_begun(tmp_path):
    folder = fake_run(tmp_path / "r", until=0)
    for _ in range(2):
        row = row_of(folder)
        assert (row.step, row.values, row.tokens_per_second) == (0, {}, None)
        assert len(row.minutes) == 0
        (folder / "metrics.jsonl").unlink(missing_ok=True)


def test_patience_ends_a_run(tmp_path):
    folder = fake_run(tmp_path / "r", varied(GENERATOR, seeds=1, patience=2, steps=100))
    write(folder, *(validation(10 * i, loss) for i, loss in enumerate([3, 1, 2], 1)))
    assert not row_of(folder).finished
    write(folder, *(validation(10 * i, loss) for i, loss in enumerate([3, 1, 2, 2], 1)))
    row = row_of(folder)
    assert (row.finished, row.best_step) == (True, 20)


def test_the_best_step_is_by_the_mean_over_models(tmp_path):
    folder = fake_run(tmp_path / "r", varied(GENERATOR, seeds=2))
    write(folder, validation(10, 1.0, 5.0), validation(20, 2.0, 3.0), validation(30, 3.0, 2.0))
    row = row_of(folder)
    assert row.best_step == 20  # the first of two that are as good
    assert row.values == {0: 2.0, 1: 3.0}


def test_validations_of_an_interruption_are_not_the_best(tmp_path):
    folder = fake_run(tmp_path / "r", varied(GENERATOR, seeds=1, steps=35))
    write(folder, validation(10, 3.0), validation(17, 1.0), validation(20, 2.0))
    assert row_of(folder).best_step == 20
    write(folder, validation(10, 3.0), validation(17, 1.0), validation(35, 2.5))
    assert row_of(folder).best_step == 35


def test_what_select_names_chooses_and_more_of_it_is_better(tmp_path):
    folder = fake_run(tmp_path / "r", varied(GENERATOR, seeds=1, select="accuracy"))
    write(folder, validation(10, 1.0, accuracy=[0.3]), validation(20, 2.0, accuracy=[0.4]))
    row = row_of(folder, "accuracy")
    assert (row.best_step, row.values) == (20, {0: 40.0})
    assert row_of(folder, "loss").values == {0: 2.0}


def test_a_run_fails_at_a_training_loss_that_is_not_finite(tmp_path):
    folder = fake_run(tmp_path / "r", varied(GENERATOR, seeds=2))
    nan = float("nan")
    write(folder, validation(10, 5.0, 1.0), training(11, 5.0, nan), training(12, nan, nan))
    row = row_of(folder)
    assert (row.diverged, row.values, row.best_step) == ((11, [1]), {}, None)
    assert row.failed == "the training loss of seed 1 is not finite at step 11"
    assert len(row.curve[0]) == 0


def test_a_validation_that_is_not_finite_is_passed_over(tmp_path):
    folder = fake_run(tmp_path / "r", varied(GENERATOR, seeds=2))
    write(folder, validation(10, 1.0, float("nan")), validation(20, 4.0, 2.0))
    row = row_of(folder)
    assert (row.diverged, row.values) == (None, {0: 4.0, 1: 2.0})


@pytest.mark.parametrize(
    "line",
    [
        "",
        '{"step": 20, "split": "valid',
        "[1]",
        '{"step": 20, "split": "validation"}',
        '{"step": 20, "split": "validation", "loss": 0.1}',
        '{"step": 20, "split": "validation", "loss": 0.1, "loss_members": [0.1]}',
        '{"step": 20, "split": "validation", "loss": 0.1, "loss_members": 0.1}',
        '{"step": 20, "split": "validation", "loss": 0.1, "loss_members": ["a", "b"]}',
        '{"step": "20", "split": "validation", "loss": 0.1, "loss_members": [0.1, 0.1]}',
        '{"step": 20, "split": "test", "loss": 0.1, "loss_members": [0.1, 0.1]}',
        '{"step": 20, "split": "validation", "loss": NaN, "loss_members": [NaN, Infinity]}',
        '{"step": 20, "split": "validation", "accuracy": 0.1, "accuracy_members": [0.1, 0.1]}',
        "\0\0\0",
    ],
)
def test_cut_and_foreign_lines_are_passed_over(tmp_path, line):
    folder = fake_run(tmp_path / "r", varied(GENERATOR, seeds=2))
    write(folder, line, validation(10, 1.0, 2.0), line, training(11, 1.0, 2.0))
    row = row_of(folder)
    assert (row.best_step, row.values) == (10, {0: 1.0, 1: 2.0})
    assert row.diverged is None


def test_foreign_means_are_not_believed(tmp_path):
    folder = fake_run(tmp_path / "r", varied(GENERATOR, seeds=2))
    write(folder, validation(10, 1.0, 2.0) | {"loss": None}, validation(20, 3.0, 4.0))
    assert row_of(folder).best_step == 10


def test_minutes_are_of_all_seeds(tmp_path):
    folder = fake_run(tmp_path / "r", varied(GENERATOR, seeds=3))
    write(folder, training(1, 1, 1, 1, rate=60), training(2, 1, 1, 1, rate=30))
    row = row_of(folder)
    assert row.tokens_per_second == 45
    of_step = row.cost.tokens_per_step * 3 / 60  # minutes at a token a second
    np.testing.assert_allclose(row.minutes, [of_step / 60, of_step / 20])


def test_steps_that_come_twice_count_once(tmp_path):
    folder = fake_run(tmp_path / "r", varied(GENERATOR, seeds=1))
    lines = [training(step, 1.0) for step in (1, 2, 2, 1, 3)]
    write(folder, *lines, validation(10, 2.0), validation(10, 1.0))
    row = row_of(folder)
    assert row.trained.tolist() == [1, 2, 3]
    assert row.values == {0: 1.0}
