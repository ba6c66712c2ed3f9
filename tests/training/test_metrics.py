"""metrics.jsonl: writing, truncation, averages and seeds; examples.npz: writing and reading."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.complaints import complaint
from tlite.training.metrics import (
    EXAMPLES_FILE,
    MetricsFile,
    parse_line,
    read_example_scores,
    read_metrics,
    save_example_scores,
    select_replica,
    summarize_seeds,
)


def lines(*steps):
    return [{"step": step, "split": "training", "loss": 1 / (step + 1)} for step in steps]


def write(path, *steps, opened_at=0):
    with MetricsFile(path) as file:
        file.truncate_after(opened_at)
        for step in steps:
            file.write(lines(step))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_lines_are_on_the_disk_at_once_and_the_file_is_locked(path):
    assert read_metrics(path) == []
    with MetricsFile(path) as file:
        file.write(lines(1, 2))
        assert read_metrics(path) == lines(1, 2)
        assert "is being trained by another process" in complaint(MetricsFile, path)
    write(path, 2, opened_at=1)


@pytest.mark.parametrize("cut", [1, 2, 20])
def test_an_incomplete_last_line_is_skipped_then_replaced(path, cut):
    write(path, 1, 2)
    path.write_bytes(path.read_bytes()[:-cut] if cut > 1 else path.read_bytes() + b'{"st')
    last = 2 if cut == 1 else 1
    assert read_metrics(path) == lines(*range(1, last + 1))
    write(path, 2, opened_at=1)
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines(1, 2)


def test_a_full_disk_is_a_user_error(path):
    file = MetricsFile(path)
    file._file = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115
    assert "No space" in complaint(file.write, lines(1))


def test_resume_parses_the_end_of_the_metrics_only(path, monkeypatch):
    parsed, name = [], "tlite.training.metrics.parse_line"
    write(path, *range(1, 1001))
    monkeypatch.setattr(name, lambda text: parsed.append(text) or parse_line(text))
    write(path, opened_at=998)
    assert len(parsed) == 3
    monkeypatch.undo()
    assert read_metrics(path)[-1]["step"] == 998


def test_without_locks_a_second_writer_is_noticed(path, monkeypatch):
    def no_locks(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with MetricsFile(path) as first, MetricsFile(path) as second:
        second.write(lines(1))
        assert "another process" in complaint(first.write, lines(2))


@pytest.mark.parametrize("act", ["remove", "move", "replace"])
def test_a_removed_run_folder_is_a_user_error(tmp_path, act):
    run = tmp_path / "run"
    run.mkdir()
    with MetricsFile(run / "metrics.jsonl") as file:
        file.write(lines(1))
        run.rename(tmp_path / "moved") if act == "move" else shutil.rmtree(run)
        if act == "replace":
            run.mkdir()
            (run / "metrics.jsonl").touch()
        assert "was removed" in complaint(file.write, lines(2))


FOREIGN = [
    b"null",
    b"{}",
    b"12",
    b"\xff",
    b"[1, 2]",
    b"{" * 5000,
    b'{"step": "2", "split": "training", "loss": 1}',
    b'{"step": 2, "split": "training", "loss": "low"}',
    b'{"step": 2, "split": "training", "loss": 1, "loss_replicas": [1, "x"]}',
    b'{"step": 2, "split": 7, "loss": 1}',
    b'{"step": true, "split": "training"}',
    b"",
]


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_lines_that_are_no_metrics_are_skipped(path, foreign, index):
    written = [json.dumps(line).encode() for line in lines(1, 3)]
    path.write_bytes(b"\n".join([*written[:index], foreign, *written[index:], b""]))
    assert read_metrics(path) == lines(1, 3)
    write(path, 4, opened_at=3)
    assert read_metrics(path) == lines(1, 3, 4)
    write(path, 9, opened_at=1)
    assert read_metrics(path) == lines(1, 9)


def test_training_lines_of_a_long_run_are_averaged_without_nulls(path):
    content = [
        {"step": s, "split": "training", "loss": float(s), "loss_replicas": [s - 1.0, s + 1.0]}
        for s in range(1, 1001)
    ]
    content[4] |= {"loss": None, "loss_replicas": [None, 6.0]}
    content[10:20] = [line | {"loss": None} for line in content[10:20]]
    content.append({"step": 1000, "split": "validation", "loss": 7.0})
    path.write_text("".join(json.dumps(line) + "\n" for line in content))
    assert read_metrics(path) == read_metrics(path, max_training_lines=5000) == content
    *training, validation = read_metrics(path, max_training_lines=100)
    assert validation == content[-1]
    assert [line["step"] for line in training] == list(range(10, 1001, 10))
    assert [line["loss"] for line in training[:3]] == [pytest.approx((55 - 5) / 9), None, 25.5]
    assert training[0]["loss_replicas"] == pytest.approx([(45 - 4) / 9, 6.5])


FLOATS = st.floats(-100, 100) | st.just(float("nan"))


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=4))
def test_selecting_a_replica_commutes_with_summarizing(rows):
    def summarize(rows):
        losses = dict(zip(("loss", "accuracy"), np.transpose(rows), strict=True))
        return {"step": 3, "split": "validation"} | summarize_seeds(losses)

    for replica, row in enumerate(rows):
        assert select_replica(summarize(rows), replica) == summarize([row])


# Scores of examples

COUNT = np.array([[8.0, 8, 3, 0, 0]] * 2, np.float32)
LOSS = np.arange(10, dtype=np.float32).reshape(2, 5)


def test_example_scores_are_read_back_without_padding(tmp_path):
    for step in (40, 50):
        save_example_scores(tmp_path, step, {"loss": LOSS, "count": COUNT})
    scores = read_example_scores(tmp_path)
    assert scores.step == 50
    np.testing.assert_array_equal(scores.count, [8, 8, 3])
    np.testing.assert_array_equal(scores.sums["loss"], LOSS[:, :3])
    assert [path.name for path in tmp_path.iterdir()] == [EXAMPLES_FILE]


def test_damaged_or_pickled_example_scores_are_detected(tmp_path):
    assert read_example_scores(tmp_path) is None
    np.savez(tmp_path / EXAMPLES_FILE, step=1, count=np.ones(1), loss=np.array([[{}]], object))
    assert read_example_scores(tmp_path) is None
    save_example_scores(tmp_path, 40, {"loss": LOSS, "count": COUNT})
    content, right = (tmp_path / EXAMPLES_FILE).read_bytes(), read_example_scores(tmp_path)
    for i in range(0, len(content), 7):
        flipped = content[:i] + bytes([content[i] ^ 16]) + content[i + 1 :]
        for damaged in (content[:i], flipped):
            (tmp_path / EXAMPLES_FILE).write_bytes(damaged)
            scores = read_example_scores(tmp_path)
            if scores is not None and set(scores.sums) == {"loss"}:
                assert scores.step == right.step
                np.testing.assert_array_equal(scores.sums["loss"], right.sums["loss"])
