"""Runs of generators with every tokenizer, on a text and on a corpus."""

import dataclasses
import json
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
from tlite.recipes.loading import load
from tlite.text import ByteTokenizer, CharTokenizer
from tlite.training import TrainingConfig
from tlite.training.metrics import read_metrics

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.usefixtures("one_device", "compiled_when_trained")

TEXT = "".join(DOCUMENTS)
LEARNED_FROM = TEXT[: len(TEXT) - round(0.1 * len(TEXT))]
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


def experiment(data, tokenizer=Characters(), **changes):  # noqa: B008
    made = GeneratorExperiment(
        "tiny", data, MODEL, TRAINING, prompt="12 bottles", tokenizer=tokenizer
    )
    return dataclasses.replace(made, **changes)


@pytest.fixture(scope="module")
def of_text(text, tmp_path_factory):
    """The run of a tokenizer on the text, trained when it is first asked for."""
    runs = {}

    def trained(name):
        if name not in runs:
            folder = tmp_path_factory.mktemp("runs") / name
            runs[name] = train(experiment(text, TOKENIZERS[name]), folder)
        return runs[name]

    return trained


@pytest.fixture(scope="module")
def together(corpus, tmp_path_factory):
    return train(experiment(corpus), tmp_path_factory.mktemp("runs") / "together")


