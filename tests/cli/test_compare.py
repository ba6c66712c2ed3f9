"""`tlite compare` on runs that were trained: what it prints, and each mistake with exit code 2."""

import json
import shutil

import pytest

from tlite.training.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("one_device")

TINY = (
    "--steps 4 --evaluate-every 2 --width 8 --num-heads 2 --num-blocks 1 --context 16 "
    "--batch-size 4 --precision float32 --seeds 2"
)


@pytest.fixture(scope="module")
def trained(train_without_report):
    return train_without_report(f"demo {TINY}")


@pytest.fixture(scope="module")
def faster(train_without_report, tmp_path_factory):
    """A run with another learning rate."""
    run = train_without_report(f"demo {TINY} --learning-rate 0.03").run
    return shutil.copytree(run, tmp_path_factory.mktemp("other") / "faster")


def test_two_runs_are_compared(works, trained, faster, tmp_path):
    out = works("compare {run} {faster} --to here", faster=faster)
    fields, rows, sentence, *notes, written = out.split("\n\n")
    assert fields.split() == ["differs", "learning_rate", "run", "0.003", "faster", "0.03"]
    assert len(rows.splitlines()) == 3
    assert sentence.startswith("faster ")
    assert "2 paired seeds" in sentence
    assert "2 seeds are few" in " ".join(notes)
    assert written.startswith("written into here: index.html")
    first, second = json.loads((tmp_path / "here" / "comparison.json").read_text())["runs"]
    assert f"parameters={first['parameters']:,} " in trained.printed
    lines = read_metrics(faster / "metrics.jsonl")
    last = [line for line in lines if line["split"] == "validation"][-1]
    assert (second["best_step"], second["finished"]) == (last["step"], True)
    assert list(second["values"].values()) == last["loss_replicas"]
    for name in ("index.html", "curves-flops.png", "differences.png"):
        assert (tmp_path / "here" / name).stat().st_size > 1000


def test_the_same_run_twice_has_the_same_numbers(works, tmp_path):
    assert "run vs run: identical scores" in works("compare {run} {run} --to here")


def test_json_is_all_that_is_printed(tlite):
    code, out, err = tlite("compare {run} --format json --to here")
    assert (code, err.split(":")[0]) == (0, "written into here")
    content = json.loads(out)
    assert [entry["seeds"] for entry in content["runs"]] == [2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "name the folders of runs to compare"),
        (" nowhere", "nowhere is no folder"),
        (" {run}/config.json", "is no folder"),
        (" {run}/checkpoints", "has neither config.json nor study.json"),
    ],
)
def test_errors_of_compare_are_one_line(fails, line, message):
    assert message in fails("compare" + line)


def test_a_run_without_metrics_is_a_row_of_dashes(works, copied):
    (copied / "metrics.jsonl").unlink()
    shutil.rmtree(copied / "checkpoints")
    out = works("compare {run} {copied} --to here", copied=copied)
    assert "copied is at step 0 of 4, and has no validation yet" in out
