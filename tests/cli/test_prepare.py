"""`tlite prepare`: its options and output; data/test_prepare.py tests the corpora."""

import json

import numpy as np
import pytest

from tests.helpers.lines import read_line
from tests.helpers.preparing import SPLITS, read_documents, read_ids
from tlite.data import Corpus
from tlite.runs.experiment_files import load_experiment

TEXTS = [f"This is text number {number}, and it ends here." for number in range(40)]


@pytest.fixture
def prepare(works, tmp_path):
    """Return a function of (folder, tokenizer) that prepares TEXTS and returns the output."""
    source = tmp_path / "texts.jsonl"
    source.write_text("\n".join(json.dumps({"body": text}) for text in TEXTS))
    line = f"prepare {source} --field body --validation-fraction 0.2"
    return lambda folder, tokenizer: works(f"{line} {folder} --tokenizer {tokenizer}")


def test_prepared_corpora_have_the_documents_and_the_tokenizer(prepare):
    printed, corpus = prepare("out", "bytes"), Corpus("out")
    training, validation = (read_documents(corpus, split) for split in SPLITS)
    assert sorted(training + validation) == sorted(TEXTS)
    assert f"text, {len(validation)} documents\n" in printed
    assert printed.splitlines()[-1] == "out: a vocabulary of 257 tokens, stored as uint16"
    prepare("other", "characters")
    assert Corpus("other").manifest().tokenizer.kind == "characters"


def test_a_learned_tokenizer_serves_for_another_corpus(prepare):
    pytest.importorskip("tokenizers")
    assert "out: a vocabulary of 300 tokens" in prepare("out", "bpe:300")
    for folder, tokenizer in (("again", "out"), ("third", "out/tokenizer.json")):
        prepare(folder, tokenizer)
        np.testing.assert_array_equal(read_ids(Corpus(folder)), read_ids(Corpus("out")))
        assert Corpus(folder).manifest().end_id == Corpus("out").manifest().end_id is not None


def test_a_model_has_as_many_rows_as_its_corpus_has_tokens(prepare, capsys):
    pytest.importorskip("tokenizers")
    prepare("out", "bpe:300")
    for line, rows, message in (
        ("", 300, "vocabulary_size=300 instead of 50,304: the corpus has 300 tokens"),
        ("--vocabulary-size 50304", 50304, ""),
        ("--vocabulary_size 384", 384, ""),
        ("--vary vocabulary-size 384 500", 384, ""),
    ):
        words = ["--folder", "out", *line.split()]
        experiment = next(iter(read_line(words, load_experiment("gpt2"))[0].values()))
        assert experiment.model.vocabulary_size == rows
        out = capsys.readouterr().out
        assert out.startswith(message)
        assert bool(out) == bool(message)
