"""Runs of generators with every tokenizer, on a text and on a corpus."""

import dataclasses
import math
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.helpers.complaints import complaint
from tests.helpers.corpora import DOCUMENTS, write_corpus
from tests.helpers.recipes import (
    assert_has_examples,
    assert_same_state,
    interrupt,
    resume,
    start_like,
    stopped,
    train,
)
from tlite import functional as F
from tlite.data import TextFile
from tlite.data.corpus import Corpus
from tlite.experiment import BPE, Bytes, Characters, GeneratorExperiment, TokenizerFile
from tlite.models import GeneratorConfig
from tlite.pretrained import learn_bpe
from tlite.recipes import open_recipe, start
from tlite.recipes.kinds import load
from tlite.text import ByteTokenizer
from tlite.training import TrainingConfig
from tlite.training.metrics import read_metrics

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.usefixtures("one_device", "compiled_when_trained")

TEXT = "".join(DOCUMENTS)
LEARNED_FROM, HELD_OUT = TEXT[: -round(0.1 * len(TEXT))], TEXT[-round(0.1 * len(TEXT)) :]
MODEL = GeneratorConfig(context=8, width=8, num_heads=2, num_blocks=1, dropout=0.0)
TRAINING = TrainingConfig(steps=4, batch_size=4, evaluate_every=2, learning_rate=1e-2)
TOKENIZERS = {"characters": Characters(), "bytes": Bytes(), "bpe": BPE(280)}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text(TEXT)
    return TextFile(str(path), 0.1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return Corpus(str(write_corpus(tmp_path_factory.mktemp("corpora") / "corpus")))


def experiment(of, **changes):
    made = GeneratorExperiment("tiny", of, MODEL, TRAINING, prompt="12 bottles")
    return dataclasses.replace(made, **changes)


@pytest.fixture(scope="module")
def trained(text, corpus, tmp_path_factory):
    """The run of a tokenizer on the text, or of the corpus, trained when it is first asked for."""
    runs, folder = {}, tmp_path_factory.mktemp("runs")
    apart = dataclasses.replace(corpus, separate_documents=True)
    experiments = {"together": experiment(corpus), "apart": experiment(apart)}
    experiments |= {n: experiment(text, tokenizer=chosen) for n, chosen in TOKENIZERS.items()}

    def trained(name):
        if name not in runs:
            runs[name] = train(experiments[name], folder / name)
        return runs[name]

    return trained


@jax.jit
def nats(model, inputs, targets):
    return F.token_cross_entropy(model(inputs), targets)


def total_nats(run, tokens):
    """Of every token but the first, in windows that follow each other."""
    parameters, _ = run.parameters("last")
    model, context, total = run.trainer.models(parameters)[0], MODEL.context, 0.0
    for at in range(0, len(tokens) - 1, context):
        inputs, targets = tokens[at : at + context], tokens[at + 1 : at + context + 1]
        total += float(np.asarray(nats(model, inputs[: len(targets)], targets)).sum())
    return total


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_bits_per_byte_are_all_nats_over_all_bytes(tokenizer, trained, capsys):
    run = trained(tokenizer)
    tokens = run.tokenizer.encode(HELD_OUT)
    assert run.tokenizer.decode(tokens) == HELD_OUT
    first = len(run.tokenizer.decode(tokens[:1]).encode())
    bits = total_nats(run, tokens) / math.log(2) / (len(HELD_OUT.encode()) - first)
    line = read_metrics(run.run.metrics)[-1]
    assert line["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert_has_examples(run)
    open_recipe(run.run.folder).evaluate(checkpoint="last")
    out = capsys.readouterr().out
    told = re.search(r", ([\d.]+) bits per byte,", out)
    assert float(told[1]) == pytest.approx(bits, abs=1e-4)
    assert re.search(r"\n95 % for new text, with this seed: ± 0\.\d{4}\n", out)


def test_a_tokenizer_of_others_is_kept_with_the_run(text, tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    learn_bpe([LEARNED_FROM], 280).save(folder)  # as "bpe" does: the programs are the same
    run = train(experiment(text, tokenizer=TokenizerFile("theirs")), tmp_path / "run")
    kept = run.experiment.tokenizer
    assert kept.path == str(folder)
    assert len(kept.sha256) == 64
    (folder / "tokenizer.json").unlink()
    model, tokenizer = load(run.run.folder)
    assert model.config.vocabulary_size == len(tokenizer) == 280
    assert "bits_per_byte" in read_metrics(run.run.metrics)[-1]


# Corpora


def test_a_corpus_is_learned_and_resumed_to_the_same_bits(trained, tmp_path, monkeypatch):
    apart = trained("apart")
    assert isinstance(apart.tokenizer, ByteTokenizer)
    with monkeypatch.context() as patch:
        interrupt(patch, 3, pretraining=True)
        stopped(start_like(apart, tmp_path / "cut").train)
    assert_same_state(resume(tmp_path / "cut"), apart)


def test_documents_apart_have_another_loss_than_together(trained):
    together, apart = (trained(name) for name in ("together", "apart"))
    losses = [read_metrics(run.run.metrics)[-1]["loss"] for run in (together, apart)]
    assert losses[0] != losses[1]
    # What a validation finds is what the model says with the mask.
    model = apart.trainer.models(apart.parameters("last")[0])[0]
    inputs, targets, weights = apart.parts["validation"].scored()

    @jax.jit
    def masked(model, inputs, targets):
        logits = model(inputs, documents=F.documents(inputs, 256))
        return F.token_cross_entropy(logits, targets)

    found = np.asarray(masked(model, inputs, targets)) * weights
    assert losses[1] == pytest.approx(float(found.sum() / weights.sum()), rel=1e-5)


def test_the_first_loss_is_that_of_the_windows_that_were_drawn(trained):
    run = trained("together")
    feed = run.parts["training"].fed()(TRAINING, run.trainer.mesh)
    windows = np.asarray(jax.device_get(feed.at(0, 1).batches))[0, 0, 0].astype(np.int32)
    feed.close()
    model = run.trainer.models(run.trainer.init().parameters)[0]
    losses = np.asarray(nats(model, windows[:, :-1], windows[:, 1:]))
    first = read_metrics(run.run.metrics)[0]["loss"]
    assert first == pytest.approx(float(losses.mean()), rel=1e-5)


def test_a_corpus_of_nanogpt_is_learned_as_it_is(corpus, trained, tmp_path):
    (tmp_path / "nano").mkdir()
    for name in ("train.bin", "val.bin"):
        shutil.copy(Path(corpus.folder, name), tmp_path / "nano")
    nano = Corpus("nano", corpus_vocabulary=257)
    run = train(experiment(nano, prompt="1 2"), tmp_path / "run")
    assert_same_state(run, trained("together"))
    assert "bits_per_byte" not in read_metrics(run.run.metrics)[-1]
    assert run.tokenizer.decode([3, 200]) == "3 200"


def test_a_corpus_that_has_changed_is_told(tmp_path):
    folder = write_corpus(tmp_path / "corpus")
    start(experiment(Corpus(str(folder))), tmp_path / "run")
    content = bytearray((folder / "val.bin").read_bytes())
    content[0] ^= 1
    (folder / "val.bin").write_bytes(content)
    assert "has changed since the run began" in complaint(open_recipe, tmp_path / "run")
