"""Runs: resume, checkpoints, changed data, invalid experiments, and resolved settings."""

import dataclasses

import pytest

from tests.helpers.complaints import complaint
from tests.helpers.corpora import DOCUMENTS, write_corpus
from tests.helpers.runs import (
    LABELS,
    LOGISTIC,
    STEPS,
    TEXTS,
    TRANSFORMER,
    TRANSLATOR,
    assert_has_examples,
    assert_same_state,
    interrupted,
    labelled,
    on_text,
    resume,
    train,
    varied,
)
from tlite.data import Corpus, SyntheticReviews
from tlite.experiment import BPE, Bytes, PairSubwords, Pretraining, TokenizerFile, Words
from tlite.models import TranslatorHead
from tlite.models.classifier import Wide
from tlite.runs import Run
from tlite.training import CrossEntropy
from tlite.training.loop import validate
from tlite.training.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("compiled_when_trained")  # some are only started


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A run with both averages of parameters."""
    experiment = varied(TRANSFORMER, ema=0.9, average_last=2)
    return train(experiment, tmp_path_factory.mktemp("runs") / "uninterrupted")


@pytest.fixture
def binary(tmp_path):
    """A logistic regression of two classes, not yet trained."""
    return dataclasses.replace(LOGISTIC, data=labelled(tmp_path / "texts.jsonl"))


@pytest.mark.parametrize("step", [1, 3])
def test_an_interrupted_run_resumes_bit_for_bit(uninterrupted, tmp_path, step):
    folder = interrupted(uninterrupted, tmp_path / "run", step).dir.path
    assert step <= read_metrics(folder / "metrics.jsonl")[-1]["step"] < STEPS
    assert_same_state(resume(folder), uninterrupted)
    assert {"ema_loss", "average_loss"} < read_metrics(folder / "metrics.jsonl")[-1].keys()


def test_checkpoints_are_selected_by_name_or_step(uninterrupted, binary, tmp_path):
    assert uninterrupted.parameters("last")[1] == STEPS
    assert uninterrupted.parameters("4")[1] == 4
    assert uninterrupted.parameters("ema")[1] == uninterrupted.parameters("average")[1] == STEPS
    for name in ("1", "first", "-1"):
        assert f"there is no checkpoint {name}" in complaint(uninterrupted.parameters, name)
    assert "no checkpoint yet" in complaint(Run.create(binary, tmp_path / "run").parameters, "best")


@pytest.mark.parametrize("best_metric", ["accuracy", "ema_loss", "average_accuracy"])
def test_the_best_checkpoint_is_the_best_by_its_metric(binary, tmp_path, best_metric):
    changes = {"evaluate_every": 1, "best_metric": best_metric, "learning_rate": 0.5}
    changes |= {"ema": 0.9} if best_metric.startswith("ema") else {}
    changes |= {"average_last": 3} if best_metric.startswith("average") else {}
    run, reported = Run.create(varied(binary, **changes), tmp_path / "run"), []
    run.print_report = lambda means, _, step: reported.append((step, means["loss"].mean()))
    run.train()
    lines = [line for line in read_metrics(run.dir.metrics) if line["split"] == "validation"]
    scores = {line["step"]: line[best_metric] for line in lines}
    best = max(scores.values()) if best_metric.endswith("accuracy") else min(scores.values())
    parameters, step = run.parameters("best")
    assert scores[step] == best
    means = validate(run.trainer, parameters, run.validation())
    assert means[best_metric.rpartition("_")[2]].mean() == pytest.approx(best, rel=1e-6)
    assert reported == [(step, pytest.approx(means["loss"].mean()))]
    assert_has_examples(run)


def test_changed_data_is_an_error_at_open(binary, tmp_path):
    """One text less, another order, another label."""
    folder, (one, two, *others) = tmp_path / "run", TEXTS
    Run.create(binary, folder)
    assert Run.open(folder).experiment.data == binary.data
    for rows in (TEXTS[:-1], [two, one, *others], [(one[0], "1"), two, *others]):
        labelled(tmp_path / "texts.jsonl", rows)
        assert f"the inputs of {folder} have changed" in complaint(Run.open, folder)


WORDS = Words(1, word_ngrams=2, character_ngrams=3)
RARE = dataclasses.replace(WORDS, min_document_frequency=9999)
INVALID = {
    "classifier": [
        ("has the class so so, fine", {"labels": LABELS | {"2": "so so", "4": "fine"}}),
        ("'positive' is the only class", {"labels": LABELS | {"1": ""}}),
        ("two classes, not of 3", {"labels": {n: f"{n} stars" for n in "135"}, "sentences": 3}),
        ("a logistic regression has no blocks", {"pretraining": Pretraining()}),
        ("added to a transformer", {"tokenizer": WORDS}),
    ],
    "transformer": [
        ("--wide.bigrams", {"tokenizer": WORDS, "wide": Wide(10)}),
        ("--sentences", {"tokenizer": WORDS, "sentences": 2}),
        ("in 9,999 texts", {"tokenizer": RARE}),
        ("wide.num_word_ngrams is 3, but the data has", {"tokenizer": WORDS, "wide": Wide(0, 3)}),
        (
            "unlabelled texts need data of files",
            {"data": SyntheticReviews(), "pretraining": Pretraining(unlabelled=(__file__,))},
        ),
    ],
    "generator": [
        ("no tokenizer 'nowhere.json'", {"tokenizer": TokenizerFile("nowhere.json")}),
        ("tokens, and a context of 400", {"tokenizer": BPE(280), "context": 400}),
    ],
    "corpus": [
        ("the tokenizer is set by the corpus", {"tokenizer": Bytes()}),
        ("size is 99", {"vocabulary_size": 99}),
        ("there is no folder nowhere", {"data": Corpus("nowhere")}),
    ],
    "translator": [
        (
            "source_vocabulary_size is 7, but the tokenizer has",
            {"source_vocabulary_size": 7, "head": TranslatorHead("separate")},
        ),
        ("--head.embeddings separate", {"tokenizer": PairSubwords(num_subwords=20, joint=False)}),
        ("batch_size must be larger", {"batch_size": 3}),
    ],
}


@pytest.mark.parametrize(
    ("kind", "message", "changes"), [(kind, *case) for kind in INVALID for case in INVALID[kind]]
)
def test_an_invalid_experiment_creates_no_folder(
    binary, tmp_path, monkeypatch, kind, message, changes
):
    pytest.importorskip("tokenizers")
    generator = on_text(tmp_path / "text.txt", "".join(DOCUMENTS), prompt="12 bottles")
    experiment = {
        "classifier": binary,
        "transformer": varied(TRANSFORMER, data=binary.data),
        "generator": generator,
        "corpus": varied(generator, data=Corpus(str(write_corpus(tmp_path / "corpus")))),
        "translator": TRANSLATOR,
    }[kind]
    assert message in complaint(Run.create, varied(experiment, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_auto_precision_and_attention_are_resolved_once(tmp_path, monkeypatch, capsys):
    calls = []
    choose = lambda name: calls.append(name) or "mixed"  # noqa: E731
    monkeypatch.setattr("tlite.experiment.choose_precision", choose)
    changes = {"attention": "auto", "context": 128, "precision": "auto"}
    smoothed = CrossEntropy(label_smoothing=0.125)
    run = Run.create(varied(TRANSFORMER, loss=smoothed, **changes), tmp_path / "run")
    run.print_summary()
    printed = capsys.readouterr().out
    for message in ("precision=mixed", "attention=mixed", f"training loss is {smoothed}"):
        assert message in printed
    again = Run.open(tmp_path / "run")
    assert again.experiment == run.experiment
    assert again.experiment.training.precision == "mixed"
    assert again.trainer.model.config.attention.function == "mixed"
    assert calls == ["auto"]
