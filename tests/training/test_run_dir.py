"""Run folders are created, opened and listed; errors of damaged ones are one line."""

import dataclasses
import datetime
import errno
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from tests.helpers.complaints import complaint
from tests.helpers.fake_runs import make_run, write
from tlite.data import TextFile
from tlite.errors import UserError
from tlite.experiment import Experiment, GeneratorExperiment
from tlite.models import FeedForward
from tlite.runs import GeneratorRun
from tlite.text import CharTokenizer
from tlite.training import run_dir
from tlite.training.run_dir import create_run, find_run, find_runs, open_run, summarize_run

EXPERIMENT = GeneratorExperiment("novel", TextFile("a.txt"))
TEXT = "Grüße"


def create(folder, experiment=EXPERIMENT, tokenizer=None, **options):
    data = GeneratorRun.fingerprint(experiment, TEXT)
    return create_run(folder, experiment, data, tokenizer or CharTokenizer(TEXT), **options)


def test_a_created_run_opens_as_it_was(tmp_path):
    run = create(tmp_path / "run")
    assert open_run(tmp_path / "run", GeneratorExperiment) == run
    tokenizer = CharTokenizer.load(run.path / CharTokenizer.file_name)
    assert tokenizer.characters == CharTokenizer(TEXT).characters
    names = {"config.json", "tokenizer.json", "checkpoints"}
    assert {path.name for path in run.path.iterdir()} == names
    assert "can't write" in complaint(create, tmp_path / "run")  # it is never replaced
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_folders_created_in_the_same_second_are_different(tmp_path, monkeypatch):
    now = datetime.datetime(2026, 1, 2, 3, 4, 5)
    clock = SimpleNamespace(datetime=SimpleNamespace(now=lambda: now))
    monkeypatch.setattr(run_dir, "datetime", clock)
    runs = [create(run_dir.new_folder("novel", root=tmp_path)).path for _ in range(3)]
    runs.append(create(runs[0], exist_ok=True).path)  # the folder exists by now
    suffixes = "", "-2", "-3", "-4"
    assert [folder.name for folder in runs] == [f"{now:%Y%m%d-%H%M%S}{s}" for s in suffixes]
    assert all(open_run(folder, Experiment).path == folder for folder in runs)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_a_run_appears_complete_or_not_at_all(tmp_path, error):
    class Failing(CharTokenizer):
        def save(self, path):
            super().save(path)
            raise error

    with pytest.raises((KeyboardInterrupt, UserError)):
        create(tmp_path / "run", tokenizer=Failing(TEXT))
    assert list(tmp_path.iterdir()) == []


def test_a_config_that_could_not_be_read_back_is_refused(tmp_path):
    feed_forward = FeedForward()
    object.__setattr__(feed_forward, "activation", "my_own")
    model = dataclasses.replace(EXPERIMENT.model, feed_forward=feed_forward)
    invalid = dataclasses.replace(EXPERIMENT, model=model)
    message = complaint(create, tmp_path / "run", invalid)
    assert re.search("never be opened again.*activation.*my_own", message)
    assert list(tmp_path.iterdir()) == []


def test_changed_source_and_libraries_are_warned_of(tmp_path, capsys):
    folder = create(tmp_path / "run").path
    content = json.loads((folder / "config.json").read_text())
    versions = content["made_with"]
    assert versions["jax"] == jax.__version__
    assert re.fullmatch("([0-9a-f]{40}[+]?)?", versions["commit"])
    assert {"tlite/functional", "tlite/runs", "tlite/decoding"} <= versions.keys()
    open_run(folder, Experiment)
    assert capsys.readouterr().err == ""
    changed = versions | {"tlite/functional": "0", "jax": "0.1.2"}
    (folder / "config.json").write_text(json.dumps(content | {"made_with": changed}))
    open_run(folder, Experiment)
    (warning,) = capsys.readouterr().err.splitlines()
    assert f"warning: jax (was 0.1.2), tlite/functional changed since {folder} " in warning


FIELDS = "a field is missing or invalid"


def edit(value, *path):
    """Return a function that sets the value at this path of a config."""

    def apply(text):
        content = inner = json.loads(text)
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value
        return json.dumps(content)

    return apply


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: text[: len(text) // 2], "line .* is not JSON"),
        (lambda text: "\udcff\udcfe\0", "can't decode"),  # bytes that are no text
        (lambda text: "[" * 100_000 + "]" * 100_000, FIELDS),
        (lambda text: "{}", FIELDS),
        (edit("ClassifierExperiment", "experiment", "kind"), "ClassifierExperiment"),
        (edit(5, "experiment", "kind"), FIELDS),
        (edit([1] * 9999, "experiment", "model"), "model: expected"),
        (edit(10**400, "experiment", "training", "learning_rate"), "learning_rate: expected float"),
        (edit(None, "data"), FIELDS),
        (edit(None, "tokenizer"), FIELDS),
        (edit({"file": 5, "sha256": ""}, "tokenizer"), FIELDS),
        (edit({"file": "\0", "sha256": ""}, "tokenizer"), "is missing, or"),
        (edit(5, "made_with"), FIELDS),
    ],
)
def test_a_config_that_cannot_be_read_is_named(tmp_path, damage, reason):
    path = create(tmp_path / "run").path / "config.json"
    path.write_text(damage(path.read_text()), errors="surrogateescape")
    message = complaint(open_run, path.parent, GeneratorExperiment)
    assert str(path.parent) in message
    assert re.search(reason, message)
    assert len(message) < 400


