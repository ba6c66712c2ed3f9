"""Inputs of experiments: absolute paths, moved files, and data classes of the user."""

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.helpers.corpora import write_corpus
from tlite.data import Corpus, LabelledText, Shakespeare, TextFile
from tlite.errors import UserError
from tlite.experiment import (
    ClassifierExperiment,
    GeneratorExperiment,
    Pretrained,
    Pretraining,
    TranslatorExperiment,
)
from tlite.models import GeneratorConfig
from tlite.runs import ClassifierRun, GeneratorRun, Run, TranslatorRun
from tlite.runs.study import resolve_all
from tlite.training import Trainer, TrainingConfig

TINY = GeneratorExperiment(
    "tiny",
    TextFile("my.txt"),
    GeneratorConfig(context=8, width=8, num_heads=2, num_blocks=1),
    TrainingConfig(steps=1, batch_size=2, evaluate_every=1, precision="float32"),
    prompt="a",
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A project folder with a relative TLITE_DATA, and a folder beside it."""
    (tmp_path / "other").mkdir()
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "my.txt").write_text("a text of my own\n" * 20)
    monkeypatch.chdir(project)
    monkeypatch.setenv("TLITE_DATA", "data")
    monkeypatch.setattr(Trainer, "compile", lambda _: None)  # nothing is trained
    return project


@pytest.mark.parametrize("kind", ["text", "in the data folder", "corpus"])
def test_run_is_opened_from_another_folder(kind, here, monkeypatch):
    data = TextFile("my.txt")
    if kind == "in the data folder":
        (here / "my.txt").rename(here / "data" / "my.txt")
    elif kind == "corpus":
        write_corpus(Path("corpora/mine"))
        data = Corpus("corpora/mine", validation_tokens=64)
    created = Run.create(dataclasses.replace(TINY, data=data), Path("run"))
    monkeypatch.chdir("../other")
    again = Run.open(here / "run")
    assert again.dir.fingerprint == json.loads(json.dumps(created.dir.fingerprint))
    assert again.experiment == created.experiment


def test_moved_data_is_used_if_it_is_unchanged(here, monkeypatch):
    Run.create(TINY, Path("run"))
    monkeypatch.chdir("../other")
    moved = here.rename(here.with_name("moved"))
    message = r"no file .*project/my\.txt: if it has moved, .*TLITE_DATA"
    with pytest.raises(UserError, match=message):
        Run.open(moved / "run")
    monkeypatch.setenv("TLITE_DATA", str(moved))
    assert Run.open(moved / "run").experiment.data.path == str(moved / "my.txt")
    (moved / "my.txt").write_text("a text of another's\n" * 20)
    with pytest.raises(UserError, match="has changed"):
        Run.open(moved / "run")


@pytest.mark.parametrize("kind", ["text", "corpus"])
def test_new_run_ignores_other_data_of_the_same_name(kind, here, monkeypatch):
    write_corpus(here / "data" / "mine")
    (here / "data" / "my.txt").write_text("a text of another's\n" * 20)
    monkeypatch.setenv("TLITE_DATA", str(here / "data"))
    data = TextFile("/home/me/my.txt") if kind == "text" else Corpus("/home/me/mine")
    with pytest.raises(UserError, match="/home/me"):
        Run.create(dataclasses.replace(TINY, data=data), Path("run"))


@dataclasses.dataclass(frozen=True)
class OwnText:
    """A user's data without the attributes that runs need."""

    content: object = "a text of my own\n" * 20

    def load(self):
        return self.content


@dataclasses.dataclass(frozen=True)
class OwnSplit(OwnText):
    validation_fraction: float = 0.1


@dataclasses.dataclass(frozen=True)
class OwnRows(OwnText):
    classes = "a", "b"

    def examples(self, split):
        return [("a text", 0), ("another", 1)]

    pairs = examples


CLASSIFIER, TRANSLATOR = ClassifierExperiment("x"), TranslatorExperiment("x")


@pytest.mark.parametrize(
    ("experiment", "data", "missing"),
    [
        (TINY, OwnText(), "OwnText has no validation_fraction"),
        (CLASSIFIER, OwnText(), "OwnText has no classes"),
        (TRANSLATOR, OwnText(), "OwnText has no pairs"),
        (TINY, OwnSplit(), ""),
        (CLASSIFIER, OwnRows(), ""),
        (TRANSLATOR, OwnRows(), ""),
    ],
)
def test_missing_attribute_of_a_data_class_is_an_error(
    experiment, data, missing, without_type_checks
):
    with pytest.raises(UserError, match=missing) if missing else nullcontext():
        dataclasses.replace(experiment, data=data).resolve()


@pytest.mark.parametrize(
    ("kind", "experiment", "data"),
    [
        (GeneratorRun, TINY, OwnSplit(3)),
        (ClassifierRun, CLASSIFIER, OwnRows()),
        (TranslatorRun, TRANSLATOR, OwnRows()),
    ],
)
def test_wrong_type_from_a_data_class_is_an_error(kind, experiment, data, without_type_checks):
    with pytest.raises(UserError, match=r"int|tuple"):
        kind.load_data(dataclasses.replace(experiment, data=data))


def test_paths_of_all_inputs_become_absolute(here):
    for name in ("a.csv", "more.txt", "data/b.csv"):
        (here / name).touch()
    (here / "bert").mkdir()
    data = LabelledText(training=("a.csv", "b.csv"), validation=("nowhere.csv",))
    source = Pretraining(unlabelled=("more.txt",))
    resolved = ClassifierExperiment("x", data, pretraining=source).with_paths()
    assert resolved.data.training == (str(here / "a.csv"), str(here / "data" / "b.csv"))
    assert resolved.data.validation == ("nowhere.csv",)
    assert resolved.pretraining.unlabelled == (str(here / "more.txt"),)
    tuned = ClassifierExperiment("x", init_from=Pretrained("bert")).with_paths()
    assert tuned.init_from.folder == str(here / "bert")
    hub = ClassifierExperiment("x", LabelledText(hub="data/set"), init_from=Pretrained("no/bert"))
    assert hub.with_paths() == hub


def test_downloaded_data_keeps_its_folder(here, monkeypatch):
    path = here / "data" / Shakespeare.file
    path.parent.mkdir()
    path.touch()
    resolved = dataclasses.replace(TINY, data=Shakespeare()).with_paths()
    assert resolved.data.folder == str(here / "data")
    monkeypatch.chdir("../other")
    assert resolved.data.input_paths("training") == [str(path)]
    assert resolved.with_paths() == resolved
    path.unlink()  # on another machine: in the data folder of that one
    assert resolved.with_paths().data.folder == str(Path("data").absolute())


def test_variants_choose_the_columns_of_a_table_once(here, capsys):
    pytest.importorskip("datasets")
    rows = "".join(f"word {i},{i % 2}\n" for i in range(40))
    (here / "a.csv").write_text(f"text,label\n{rows}")
    one = ClassifierExperiment("x", LabelledText(path="a.csv"))
    other = dataclasses.replace(one, padding="unknown")
    resolved = resolve_all({"one": one, "other": other})
    assert capsys.readouterr().out.count("text: 'text'") == 1
    assert resolved == {"one": one.resolve(), "other": other.resolve()}
