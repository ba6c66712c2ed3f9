"""Generators of bytes, of subwords and of corpora, from training to export."""

import json
import re

import pytest

from tests.helpers.corpora import write_corpus

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.usefixtures("one_device")
TEXT = "The quick brown fox jumps over the läzy dog.\n" * 60
TINY = (
    "--steps 2 --evaluate-every 2 --width 8 --num-heads 2 --num-blocks 1 --context 16 "
    "--batch-size 4 --precision float32 "
)
GPT2 = (
    "--positions learned --norm layer --feed-forward.activation gelu --bias --attention.input-bias "
)
EXPERIMENT = """
import dataclasses
from experiments.demo import experiment as demo
from tlite.data.corpus import Corpus
experiment = dataclasses.replace(demo, name="of-corpus", data=Corpus())
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def trained(train, text):
    return train(f"text --path {text} --tokenizer bpe:300 {TINY}{GPT2}")


def test_subwords_are_trained_measured_and_asked_for_text(works, trained):
    told = r"validation loss \S+ nats per token, perplexity \S+, [\d.]+ bits per byte"
    assert re.search(told, trained.printed)
    assert re.search(told, works("evaluate {run}"))
    line = "generate {run} --tokens 8 --greedy --prompt "
    assert works(line + "'Öl <|endoftext|> 漢'") != "Öl <|endoftext|> 漢\n"
    assert works("generate {run} --tokens 8 --greedy") == works(line + "'The '")


def test_bytes_are_trained_and_asked_for_text(works, train_without_report, text):
    made = train_without_report(f"text --path {text} --tokenizer bytes {TINY}")
    told = works("evaluate {made}", made=made.run)
    assert re.search(r"nats per byte, perplexity \S+, [\d.]+ bits per byte", told)
    text = works("generate {made} --prompt 'Öl <|endoftext|> 漢' --tokens 8", made=made.run)
    assert text.removeprefix("Öl <|endoftext|> 漢").strip("\n")


def test_subwords_are_looked_into_and_exported(works, trained, tmp_path, monkeypatch):
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda _, path, **__: path.touch())
    assert "pictures in" in works("inspect {run}")
    works(f"export {{run}} {tmp_path / 'theirs'}")
    line = "generate {place} --prompt 'The quick' --tokens 9 --greedy"
    assert works(line, place=tmp_path / "theirs") == works(line, place=trained.run)


def test_the_end_mark_ends_a_text(works, monkeypatch):
    monkeypatch.setattr("tlite.cli.texts.end_ids", lambda of: range(len(of)))  # any token is one
    assert works("generate {run} --tokens 8 --prompt ab") == "ab\n"


def test_without_a_prompt_the_end_mark_starts_a_text(works, copied):
    config = json.loads((copied / "config.json").read_text())
    config["experiment"]["prompt"] = ""
    (copied / "config.json").write_text(json.dumps(config))
    assert works("generate {copied} --tokens 8", copied=copied)


# Corpora


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "corpus.py").write_text(EXPERIMENT)
    return write_corpus(tmp_path / "folder")


def test_a_corpus_is_trained_and_measured(train_without_report, works, corpus):
    options = f"--folder {corpus} --separate-documents --vocabulary-size 260 {TINY}"
    made = train_without_report(f"corpus.py {options}")
    assert "257 tokens in the vocabulary, 260 rows in the embedding\n" in made.printed
    run = made.run
    line = f"evaluate {run} --split training"
    assert re.search(r"nats per byte, .* bits per byte, .* [\d,]+ bytes", works(line))
    assert works(f"generate {run} --tokens 3 --prompt 12") != "12\n"
