"""Inputs of experiments: absolute paths, moved files, and data classes of the user."""

import dataclasses
import json
import re
import tracemalloc
from pathlib import Path

import pytest

from tests.helpers.complaints import complaint
from tests.helpers.corpora import write_corpus
from tests.helpers.runs import GENERATOR, varied
from tlite.data import Corpus, Example, LabelledText, Pair, Shakespeare, TextFile
from tlite.experiment import (
    Characters,
    ClassifierExperiment,
    Pretrained,
    Pretraining,
    TranslatorExperiment,
)
from tlite.runs import Run, run_class
from tlite.runs.generator import make_tokenizer
from tlite.runs.study import resolve_all
from tlite.training import Trainer

TINY = varied(GENERATOR, data=TextFile("my.txt"), prompt="a")


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


def test_open_latest_opens_the_newest_run(here):
    Run.create(TINY)
    created = Run.create(TINY)
    assert Run.open("latest").dir.path.resolve() == created.dir.path.resolve()


def test_moved_data_is_used_if_it_is_unchanged(here, monkeypatch):
    Run.create(TINY, Path("run"))
    monkeypatch.chdir("../other")
    moved = here.rename(here.with_name("moved"))
    message = complaint(Run.open, moved / "run")
    assert re.search(r"no file .*project/my\.txt: .*if the file has moved, .*TLITE_DATA", message)
    monkeypatch.setenv("TLITE_DATA", str(moved))
    assert Run.open(moved / "run").experiment.data.path == str(moved / "my.txt")
    (moved / "my.txt").write_text("a text of another's\n" * 20)
    assert "have changed" in complaint(Run.open, moved / "run")


@pytest.mark.parametrize("kind", ["text", "corpus"])
def test_new_run_ignores_other_data_of_the_same_name(kind, here, monkeypatch):
    write_corpus(here / "data" / "mine")
    (here / "data" / "my.txt").write_text("a text of another's\n" * 20)
    monkeypatch.setenv("TLITE_DATA", str(here / "data"))
    data = TextFile("/home/me/my.txt") if kind == "text" else Corpus("/home/me/mine")
    experiment = dataclasses.replace(TINY, data=data)
    assert "/home/me" in complaint(Run.create, experiment, Path("run"))


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


def test_characters_of_a_large_corpus_are_read_one_text_at_a_time():
    texts = (f"{number}".ljust(2**20, "x") for number in range(16))
    tracemalloc.start()
    _, tokenizer = make_tokenizer(Characters(), lambda _: texts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert {*tokenizer.characters} >= {*"0123456789x"}
    assert peak < 2**22


@dataclasses.dataclass(frozen=True)
class YieldedPairs:
    def pairs(self, split):
        yield Pair("a text", "ein Text", "1")


@dataclasses.dataclass(frozen=True)
class NoPairs:
    def pairs(self, split):
        return [] if split == "validation" else [Pair("a text", "ein Text", "1")]


@pytest.mark.parametrize(
    ("data", "message"),
    [(YieldedPairs(), "not a generator"), (NoPairs(), "a split of the data is empty")],
)
def test_yielded_or_missing_examples_are_an_error(data, message, without_type_checks):
    assert message in complaint(Run.create, TranslatorExperiment("x", data))


@pytest.mark.parametrize(
    ("experiment", "data", "missing"),
    [
        (TINY, OwnSplit(3), "validation_fraction"),
        (ClassifierExperiment("x"), OwnRows(), "classes"),
        (TranslatorExperiment("x"), OwnRows(), "pairs"),
    ],
)
def test_an_invalid_data_class_is_an_error(experiment, data, missing, without_type_checks):
    """It lacks an attribute, or gives values of another type."""
    lacking = dataclasses.replace(experiment, data=OwnText())
    assert f"OwnText has no {missing}" in complaint(lacking.resolve)
    wrong = dataclasses.replace(experiment, data=data).resolve()
    assert re.search("int|tuple", complaint(run_class(wrong).load_data, wrong))


@dataclasses.dataclass(frozen=True)
class OwnLabel:
    label: int | str
    classes = "a", "b"

    def examples(self, split):
        return [Example("text", "a", None), Example("text", "b", self.label)]


@pytest.mark.parametrize("label", [-1, 2, "b"])
def test_a_label_that_is_no_class_is_an_error(label, without_type_checks):
    experiment = ClassifierExperiment("x", OwnLabel(label))
    message = complaint(run_class(experiment).load_data, experiment)
    assert message.startswith(f"the label of 'text' is {label!r}: it must be None or the index")


def test_paths_of_all_inputs_become_absolute(here):
    for name in ("a.csv", "more.txt", "data/b.csv"):
        (here / name).touch()
    (here / "bert").mkdir()
    data = LabelledText(training=("a.csv", "b.csv"), validation=("nowhere.csv",))
    source = Pretraining(unlabelled=("more.txt",))
    experiment = ClassifierExperiment("x", data, pretraining=source)
    resolved = experiment.with_paths()
    assert resolved.data.training == (str(here / "a.csv"), str(here / "data" / "b.csv"))
    assert resolved.data.validation == ("nowhere.csv",)
    assert resolved.pretraining.unlabelled == (str(here / "more.txt"),)
    (here / "more.txt").rename(here / "data" / "more.txt")
    moved = resolved.with_paths(moved=True)
    assert moved.pretraining.unlabelled == (str(here / "data" / "more.txt"),)
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
    assert resolved.with_paths(moved=True).data.folder == str(Path("data").absolute())
    new = dataclasses.replace(TINY, data=Shakespeare(folder="texts"))
    assert new.with_paths().data.folder == str(Path("texts").absolute())


def test_variants_choose_the_columns_of_a_table_once(here, capsys):
    pytest.importorskip("datasets")
    rows = "".join(f"word {i},{i % 2}\n" for i in range(40))
    (here / "a.csv").write_text(f"text,label\n{rows}")
    one = ClassifierExperiment("x", LabelledText(path="a.csv"))
    other = dataclasses.replace(one, padding="unknown")
    resolved = resolve_all({"one": one, "other": other})
    assert capsys.readouterr().out.count("text: 'text'") == 1
    assert resolved == {"one": one.resolve(), "other": other.resolve()}
