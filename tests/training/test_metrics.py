"""metrics.jsonl: appended to, cut back, and summed up over members."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlite.errors import UserError
from tlite.training.metrics import MetricsFile, read_metrics, split_member, summarise


def lines(*steps):
    return [{"step": step, "split": "training", "loss": 1 / (step + 1)} for step in steps]


def write(path, *steps, opened_at=0):
    file = MetricsFile(path, opened_at)
    for step in steps:
        file.write(lines(step))
    file.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_what_is_written_is_on_the_disk_at_once(path):
    file = MetricsFile(path)
    file.write(lines(1, 2))
    assert read_metrics(path) == lines(1, 2)
    file.close()


def test_there_are_no_lines_before_there_is_a_file(path):
    assert read_metrics(path) == []


@pytest.mark.parametrize("cut", [1, 2, 20])
def test_a_last_line_cut_short_is_passed_over_then_replaced(path, cut):
    write(path, 1, 2)
    path.write_bytes(path.read_bytes()[:-cut] if cut > 1 else path.read_bytes() + b'{"st')
    whole = 2 if cut == 1 else 1
    assert read_metrics(path) == lines(*range(1, whole + 1))
    write(path, 2, opened_at=1)
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines(1, 2)


@pytest.mark.parametrize("step", [0, 2, 9])
def test_opening_at_a_step_drops_what_came_after(path, step):
    write(path, 1, 2, 3)
    write(path, 10, opened_at=step)
    assert read_metrics(path) == lines(*range(1, min(step, 3) + 1), 10)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_full_disk_is_a_user_error_that_says_how_to_go_on(path):
    file = MetricsFile(path)
    file._file = Path("/dev/full").open("a")  # noqa: SIM115
    with pytest.raises(UserError, match=f"no space .*tlite train --resume {path.parent}$"):
        file.write(lines(1))
    with contextlib.suppress(OSError):
        file.close()


def test_a_folder_that_cannot_be_written_is_a_user_error(path):
    path.with_suffix(".tmp").mkdir()
    with pytest.raises(UserError, match=r"can't write .*directory.*--resume"):
        MetricsFile(path)


members = st.integers(1, 4).flatmap(
    lambda number: st.fixed_dictionaries(
        {
            name: st.lists(
                st.floats(-100, 100) | st.just(float("nan")), min_size=number, max_size=number
            ).map(np.array)
            for name in ("loss", "accuracy")
        }
    )
)


@settings(max_examples=60, deadline=None)
@given(members)
def test_a_member_of_a_summary_is_the_summary_of_the_member(losses):
    line = {"step": 3, "split": "validation"}
    for member in range(len(losses["loss"])):
        alone = {name: values[member : member + 1] for name, values in losses.items()}
        assert split_member(line | summarise(losses), member) == line | summarise(alone)


def test_a_summary_holds_mean_spread_and_members():
    line = summarise({"loss": np.array([1.0, 3.0])})
    assert (line["loss"], line["loss_members"]) == (2, [1, 3])
    assert line["loss_spread"] == pytest.approx(2**0.5)
    assert line["perplexity"] == pytest.approx((np.exp(1) + np.exp(3)) / 2)


def test_a_summary_is_json_whatever_the_loss():
    line = summarise({"loss": np.array([np.nan, 1e9]), "accuracy": np.array([0.0, 1.0])})
    assert json.loads(json.dumps(line, allow_nan=False))["loss"] is None
