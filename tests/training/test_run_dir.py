"""Run folders: made once, opened again, found, and what is wrong with one is said in a line."""

import dataclasses
import datetime
import errno
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from tests.helpers.complaints import complaint
from tests.helpers.folders import make_run, write
from tlite.data import TextFile
from tlite.errors import UserError
from tlite.experiment import ClassifierExperiment, Experiment, GeneratorExperiment
from tlite.models import FeedForward
from tlite.runs import GeneratorRun
from tlite.text import CharTokenizer
from tlite.training import run_dir
from tlite.training.run_dir import describe, find_run, find_runs, newest

EXPERIMENT = GeneratorExperiment("novel", TextFile("a.txt"))
TEXT = "Grüße"


def created(folder):
    return run_dir.create_run(
        folder, EXPERIMENT, GeneratorRun.fingerprint(TEXT), CharTokenizer(TEXT)
    )


def test_a_run_that_was_created_opens_as_it_was(tmp_path):
    run = created(tmp_path / "run")
    assert run_dir.open_run(tmp_path / "run", GeneratorExperiment) == run
    message = complaint(run_dir.open_run, tmp_path / "run", ClassifierExperiment)
    assert "run of a GeneratorExperiment, not of a ClassifierExperiment" in message
    tokenizer = CharTokenizer.load(run.path / CharTokenizer.file_name)
    assert tokenizer.characters == CharTokenizer(TEXT).characters
    names = {"config.json", "tokenizer.json", "checkpoints"}
    assert {path.name for path in run.path.iterdir()} == names
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_named_folder_that_exists_is_refused(tmp_path):
    wanted = tmp_path / "a" / "run"
    assert run_dir.new_folder("novel", wanted) == wanted
    created(wanted)
    assert f"tlite train --resume {wanted}" in complaint(run_dir.new_folder, "novel", wanted)
    assert "can't write" in complaint(created, wanted)  # it has appeared meanwhile
    assert [path.name for path in wanted.parent.iterdir()] == ["run"]


NUMBERS = "", "-2", "-3", "-4"


def test_folders_made_in_the_same_second_are_different(tmp_path, monkeypatch):
    now = datetime.datetime(2026, 1, 2, 3, 4, 5)
    clock = SimpleNamespace(datetime=SimpleNamespace(now=lambda: now))
    monkeypatch.setattr(run_dir, "datetime", clock)
    made = [created(run_dir.new_folder("novel", root=tmp_path)).path for _ in range(3)]
    arguments = EXPERIMENT, {}, CharTokenizer(TEXT)  # another has come between
    made.append(run_dir.create_run(made[0], *arguments, exactly=False).path)
    assert [folder.name for folder in made] == [f"{now:%Y%m%d-%H%M%S}{n}" for n in NUMBERS]
    assert all(run_dir.open_run(folder, Experiment).path == folder for folder in made)


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_is_seen_whole_or_not_at_all(tmp_path, fails):
    wanted = tmp_path / "run"

    class Watching(CharTokenizer):
        def save(self, path):
            assert not wanted.exists()
            super().save(path)
            if fails:
                raise KeyboardInterrupt

    arguments = wanted, EXPERIMENT, {}, Watching(TEXT)
    if fails:
        with pytest.raises(KeyboardInterrupt):
            run_dir.create_run(*arguments)
    else:
        run_dir.create_run(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ([] if fails else ["run"])


def test_a_full_disk_while_a_run_is_made_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CharTokenizer, "save", full)
    wanted = run_dir.new_folder("novel", tmp_path / "run")
    assert "No space left" in complaint(created, wanted)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    created(run_dir.new_folder("novel", wanted))


def test_a_config_that_could_not_be_read_back_is_refused_before_anything_is_written(tmp_path):
    feed_forward = FeedForward()
    object.__setattr__(feed_forward, "activation", "my_own")
    model = dataclasses.replace(EXPERIMENT.model, feed_forward=feed_forward)
    strange = dataclasses.replace(EXPERIMENT, model=model)
    wanted = run_dir.new_folder("novel", tmp_path / "run")
    message = complaint(run_dir.create_run, wanted, strange, {}, CharTokenizer(TEXT))
    assert re.search("never be opened again.*activation.*my_own", message)
    assert not wanted.exists()


def test_a_whole_number_where_a_fraction_may_be_is_saved_as_it_is(tmp_path):
    training = dataclasses.replace(EXPERIMENT.training, clip_norm=2.0)
    object.__setattr__(training, "clip_norm", 2)  # as a file that is not type-checked may have it
    experiment = dataclasses.replace(EXPERIMENT, training=training)
    run = run_dir.create_run(tmp_path / "run", experiment, {}, CharTokenizer(TEXT))
    assert run_dir.open_run(run.path, Experiment) == run


