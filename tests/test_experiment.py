"""Experiments check their fields and print the files that they read."""

import math
import os

import pytest

from tlite.data import BuiltinText, LabelledText, ParallelText, TextFile
from tlite.errors import UserError
from tlite.experiment import (
    BPE,
    Bytes,
    ClassifierExperiment,
    GeneratorExperiment,
    PairSubwords,
    Pretraining,
    Subwords,
    TokenizerFile,
    TranslatorExperiment,
    Words,
    tokenizer_named,
)
from tlite.models import Wide
from tlite.runs.run import print_inputs


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\0", "\x1b[31m"])
def test_a_name_must_be_printable(name):
    with pytest.raises(ValueError, match="name must be printable"):
        GeneratorExperiment(name)
    assert GeneratorExperiment("Grüße 1").name == "Grüße 1"


INVALID = {
    lambda: Subwords(pieces=0): "pieces must be at least 1, not 0",
    lambda: PairSubwords(pieces=10**12): "pieces must be at most 1,000,000, not 1000000000000",
    lambda: tokenizer_named("bpe:256"): "pieces of bytes must be at least 257, not 256",
    lambda: tokenizer_named("bpe:x"): "invalid literal for int",
    lambda: TranslatorExperiment("x", buckets=1001): "buckets must be at most 1,000, not 1001",
    lambda: Pretraining(pretraining_learning_rate=math.nan): "pretraining_learning_rate must be",
    lambda: Words(min_document_frequency=0): "min_document_frequency",
    lambda: Words(word_ngrams=1): "word_ngrams must be 0, or 2 to 16, not 1",
    lambda: ClassifierExperiment("x", ngram_l2=math.inf): "ngram_l2",
    lambda: ClassifierExperiment("x", sentences=-1): "sentences",
    lambda: Wide(0, -1): "num_word_ngrams",
    lambda: Pretraining(pretraining_dropout=-1.0): r"the pretraining dropout must be in \[0, 1\)",
}


@pytest.mark.parametrize("make", INVALID)
def test_invalid_fields_are_errors(make):
    with pytest.raises(ValueError, match=INVALID[make]):
        make()


@pytest.mark.parametrize(
    ("name", "tokenizer"),
    [
        ("bytes", Bytes()),
        ("bpe:300", BPE(300)),
        ("gpt2", TokenizerFile("gpt2")),
        ("a/bpe:3", TokenizerFile("a/bpe:3")),
    ],
)
def test_tokenizers_are_selected_by_name(name, tokenizer):
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
INPUTS = [
    (GeneratorExperiment("x", BuiltinText()), "", ""),
    (GeneratorExperiment("x", TextFile("a.txt")), "{}/a.txt", "{}/a.txt"),
    (TranslatorExperiment("x", ParallelText(**NAMES)), TEXTS, "{}/c.txt"),
    (ClassifierExperiment("x", LabelledText(**NAMES)), TEXTS, "{}/c.txt"),
    (ClassifierExperiment("x", HALVES, pretraining=UNLABELLED), "{}/a.txt, {}/d.txt", ""),
    (ClassifierExperiment("x", HUB), "the set some/one (train)", "the set some/one (␛[2J)"),
    (ClassifierExperiment("x", LOCAL), "{}/data (train)", ""),
]
"""Experiments with the printed inputs of training and of the test split."""


@pytest.mark.parametrize(("experiment", "training", "test"), INPUTS)
def test_input_files_are_printed_once_with_full_paths(experiment, training, test, tmp_path, capsys):
    for files, options in ((training, {}), (test, {"splits": ["test"]})):
        print_inputs(experiment, **options)
        line = f"input files: {files}\n".format(*[tmp_path] * 3) if files else ""
        assert capsys.readouterr().out == line


@pytest.mark.parametrize("name", ["/dev/zero", "pipe", "data"])
def test_an_input_that_is_not_a_regular_file_is_an_error(name):
    os.mkfifo("pipe")
    for experiment in (
        GeneratorExperiment("x", TextFile(name)),
        ClassifierExperiment("x", LabelledText(training=(name,))),
    ):
        with pytest.raises(UserError, match="not a file"):
            print_inputs(experiment)