@pytest.mark.parametrize("replace", [Path.touch, os.mkfifo, lambda path: None, Path.mkdir])
def test_another_tokenizer_than_the_run_s_is_refused(tmp_path, replace):
    path = create(tmp_path / "run").path / "tokenizer.json"
    path.unlink()
    replace(path)
    assert f"{path} is missing, or" in complaint(open_run, path.parent, GeneratorExperiment)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_a_file_without_read_permission_is_named(tmp_path, monkeypatch, file):
    folder, open_file = create(tmp_path / "run").path, Path.open

    def refuse(path, *arguments, **settings):
        if path.name == file:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_file(path, *arguments, **settings)

    monkeypatch.setattr(Path, "open", refuse)
    message = complaint(open_run, folder, GeneratorExperiment)
    assert message == f"can't read {folder / file}: Permission denied"


def test_a_folder_without_a_run_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "not a run folder" in complaint(open_run, tmp_path, GeneratorExperiment)
    message = complaint(open_run, tmp_path / "nowhere", GeneratorExperiment)
    assert message.endswith("nowhere does not exist")
    run = make_run(Path("runs/run"), 0)
    assert f"newest run is {run}" in complaint(open_run, tmp_path / "nowhere", GeneratorExperiment)
    study = make_study(tmp_path / "study", [make_run(tmp_path / "study" / "a", 0)])
    assert "one of its runs (a)" in complaint(open_run, study, GeneratorExperiment)


def make_study(folder, runs):
    variants = [{"name": run.name, "run": run.name} for run in runs]
    write(folder / "study.json", {"name": "tiny", "variants": variants})
    return folder


def test_runs_and_studies_are_listed_newest_first(tmp_path):
    old = make_run(tmp_path / "demo" / "20260101", 0, created=50)
    young = make_run(tmp_path / "first", 30, created=10)
    undated = make_run(tmp_path / "second", 20)
    variants = [make_run(tmp_path / "study" / n, 0, created=t) for n, t in (("a", 40), ("b", 5))]
    study = make_study(tmp_path / "study", variants)
    make_run(tmp_path / "demo" / ".hidden", 0)
    write(young / "pretraining" / "metrics.jsonl", "")
    write(tmp_path / "gpt2" / "config.json", {"model_type": "gpt2"})
    write(tmp_path / "notes.txt", "none")
    assert [run.folder for run in find_runs(tmp_path)] == [young, undated, study, old]
    assert find_runs(tmp_path / "nowhere") == []


def test_a_folder_of_runs_means_its_newest_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = make_run(Path("runs/demo/one"), 30)
    two = make_run(Path("runs/demo/two"), 20)
    other = make_run(Path("runs/other/three"), 10, kind="ClassifierExperiment")
    write(Path("runs/demo/bad/config.json"), "{")
    assert find_run("runs/demo") == find_run(two) == two
    assert find_run(one) == one
    assert find_run("runs") == find_run("latest") == other
    assert find_run("runs", kind="generator") == find_run("latest", kind="generator") == two
    for none in ("nowhere", "gpt2", "\0"):
        assert find_run(none) == Path(none)
    make_study(Path("runs/demo/study"), [])
    assert find_run("runs/demo") == two
    assert find_run("runs/demo", studies=True) == find_run("runs/demo/study")
    assert find_run("runs/demo/study") == Path("runs/demo/study")


def test_a_folder_of_runs_may_be_called_checkpoints(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    run = create(tmp_path / "checkpoints" / "run").path
    assert find_run(tmp_path) == run


def test_damaged_runs_are_listed_and_never_the_newest(tmp_path):
    intact, config = make_run(tmp_path / "intact", 99), {"kind": [], "name": 1}
    infinite = '{"experiment": {"kind": "x", "name": "x", "training": {"steps": Infinity}}}'
    incomplete = {"kind": "GeneratorExperiment"}, config | {"training": {"steps": "x"}}
    damaged = ["{", "[]", "[" * 100_000, infinite, *({"experiment": e} for e in incomplete)]
    for number, content in enumerate(damaged):
        write(tmp_path / str(number) / "config.json", content)
    write(tmp_path / "no config" / "metrics.jsonl", "")
    write(tmp_path / "study" / "study.json", {"variants": 3})
    kinds = [run.kind for run in find_runs(tmp_path)]
    assert sorted(kinds) == ["damaged"] * 8 + ["generator"]
    assert find_run(tmp_path) == intact


@pytest.mark.parametrize(
    ("best_metric", "scores", "best"),
    [
        ("loss", [(3, 1.5), (6, 1.25), (9, 1.75)], "loss 1.2500"),
        ("accuracy", [(3, -0.25), (6, -0.75)], "accuracy 0.7500"),
        ("loss", [(3, 1.5), (4, 1.0)], "loss 1.5000"),  # step 4 is not scheduled
        ("loss", [(4, 1.0)], "loss 1.0000"),
        ("loss", [], ""),
    ],
)
def test_a_summary_has_progress_and_best_validation(tmp_path, best_metric, scores, best):
    folder = make_run(tmp_path / "run", 0, scores=scores, best_metric=best_metric)
    write(folder / "checkpoints" / "1" / "metrics" / "metrics", "?")  # damaged
    run = summarize_run(folder)
    assert (run.experiment, run.kind, run.best) == ("tiny", "generator", best)
    assert (run.progress, run.total) == (max((s for s, _ in scores), default=1), 9)


def test_a_study_s_progress_is_its_ended_variants(tmp_path):
    runs = [make_run(tmp_path / n, 0, scores=[(step, 1.0)]) for n, step in (("a", 9), ("b", 6))]
    study = summarize_run(make_study(tmp_path, [*runs, tmp_path / "not created"]))
    assert (study.kind, study.progress, study.total) == ("study", 1, 3)
