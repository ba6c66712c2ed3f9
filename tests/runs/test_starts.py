"""Initial parameters of a classifier: pretrained blocks, and a linear model of n-grams."""

import dataclasses
import json
import re
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tlite
from tests.helpers.complaints import complaint
from tests.helpers.runs import (
    TEXTS,
    TRANSFORMER,
    assert_same_state,
    interrupted,
    labelled,
    resume,
    stopped,
    train,
    varied,
)
from tlite.errors import Interrupted
from tlite.experiment import Pretraining, Words
from tlite.models import Embedding
from tlite.runs import Run, classifier
from tlite.runs.classifier import encode_texts, generator_config, pretraining_config
from tlite.text import NgramTokenizer
from tlite.training import Trainer, generator_task
from tlite.training.checkpoints import Checkpoints
from tlite.training.loop import restore
from tlite.training.metrics import read_metrics
from tlite.training.run_dir import UNLABELLED

pytestmark = pytest.mark.usefixtures("one_device", "compiled_when_trained", "shared_programs")

SETTINGS = Pretraining(pretraining_steps=4, pretraining_batch_size=4, pretraining_learning_rate=0.1)
EXPERIMENT = varied(TRANSFORMER, dropout=0.0, embedding=Embedding(), pretraining=SETTINGS)
WORDS = Words(min_document_frequency=2, word_ngrams=2, character_ngrams=3)
NGRAMS = varied(TRANSFORMER, tokenizer=WORDS, weight_decay=0.1, clip_norm=1.0, ngram_l2=1e-3)


# Pretraining


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return train(EXPERIMENT, tmp_path_factory.mktemp("runs") / "uninterrupted")


