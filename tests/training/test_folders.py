"""Runs as folders: which are found, which is the newest, and what their small files say."""

import shutil
from pathlib import Path

import pytest

from tests.helpers.folders import make_run, write
from tlite.errors import UserError
from tlite.training.runs import describe, find_run, find_runs, newest


def make_study(folder, runs):
    variants = [{"name": run.name, "run": run.name} for run in runs]
    write(folder / "study.json", {"name": "tiny", "variants": variants})
    return folder


def folders(root):
    return [run.folder for run in find_runs(root)]


def test_runs_and_studies_are_found_newest_first_whatever_lies_between(tmp_path):
    """As old as their beginning, whenever a config was written; of 0.2.0 as old as that."""
    old = make_run(tmp_path / "demo" / "20260101", 0, began=50)
    young = make_run(tmp_path / "first", 30, began=10)
    before = make_run(tmp_path / "of 0.2.0", 20)
    inside = [make_run(tmp_path / "study" / name, 0, began=n) for name, n in (("a", 40), ("b", 5))]
    study = make_study(tmp_path / "study", inside)
    make_run(tmp_path / "demo" / ".hidden", 0)
    write(young / "pretraining" / "metrics.jsonl", "")
    write(tmp_path / "theirs" / "config.json", {"model_type": "gpt2"})
    write(tmp_path / "notes.txt", "none")
    assert folders(tmp_path) == [young, before, study, old]
    assert newest(tmp_path) == young
    assert folders(tmp_path / "nowhere") == []


def test_a_folder_of_runs_is_its_newest_one_and_latest_that_of_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"there is no latest run: .*runs has none"):
        find_run("latest")
    one = make_run(Path("runs/demo/one"), 30)
    two = make_run(Path("runs/demo/two"), 20)
    other = make_run(Path("runs/other/three"), 10, kind="ClassifierExperiment")
    make_run(Path("runs/far/too/far/away"), 0, kind="TranslatorExperiment")
    write(Path("runs/demo/bad/config.json"), "{")
    assert find_run("runs/demo") == find_run(two) == two
    assert find_run(one) == one
    assert find_run("runs") == other
    assert find_run("runs", kind="generator") == find_run("latest", kind="generator") == two
    assert find_run("latest") == Path("runs/far/too/far/away")
    for none in ("runs/far", "nowhere", "gpt2", "\0"):
        assert find_run(none) == Path(none)
    make_study(Path("runs/study"), [])
    assert find_run("runs/study") == Path("runs/study")
    shutil.rmtree("runs/other")
    with pytest.raises(UserError, match="there is no latest classifier's run"):
        find_run("latest", kind="classifier")


def test_what_is_damaged_is_listed_and_never_the_newest(tmp_path):
    whole = make_run(tmp_path / "whole", 99)
    for name, content in {
        "cut": '{"experiment": ',
        "list": "[]",
        "deep": "[" * 100_000,
        "lacks": {"experiment": {"kind": "GeneratorExperiment"}},
        "odd": {"experiment": {"kind": [], "name": 1, "training": {"steps": "x"}}},
        "endless": '{"experiment": {"kind": "x", "name": "x", "training": {"steps": Infinity}}}',
    }.items():
        write(tmp_path / name / "config.json", content)
        assert describe(tmp_path / name).kind == "damaged"
    write(tmp_path / "no config" / "metrics.jsonl", "")
    write(tmp_path / "study" / "study.json", {"variants": 3})
    kinds = [run.kind for run in find_runs(tmp_path)]
    assert sorted(kinds) == ["damaged"] * 8 + ["generator"]
    assert newest(tmp_path) == whole


@pytest.mark.parametrize(
    ("select", "scores", "best"),
    [
        ("loss", [(3, 1.5), (6, 1.25), (9, 1.75)], "loss 1.2500"),
        ("accuracy", [(3, -0.25), (6, -0.75)], "accuracy 0.7500"),
        ("loss", [(3, 1.5), (4, 1.0)], "loss 1.5000"),  # as the run itself counts
        ("loss", [(4, 1.0)], "loss 1.0000"),
        ("loss", [], ""),
    ],
)
def test_a_run_says_how_far_it_has_come_and_its_best_validation(tmp_path, select, scores, best):
    run = make_run(tmp_path / "run", 0, scores=scores, select=select)
    write(run / "checkpoints" / "1" / "checkpoint.json", "?")  # damaged
    found = describe(run)
    assert (found.experiment, found.kind, found.best) == ("tiny", "generator", best)
    assert (found.done, found.of) == (max((s for s, _ in scores), default=1), 9)


def test_a_study_counts_the_variants_that_have_ended(tmp_path):
    runs = [
        make_run(tmp_path / name, 0, scores=[(step, 1.0)], steps=9)
        for name, step in (("a", 9), ("b", 6))
    ]
    found = describe(make_study(tmp_path, [*runs, tmp_path / "not begun"]))
    assert (found.kind, found.done, found.of) == ("study", 1, 3)


def test_a_folder_has_a_kind(tmp_path):
    assert describe(make_run(tmp_path / "a", 0)).kind == "generator"
    write(tmp_path / "b" / "config.json", {"model_type": "gpt2"})
    assert describe(tmp_path / "b").kind == "pretrained"
    assert describe(tmp_path).kind == "damaged"
