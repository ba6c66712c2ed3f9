"""Run folders: made once, opened again, and what is wrong with one is said in a line."""

import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from tlite.data import TextFile
from tlite.errors import UserError
from tlite.experiment import ClassifierExperiment, Experiment, GeneratorExperiment
from tlite.runs import GeneratorRun
from tlite.text import CharTokenizer
from tlite.training import runs

EXPERIMENT = GeneratorExperiment("novel", TextFile("a.txt"))
TEXT = "Grüße"


def make_run(folder):
    folder.mkdir()
    return runs.create_run(folder, EXPERIMENT, GeneratorRun.record(TEXT), CharTokenizer(TEXT))


def complaint(action, *arguments):
    """The one line that a user error says."""
    with pytest.raises(UserError) as caught:
        action(*arguments)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_a_run_that_was_created_opens_as_it_was(tmp_path):
    run = make_run(tmp_path / "run")
    assert runs.open_run(tmp_path / "run", GeneratorExperiment) == run
    tokenizer = CharTokenizer.load(run.folder / CharTokenizer.file_name)
    assert tokenizer.characters == CharTokenizer(TEXT).characters
    assert {path.name for path in run.folder.iterdir()} == {"config.json", "tokenizer.json"}


@pytest.mark.parametrize("experiment", [EXPERIMENT, ClassifierExperiment("stars")])
def test_a_run_opens_whatever_kind_of_experiment_it_is_of(tmp_path, experiment):
    run = runs.create_run(tmp_path, experiment, {}, CharTokenizer(TEXT))
    assert runs.open_run(tmp_path, Experiment) == run


def test_a_run_of_another_kind_is_refused(tmp_path):
    make_run(tmp_path / "run")
    message = complaint(runs.open_run, tmp_path / "run", ClassifierExperiment)
    assert "run of a GeneratorExperiment, not of a ClassifierExperiment" in message


def test_a_text_is_known_by_its_content():
    assert GeneratorRun.record(TEXT) == GeneratorRun.record(TEXT)
    assert GeneratorRun.record(TEXT)["characters"] == len(TEXT)
    assert GeneratorRun.record(TEXT) != GeneratorRun.record(TEXT[::-1])


def test_a_named_folder_that_exists_is_refused(tmp_path):
    wanted = tmp_path / "a" / "run"
    assert runs.new_folder("novel", wanted) == wanted
    assert wanted.is_dir()
    assert f"tlite train --resume {wanted}" in complaint(runs.new_folder, "novel", wanted)


def test_folders_made_in_the_same_second_are_different(tmp_path, monkeypatch):
    now = datetime.datetime(2026, 1, 2, 3, 4, 5)
    clock = SimpleNamespace(datetime=SimpleNamespace(now=lambda: now))
    monkeypatch.setattr(runs, "datetime", clock)
    made = [runs.new_folder("novel", root=tmp_path) for _ in range(4)]
    assert made[0] == tmp_path / "novel" / "20260102-030405"
    assert len(set(made)) == 4
    assert all(path.is_dir() for path in made)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in complaint(runs.new_folder, "x", tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda text: text[: len(text) // 2], "not a config"),
        (lambda text: "", "not a config"),
        (lambda text: "[]", "not a config"),
        (lambda text: text.replace('"steps"', '"colour"'), "no field colour"),
        (lambda text: text.replace("GeneratorExperiment", "Cooking"), "Cooking"),
        (lambda text: "{}", "experiment"),
    ],
)
def test_a_config_that_cannot_be_read_is_named(tmp_path, spoil, words):
    path = make_run(tmp_path / "run").folder / "config.json"
    path.write_text(spoil(path.read_text()))
    message = complaint(runs.open_run, path.parent, GeneratorExperiment)
    assert str(path) in message
    assert words in message


def test_a_config_that_is_not_text_is_named(tmp_path):
    path = make_run(tmp_path / "run").folder / "config.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert str(path) in complaint(runs.open_run, path.parent, GeneratorExperiment)


def test_a_folder_that_is_no_run_is_told_from_none_and_the_newest_run_is_named(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert "not a run folder" in complaint(runs.open_run, Path("."), GeneratorExperiment)
    for name in ("20260101-000000", "20260102-000000"):
        folder = tmp_path / "runs" / "novel" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    message = complaint(runs.open_run, Path("nowhere"), GeneratorExperiment)
    assert "nowhere does not exist" in message
    assert message.endswith("20260102-000000")