def test_all_replicas_start_from_the_pretrained_blocks(uninterrupted):
    run, folder = uninterrupted, uninterrupted.dir.path / "pretraining"
    config = generator_config(run.experiment.model, SETTINGS.pretraining_dropout)
    training = pretraining_config(run.experiment.training, SETTINGS)
    trainer = Trainer(generator_task(config), training, np.zeros(99, np.int32))
    state, step = restore(trainer, Checkpoints(folder / "checkpoints"))
    assert step == SETTINGS.pretraining_steps
    learned, before = state.parameters, run.trainer.init().parameters
    initial = run.init_state().parameters
    for name, arrays in initial.items():
        taken = name.startswith(("blocks.", "embedding"))
        assert taken == (name in learned)
        expected = np.broadcast_to(learned[name], arrays.shape) if taken else before[name]
        np.testing.assert_array_equal(arrays, expected)
    assert not np.array_equal(*initial["head.kernel"])
    lines = read_metrics(folder / "metrics.jsonl")
    losses = [line["loss"] for line in lines if line["split"] == "validation"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("during", [True, False])
def test_resume_during_or_after_pretraining_is_bitwise_identical(
    uninterrupted, tmp_path, during, capsys
):
    folder = tmp_path / "run"
    run = interrupted(uninterrupted, folder, 3, pretraining=during)
    assert "all 2 seeds start from the same pretrained model" in capsys.readouterr().err
    assert bool((folder / "metrics.jsonl").read_text()) != during
    if during:
        assert "no checkpoint yet" in complaint(run.parameters, "best")
    assert_same_state(resume(folder), uninterrupted)


@pytest.fixture
def make(tmp_path):
    """Return an experiment on a file of texts with settings of its pretraining."""

    def make(**settings):
        data = labelled(tmp_path / "texts.jsonl")
        pretraining = dataclasses.replace(SETTINGS, **settings)
        return varied(TRANSFORMER, data=data, tokenizer=Words(1), seeds=1, pretraining=pretraining)

    return make


def test_pretraining_reads_each_text_once_whatever_its_label(make, tmp_path, monkeypatch, capsys):
    """Texts of the training split and of other files."""

    def stop(*_):
        raise Interrupted("stopped", signal.SIGINT)

    monkeypatch.setattr(classifier, "fit", stop)
    labels = ({"label": "1"}, {"label": "x"}, {})
    more = [{"text": f"Never read{n * ' before'}"} | label for n, label in enumerate(labels)]
    lines = [*more, {"text": TEXTS[0][0], "label": "1"}]
    file = tmp_path / "more.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in lines))
    stopped(train, make(unlabelled=(str(file),)), tmp_path / "run")
    texts = [*(text for text, _ in TEXTS), *(row["text"] for row in more)]
    number = sum(len(re.findall(r"\w\w+", text)) + 1 for text in texts)  # and one after each
    assert f" tokens={number:,}\n" in capsys.readouterr().out


def test_texts_that_are_missing_or_too_short_are_errors(make, tmp_path):
    Run.create(make(pretraining_steps=0), tmp_path / "none").init_state()
    assert not (tmp_path / "none" / "pretraining").exists()
    missing = make(unlabelled=("nowhere.jsonl",))
    assert "nowhere.jsonl" in complaint(train, missing, tmp_path / "run")
    short = varied(make(), context=60)
    assert "too short for pretraining" in complaint(train, short, tmp_path / "other")


def test_changed_unlabelled_texts_are_an_error(make, tmp_path):
    """A run of an earlier version has no SHA-256 of them, and still opens."""
    file, folder = tmp_path / "more.jsonl", tmp_path / "run"
    file.write_text('{"text": "A text"}\n')
    Run.create(make(unlabelled=(str(file),)), folder)
    Run.open(folder)
    file.write_text('{"text": "Another text"}\n')
    message = complaint(Run.open, folder)
    assert message.startswith(f"the inputs of {folder} have changed: {UNLABELLED} was ")
    config = json.loads((folder / "config.json").read_text())
    del config["data"][UNLABELLED]
    (folder / "config.json").write_text(json.dumps(config))
    Run.open(folder)


# N-grams


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(NGRAMS, tmp_path_factory.mktemp("runs") / "ngrams")


def test_all_replicas_keep_one_linear_model(run, tmp_path):
    """Pretraining ignores it."""
    first, (last, _) = run.init_state().parameters, run.parameters("last")
    for name in [name for name in first if "_ngrams." in name]:
        array = np.asarray(first[name])
        assert abs(array).max() > 0 or name == "character_ngrams.bias"
        np.testing.assert_array_equal(array[0], array[1])
        np.testing.assert_array_equal(array, last[name])
    tables = first["embedding.table"], last["embedding.table"]
    assert not np.array_equal(*map(np.asarray, tables))
    pretraining = Pretraining(pretraining_steps=2, pretraining_batch_size=2)
    both = Run.create(dataclasses.replace(NGRAMS, pretraining=pretraining), tmp_path / "run")
    assert np.asarray(both.init_state().parameters["word_ngrams.weights"]).any()


def test_logits_of_the_linear_model_are_added(run, capsys):
    model, tokenizer = tlite.load(run.dir.path)
    assert isinstance(tokenizer, NgramTokenizer)
    examples, context = list(run.built.train), run.experiment.model.context
    tokens = encode_texts(run.experiment, tokenizer, [example.text for example in examples])
    with pytest.raises(ValueError, match=r"\d+ columns"):
        model(jnp.asarray(tokens[:, :context]))

    @jax.jit
    def logits(model, tokens):
        added = model.ngram_logits(tokens[:, context:])
        return model(tokens), model.logits_and_aux(tokens[:, :context])[0], added

    both, alone, added = map(np.asarray, logits(model, tokens))
    np.testing.assert_allclose(both, alone + added, rtol=1e-5, atol=1e-5)
    right = added.argmax(-1) == np.array([example.label for example in examples])
    assert right.mean() > 0.9
    Run.open(run.dir.path).evaluate("training")
    message = f"the linear model of n-grams alone: training accuracy {100 * right.mean():.1f} %"
    assert message in capsys.readouterr().out