def test_what_a_run_was_made_with_is_recorded_and_compared(tmp_path, capsys):
    folder = created(tmp_path / "run").path
    content = json.loads((folder / "config.json").read_text())
    made = content["made_with"]
    assert made["jax"] == jax.__version__
    assert made["python"].startswith("3.")
    rooms = [name for name in made if name.startswith("tlite/")]
    assert {"tlite/functional", "tlite/runs", "tlite/decoding"} <= {*rooms}
    assert all((run_dir.PACKAGE.parent / room).is_dir() for room in rooms)

    def warned(made):
        (folder / "config.json").write_text(json.dumps(content | {"made_with": made}))
        run_dir.open_run(folder, Experiment)
        return capsys.readouterr().err

    assert warned(made) == ""
    (warning,) = warned(made | {"tlite/functional": "0", "jax": "0.1.2"}).splitlines()
    assert re.search(rf"warning: since {folder} .*tlite/functional has changed", warning)
    assert re.search(rf"jax was 0\.1\.2 and is {jax.__version__}", warning)
    assert "tlite/models" not in warning


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in complaint(run_dir.new_folder, "x", tmp_path / "file" / "run")


PARTS = "has not all parts of a run's"


def edited(value, *place):
    """The config with another value in this place."""

    def spoil(text):
        content = inner = json.loads(text)
        for part in place[:-1]:
            inner = inner[part]
        inner[place[-1]] = value
        return json.dumps(content)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda text: text[: len(text) // 2], "line .* is not JSON"),
        (lambda text: "\udcff\udcfe\0", "can't decode"),  # bytes that are no text
        (lambda text: "[" * 100_000 + "]" * 100_000, PARTS),
        (lambda text: "{}", PARTS),
        (lambda text: text.replace('"steps"', '"colour"'), "no field colour"),
        (lambda text: text.replace("GeneratorExperiment", "Cooking"), "Cooking"),
        (edited(5, "experiment", "kind"), PARTS),
        (edited({}, "experiment", "data"), "data: expected"),
        (edited([1] * 9999, "experiment", "model"), "model: expected"),
        (
            edited(10**400, "experiment", "training", "learning_rate"),
            "learning_rate: expected float",
        ),
        (edited(1.5, "experiment", "training", "steps"), "steps: expected int"),
        (edited(None, "data"), PARTS),
        (edited(None, "tokenizer"), PARTS),
        (edited({"file": 5, "sha256": ""}, "tokenizer"), PARTS),
        (edited({"file": "\0", "sha256": ""}, "tokenizer"), "is not the one"),
        (edited(5, "made_with"), PARTS),
    ],
)
def test_a_config_that_cannot_be_read_is_named(tmp_path, spoil, words):
    path = created(tmp_path / "run").path / "config.json"
    path.write_text(spoil(path.read_text()), errors="surrogateescape")
    message = complaint(run_dir.open_run, path.parent, GeneratorExperiment)
    assert str(path.parent) in message
    assert re.search(words, message)
    assert len(message) < 400


@pytest.mark.parametrize("spoil", [Path.touch, os.mkfifo, lambda path: None, Path.mkdir])
def test_a_tokenizer_that_is_not_the_run_s_is_told(tmp_path, spoil):
    path = created(tmp_path / "run").path / "tokenizer.json"
    path.unlink()
    spoil(path)
    assert f"{path} is not the one" in complaint(run_dir.open_run, path.parent, GeneratorExperiment)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_a_file_that_may_not_be_read_is_told(tmp_path, monkeypatch, file):
    folder, open_file = created(tmp_path / "run").path, Path.open

    def refuse(path, *arguments, **settings):
        if path.name == file:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_file(path, *arguments, **settings)

    monkeypatch.setattr(Path, "open", refuse)
    message = complaint(run_dir.open_run, folder, GeneratorExperiment)
    assert message == f"can't read {folder / file}: Permission denied"


def test_a_folder_that_is_no_run_is_told_from_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the checkout may have run_dir, of which the newest is named
    assert "not a run folder" in complaint(run_dir.open_run, tmp_path, GeneratorExperiment)
    message = complaint(run_dir.open_run, tmp_path / "nowhere", GeneratorExperiment)
    assert message.endswith("nowhere does not exist")


# Which there are


def make_study(folder, runs):
    variants = [{"name": run.name, "run": run.name} for run in runs]
    write(folder / "study.json", {"name": "tiny", "variants": variants})
    return folder


def folders(root):
    return [run.folder for run in find_runs(root)]


def test_runs_and_studies_are_found_newest_first_whatever_lies_between(tmp_path):
    """As old as their beginning; of a config that does not say it as old as that file."""
    old = make_run(tmp_path / "demo" / "20260101", 0, began=50)
    young = make_run(tmp_path / "first", 30, began=10)
    before = make_run(tmp_path / "damaged", 20)
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
    make_study(Path("runs/demo/study"), [])
    assert find_run("runs/demo") == two
    assert find_run("runs/demo", studies=True) == find_run("runs/demo/study")
    assert find_run("runs/demo/study") == Path("runs/demo/study")
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
    ("best_metric", "scores", "best"),
    [
        ("loss", [(3, 1.5), (6, 1.25), (9, 1.75)], "loss 1.2500"),
        ("accuracy", [(3, -0.25), (6, -0.75)], "accuracy 0.7500"),
        ("loss", [(3, 1.5), (4, 1.0)], "loss 1.5000"),  # as the run itself counts
        ("loss", [(4, 1.0)], "loss 1.0000"),
        ("loss", [], ""),
    ],
)
def test_a_run_says_how_far_it_has_come_and_its_best_validation(
    tmp_path, best_metric, scores, best
):
    run = make_run(tmp_path / "run", 0, scores=scores, best_metric=best_metric)
    write(run / "checkpoints" / "1" / "metrics" / "metrics", "?")  # damaged
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
