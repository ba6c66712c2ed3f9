"""`tlite prepare`: a corpus on the command line, its tokenizers, and what is said of mistakes."""

import json
import os

import numpy as np
import pytest

from tests.helpers.lines import read_line
from tests.helpers.preparing import read_documents, read_ids, write_json_lines
from tlite.data import Corpus
from tlite.runs.experiment_files import load_experiment

TEXTS = [f"This is text number {number}, and it ends here." for number in range(40)]


@pytest.fixture
def source(tmp_path):
    return write_json_lines(tmp_path / "texts.jsonl", TEXTS)


def test_a_corpus_of_bytes_and_one_of_characters(works, source):
    line = f"prepare {source} {{out}} --validation-fraction 0.2 --tokenizer"
    message = works(f"{line} bytes", out="out")
    corpus = Corpus("out")
    training, validation = (read_documents(corpus, part) for part in ("training", "validation"))
    assert sorted(training + validation) == sorted(TEXTS)
    assert f"text, {len(validation)} documents\n" in message
    assert message.splitlines()[-1] == "out: 257 different tokens, as uint16"
    works(f"{line} characters", out="other")
    manifest = Corpus("other").manifest()
    assert (manifest.tokenizer.kind, manifest.end_id) == ("characters", None)
    assert manifest.splits["training"].bytes == manifest.splits["training"].tokens


def test_a_learned_tokenizer_serves_for_another_corpus(works, source):
    pytest.importorskip("tokenizers")
    line = f"prepare {source} {{out}} --validation-fraction 0.1 --tokenizer"
    message = works(f"{line} bpe:300", out="out")
    assert "out: 300 different tokens" in message
    for name in ("out", "out/tokenizer.json"):
        other = name.replace("/", "-") + "-again"
        works(f"{line} {name}", out=other)
        np.testing.assert_array_equal(read_ids(Corpus(other)), read_ids(Corpus("out")))
        assert Corpus(other).manifest().end_id == Corpus("out").manifest().end_id is not None


@pytest.mark.parametrize(
    ("line", "rows", "message"),
    [
        ("", 300, "vocabulary_size=300 instead of 50,304: the corpus has 300 tokens"),
        ("--vocabulary-size 50304", 50304, ""),
        ("--vocabulary-size 384", 384, ""),
        ("--vocabulary_size 384", 384, ""),
        ("--vary vocabulary-size 384 500", 384, ""),
    ],
)
def test_a_model_has_as_many_rows_as_its_corpus_has_tokens(
    works, source, capsys, line, rows, message
):
    pytest.importorskip("tokenizers")
    works(f"prepare {source} out --tokenizer bpe:300 --validation-fraction 0.1")
    words = ["--folder", "out", *line.split()]
    experiment = next(iter(read_line(words, load_experiment("gpt2"))[0].values()))
    assert experiment.model.vocabulary_size == rows
    out = capsys.readouterr().out
    assert out.startswith(message)
    assert bool(out) == bool(message)


def test_the_column_is_named(works, fails, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"body": "x"}))
    line = "prepare a.jsonl out --tokenizer bytes --validation-fraction 0"
    assert "has no column 'text': it has body" in fails(line)
    works(f"{line} --field body")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("prepare {source} out --tokenizer no/such", "no/such"),
        ("prepare {source} out --tokenizer missing.json", "there is no tokenizer 'missing.json'"),
        ("prepare {source} out --tokenizer bpe:5", "--tokenizer bpe:5: pieces of bytes must be at"),
        ("prepare {source} . --tokenizer bytes", ". exists already"),
        ("prepare {source} /dev/null/out --tokenizer bytes", "Not a directory"),
    ],
)
def test_errors_of_prepare_are_one_line(fails, source, line, message):
    assert message in fails(line, source=source)
    assert not os.path.exists("out")
