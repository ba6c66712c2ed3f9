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
    return train_without_report(f"demo {TINY} --learning-rates 0.001 0.03")


def test_the_values_of_a_run_are_compared(works, trained, tmp_path):
    out = works("compare {run} --to here")
    fields, rows, sentence, note, written = out.split("\n\n")
    assert fields.split() == [
        "differs", "learning_rate", "run", "learning_rate", "0.001", "0.001",
        "run", "learning_rate", "0.03", "0.03",
    ]  # fmt: skip
    assert len(rows.splitlines()) == 3
    assert sentence.startswith("run learning_rate 0.03 ")
    assert "2 seeds" in sentence
    assert "trained side by side" in note
    assert (
        written == "written into here: index.html has all of it, tables and pictures lie beside\n"
    )
    first, second = json.loads((tmp_path / "here" / "comparison.json").read_text())["entries"]
    assert f"{first['parameters']:,} parameters" in trained.printed
    lines = read_metrics(trained.run / "metrics.jsonl")
    last = [line for line in lines if line["split"] == "validation"][-1]
    assert (second["best_step"], second["finished"]) == (last["step"], True)
    assert list(second["values"].values()) == last["loss_members"][2:]
    for name in ("index.html", "curves-flops.png", "differences.png"):
        assert (tmp_path / "here" / name).stat().st_size > 1000


def test_the_same_run_twice_has_the_same_numbers(works, tmp_path):
    out = works("compare {run} {run} --to here")
    assert "run learning_rate 0.001 (2) and run learning_rate 0.001: the same numbers" in out


def test_json_is_all_that_is_printed(tlite):
    code, out, err = tlite("compare {run} --format json --to here")
    assert (code, err.split(":")[0]) == (0, "written into here")
    content = json.loads(out)
    assert [entry["seeds"] for entry in content["entries"]] == [2, 2]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "name the folders of runs to compare"),
        (" nowhere", "nowhere is no folder"),
        (" {run}/config.json", "is no folder"),
        (" {run}/checkpoints", "has neither config.json nor study.json"),
    ],
)
def test_mistakes_are_told(fails, line, told):
    assert told in fails("compare" + line)


def test_other_data_is_refused(fails, copied):
    content = json.loads((copied / "config.json").read_text())
    content["data"]["sha256"] = "0" * 64
    (copied / "config.json").write_text(json.dumps(content))
    told = fails("compare {run} {copied} --to here", copied=copied)
    assert "have different data, so they can't be compared: sha256 is 0000" in told


def test_a_run_without_metrics_is_a_row_of_dashes(works, copied):
    (copied / "metrics.jsonl").unlink()
    shutil.rmtree(copied / "checkpoints")
    out = works("compare {run} {copied} --to here", copied=copied)
    assert "copied learning_rate 0.03 is at step 0 of 4, and has no validation yet" in out