@pytest.fixture(scope="module")
def apart(corpus, tmp_path_factory):
    data = dataclasses.replace(corpus, separate_documents=True)
    return train(experiment(data), tmp_path_factory.mktemp("runs") / "apart")


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
def test_bits_per_byte_are_all_nats_over_all_bytes(tokenizer, of_text, capsys):
    run = of_text(tokenizer)
    validation = TEXT[len(TEXT) - round(0.1 * len(TEXT)) :]
    tokens = run.tokenizer.encode(validation)
    assert run.tokenizer.decode(tokens) == validation
    first = len(run.tokenizer.decode(tokens[:1]).encode())
    bits = total_nats(run, tokens) / math.log(2) / (len(validation.encode()) - first)
    line = read_metrics(run.run.metrics)[-1]
    assert line["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert_has_examples(run)
    open_recipe(run.run.folder).evaluate(checkpoint="last")
    out = capsys.readouterr().out
    told = re.search(r", ([\d.]+) bits per byte,", out)
    assert float(told[1]) == pytest.approx(bits, abs=1e-4)
    assert re.search(r"\n95 % for new text, with this seed: ± 0\.\d{4}\n", out)


def test_the_report_runs_few_programs_and_validates_once(of_text, monkeypatch):
    run, compiled, validated = open_recipe(of_text("characters").run.folder), [], []
    batches, evaluate = run.validation(), run.trainer.evaluate
    monkeypatch.setattr(run.trainer, "evaluate", lambda *a: (validated.append(a), evaluate(*a))[1])
    jax.clear_caches()
    note = lambda event, *_, **__: compiled.append(event)  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(note)
    run.report(batches, *run.parameters())
    found = sum(event.endswith("backend_compile_duration") for event in compiled)
    jax.monitoring.unregister_event_duration_listener(note)
    assert 1 <= found < 20  # each operation alone were a hundred
    assert len(validated) == 1


def test_a_tokenizer_of_others_is_kept_with_the_run(text, tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    learn_bpe([LEARNED_FROM], 280).save(folder)  # as "bpe" does: the programs are the same
    run = train(experiment(text, TokenizerFile("theirs")), tmp_path / "run")
    kept = run.experiment.tokenizer
    assert kept.path == str(folder)
    assert len(kept.sha256) == 64
    (folder / "tokenizer.json").unlink()
    model, tokenizer = load(run.run.folder)
    assert model.config.vocabulary_size == len(tokenizer) == 280
    assert "bits_per_byte" in read_metrics(run.run.metrics)[-1]


def test_a_config_without_a_tokenizer_is_of_characters(of_text, tmp_path):
    run = of_text("characters")
    shutil.copytree(run.run.folder, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config["experiment"]["tokenizer"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    again = open_recipe(tmp_path / "run")
    assert isinstance(again.tokenizer, CharTokenizer)
    assert again.experiment == run.experiment


def test_a_vocabulary_that_was_edited_away_is_told(of_text, tmp_path):
    shutil.copytree(of_text("characters").run.folder, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["experiment"]["model"]["vocabulary_size"] = 0
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert "say the model's vocabulary_size" in complaint(open_recipe, tmp_path / "run")


# Corpora


def test_a_corpus_is_learned_and_resumed_to_the_same_bits(apart, tmp_path, monkeypatch):
    assert isinstance(apart.tokenizer, ByteTokenizer)
    with monkeypatch.context() as patch:
        interrupt(patch, 3, pretraining=True)
        stopped(start_like(apart, tmp_path / "cut").train)
    assert_same_state(resume(tmp_path / "cut"), apart)


def test_documents_apart_have_another_loss_than_together(together, apart):
    losses = [read_metrics(run.run.metrics)[-1]["loss"] for run in (together, apart)]
    assert losses[0] != losses[1]
    # What a validation finds is what the model says with the mask.
    parameters, _ = apart.parameters("last")
    model = apart.trainer.models(parameters)[0]
    inputs, targets, weights = apart.parts["validation"].scored()

    @jax.jit
    def masked(model, inputs, targets):
        logits = model(inputs, documents=F.documents(inputs, 256))
        return F.token_cross_entropy(logits, targets)

    found = np.asarray(masked(model, inputs, targets)) * weights
    assert losses[1] == pytest.approx(float(found.sum() / weights.sum()), rel=1e-5)


def test_the_first_loss_is_that_of_the_windows_that_were_drawn(together):
    run = together
    feed = run.parts["training"].fed()(TRAINING, run.trainer.mesh)
    windows = np.asarray(jax.device_get(feed.at(0, 1).batches))[0, 0, 0].astype(np.int32)
    feed.close()
    model = run.trainer.models(run.trainer.init().parameters)[0]
    losses = np.asarray(nats(model, windows[:, :-1], windows[:, 1:]))
    first = read_metrics(run.run.metrics)[0]["loss"]
    assert first == pytest.approx(float(losses.mean()), rel=1e-5)


def test_a_corpus_of_nanogpt_is_learned_as_it_is(corpus, together, tmp_path):
    for name in ("train.bin", "val.bin"):
        data = tmp_path / "nano" / name
        data.parent.mkdir(exist_ok=True)
        data.write_bytes(Path(corpus.folder, name).read_bytes())
    nano = Corpus("nano", corpus_vocabulary=257)
    run = train(experiment(nano, prompt="1 2"), tmp_path / "run")
    assert_same_state(run, together)
    assert "bits_per_byte" not in read_metrics(run.run.metrics)[-1]
    assert run.tokenizer.decode([3, 200]) == "3 200"


def test_a_corpus_that_has_changed_is_told(corpus, tmp_path):
    folder = write_corpus(tmp_path / "corpus")
    start(experiment(Corpus(str(folder))), tmp_path / "run")
    content = bytearray((folder / "val.bin").read_bytes())
    content[0] ^= 1
    (folder / "val.bin").write_bytes(content)
    assert "has changed since the run began" in complaint(open_recipe, tmp_path / "run")


# Mistakes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": Bytes()}, "the tokenizer is the corpus's: leave it out"),
        ({"model": dataclasses.replace(MODEL, vocabulary_size=99)}, "vocabulary size is 99"),
        ({"model": dataclasses.replace(MODEL, context=400)}, "too short: its validation part"),
        ({"data": Corpus("nowhere")}, "there is no folder nowhere"),
        ({"data": Corpus()}, "--folder"),
    ],
)
def test_what_does_not_fit_a_corpus_is_told(changes, message, corpus, tmp_path):
    changed = dataclasses.replace(experiment(corpus), **changes)
    assert message in complaint(start, changed, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": TokenizerFile("nowhere.json")}, "there is no tokenizer 'nowhere.json'"),
        ({"prompt": ""}, "prompt is empty"),
        (
            {"tokenizer": BPE(280), "model": dataclasses.replace(MODEL, context=400)},
            "validation part has .* tokens, and a context of 400",
        ),
    ],
)
def test_what_does_not_fit_a_text_is_told(changes, message, text, tmp_path):
    assert re.search(message, complaint(start, experiment(text, **changes), tmp_path / "run"))
