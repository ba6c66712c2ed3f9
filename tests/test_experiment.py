"""Experiments check their fields and print the files that they read."""

import math
import os

import pytest

from tlite import experiment as E
from tlite.data import BuiltinText, LabelledText, ParallelText, TextFile
from tlite.errors import UserError
from tlite.models import Wide
from tlite.runs.run import print_inputs
from tlite.training import TrainingConfig


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\0", "\x1b[31m"])
def test_a_name_must_be_printable(name):
    with pytest.raises(ValueError, match="name must be printable"):
        E.GeneratorExperiment(name)
    assert E.GeneratorExperiment("Grüße 1").name == "Grüße 1"


INVALID = {
    lambda: E.Subwords(num_subwords=0): "num_subwords must be at least 1, not 0",
    lambda: E.PairSubwords(
        num_subwords=10**12
    ): "num_subwords must be at most 1,000,000, not 1000000000000",
    lambda: E.tokenizer_named("bpe:256"): "num_subwords must be at least 257, not 256",
    lambda: E.tokenizer_named("bpe:x"): "bpe:N needs a whole number",
    lambda: E.TranslatorExperiment("x", buckets=1001): "buckets must be at most 1,000, not 1001",
    lambda: E.Pretraining(pretraining_learning_rate=math.nan): "pretraining_learning_rate must be",
    lambda: E.Words(min_document_frequency=0): "min_document_frequency",
    lambda: E.Words(word_ngrams=1): "word_ngrams must be 0, or 2 to 16, not 1",
    lambda: E.ClassifierExperiment("x", ngram_l2=math.inf): "ngram_l2",
    lambda: E.ClassifierExperiment("x", sentences=-1): "sentences",
    lambda: Wide(0, -1): "num_word_ngrams",
    lambda: E.Pretraining(pretraining_dropout=-1.0): r"the pretraining dropout must be in \[0, 1\)",
    lambda: TrainingConfig(ema=1.0): "ema is a decay between 0 and 1, such as 0.999, not 1.0",
    lambda: TrainingConfig(best_metric="ema_loss"): "best_metric ema_loss needs ema",
    lambda: TrainingConfig(best_metric="average_loss", ema=0.9): "needs average_last",
    lambda: TrainingConfig(optimizer="schedule_free", schedule="cosine"): "be constant, not cosine",
}


@pytest.mark.parametrize("make", INVALID)
def test_invalid_fields_are_errors(make):
    with pytest.raises(ValueError, match=INVALID[make]):
        make()


@pytest.mark.parametrize(
    ("name", "tokenizer"),
    [
        ("bytes", E.Bytes()),
        ("bpe:300", E.BPE(300)),
        ("gpt2", E.TokenizerFile("gpt2")),
        ("a/bpe:3", E.TokenizerFile("a/bpe:3")),
    ],
)
def test_tokenizers_are_selected_by_name(name, tokenizer):
    assert E.tokenizer_named(name) == tokenizer


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Files a.txt to d.txt here, and one in the data folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TLITE_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    for name in ("a.txt", "b.txt", "c.txt", "d.txt", "data/e.txt"):
        (tmp_path / name).touch()


NAMES = {"training": ("a.txt", "e.txt"), "validation": ("b.txt",), "test": ("c.txt",)}
UNLABELLED = E.Pretraining(unlabelled=("d.txt",))
HALVES = LabelledText(training=("a.txt",))
HUB = LabelledText(hub="some/one", training=("train",), test=("\x1b[2J",))
LOCAL = LabelledText(hub="data", training=("train",))
TEXTS = "{}/a.txt, {}/data/e.txt, {}/b.txt"
INPUTS = [
    (E.GeneratorExperiment("x", BuiltinText()), "", ""),
    (E.GeneratorExperiment("x", TextFile("a.txt")), "{}/a.txt", "{}/a.txt"),
    (E.TranslatorExperiment("x", ParallelText(**NAMES)), TEXTS, "{}/c.txt"),
    (E.ClassifierExperiment("x", LabelledText(**NAMES)), TEXTS, "{}/c.txt"),
    (E.ClassifierExperiment("x", HALVES, pretraining=UNLABELLED), "{}/a.txt, {}/d.txt", ""),
    (E.ClassifierExperiment("x", HUB), "the set some/one (train)", "the set some/one (␛[2J)"),
    (E.ClassifierExperiment("x", LOCAL), "{}/data (train)", ""),
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
        E.GeneratorExperiment("x", TextFile(name)),
        E.ClassifierExperiment("x", LabelledText(training=(name,))),
    ):
        with pytest.raises(UserError, match="not a file"):
            print_inputs(experiment)
