"""Experiments: what makes no sense is refused, and what they read is said."""

import math
import os

import pytest

from tlite.data import BuiltinText, LabelledText, ParallelText, TextFile
from tlite.errors import UserError
from tlite.experiment import (
    BPE,
    Bytes,
    Characters,
    ClassifierExperiment,
    GeneratorExperiment,
    PairSubwords,
    Pretraining,
    Subwords,
    TokenizerFile,
    TranslatorExperiment,
    tokenizer_named,
)
from tlite.runs.run import print_inputs

EXPERIMENTS = [GeneratorExperiment, ClassifierExperiment, TranslatorExperiment]


@pytest.mark.parametrize("kind", EXPERIMENTS)
@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\0", "\x1b[31m"])
def test_a_name_that_no_folder_should_have_is_refused(kind, name):
    with pytest.raises(ValueError, match="name must be printable"):
        kind(name)
    assert kind("Grüße 1").name == "Grüße 1"


REFUSED = {
    lambda: Subwords(pieces=0): "pieces must be at least 1, not 0",
    lambda: PairSubwords(pieces=10**12): "pieces must be at most 1,000,000, not 1000000000000",
    lambda: tokenizer_named("bpe:256"): "pieces of bytes must be at least 257, not 256",
    lambda: tokenizer_named("bpe:x"): "invalid literal for int",
    lambda: TranslatorExperiment("x", buckets=1001): "buckets must be at most 1,000, not 1001",
    lambda: Pretraining(pretraining_learning_rate=math.nan): "pretraining_learning_rate must be",
    lambda: Pretraining(pretraining_dropout=-1.0): r"the pretraining dropout must be in \[0, 1\)",
}


@pytest.mark.parametrize("make", REFUSED)
def test_what_makes_no_sense_is_refused(make):
    with pytest.raises(ValueError, match=REFUSED[make]):
        make()


@pytest.mark.parametrize(
    ("name", "tokenizer"),
    [
        ("characters", Characters()),
        ("bytes", Bytes()),
        ("bpe", BPE()),
        ("bpe:300", BPE(300)),
        ("gpt2", TokenizerFile("gpt2")),
        ("a/bpe:3", TokenizerFile("a/bpe:3")),
    ],
)
def test_tokenizers_have_names(name, tokenizer):
    assert tokenizer_named(name) == tokenizer


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Files a.txt to d.txt here, and one in the data folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TLITE_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    for name in ("a.txt", "b.txt", "c.txt", "d.txt", "data/e.txt"):
        (tmp_path / name).touch()


NAMES = {"training": ("a.txt", "e.txt"), "validation": ("b.txt",), "test": ("c.txt",)}
UNLABELLED = Pretraining(unlabelled=("d.txt",))
HALVES = LabelledText(training=("a.txt",))
HUB = LabelledText(hub="some/one", training=("train",), test=("\x1b[2J",))
LOCAL = LabelledText(hub="data", training=("train",))
TEXTS = "{}/a.txt, {}/data/e.txt, {}/b.txt"
READ = [
    (GeneratorExperiment("x", BuiltinText()), "", ""),
    (GeneratorExperiment("x", TextFile("a.txt")), "{}/a.txt", "{}/a.txt"),
    (TranslatorExperiment("x", ParallelText(**NAMES)), TEXTS, "{}/c.txt"),
    (ClassifierExperiment("x", LabelledText(**NAMES)), TEXTS, "{}/c.txt"),
    (ClassifierExperiment("x", HALVES, pretraining=UNLABELLED), "{}/a.txt, {}/d.txt", ""),
    (ClassifierExperiment("x", HUB), "the set some/one (train)", "the set some/one (␛[2J)"),
    (ClassifierExperiment("x", LOCAL), "{}/data (train)", ""),
]
"""Files by their full paths, once, and where they are read; sets of the hub by name."""


@pytest.mark.parametrize(("experiment", "read", "test"), READ)
def test_what_is_read_is_said(experiment, read, test, tmp_path, capsys):
    for files, parts in ((read, {}), (test, {"splits": ["test"]})):
        print_inputs(experiment, **parts)
        told = f"input files: {files}\n".format(*[tmp_path] * 3) if files else ""
        assert capsys.readouterr().out == told


@pytest.mark.parametrize("name", ["/dev/zero", "pipe", "data"])
def test_what_is_no_file_is_refused(name):
    os.mkfifo("pipe")
    for experiment in (
        GeneratorExperiment("x", TextFile(name)),
        ClassifierExperiment("x", LabelledText(training=(name,))),
        TranslatorExperiment("x", ParallelText(training=("a.txt", name))),
    ):
        with pytest.raises(UserError, match="not a file"):
            print_inputs(experiment)
