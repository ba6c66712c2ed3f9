"""Runs of a classifier: sizes from the data, tokens, predictions, reports and pictures."""

import dataclasses
import re

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.helpers.complaints import complaint
from tests.helpers.runs import LOGISTIC, STEPS, TEXTS, TRANSFORMER, labelled, train, varied
from tlite.comparison.statistics import variance
from tlite.data import Example
from tlite.experiment import Subwords
from tlite.runs import ClassifierRun, Run, classifier
from tlite.runs.classifier import encode_examples, encode_texts
from tlite.runs.reporting import accuracy_interval, spread
from tlite.text import PADDING, sentences
from tlite.training.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("one_device", "compiled_when_trained")

SUBWORDS = Subwords(num_subwords=80)


@pytest.fixture
def make(tmp_path):
    """A logistic regression over a file of texts, with changes, that is not yet trained."""

    def make(rows=TEXTS, settings=None, **changes):
        data = labelled(tmp_path / "texts.jsonl", rows, **(settings or {}))
        return varied(LOGISTIC, data=data, **changes)

    return make


def softmax(logits):
    weights = np.exp(np.asarray(logits, np.float64))
    return weights / weights.sum(-1, keepdims=True)


def test_vocabulary_is_that_of_labelled_training_texts(make, tmp_path):
    held_out = labelled(tmp_path / "held_out.jsonl", [("unheard of", "5"), ("never seen", "1")])
    files = {"validation": held_out.training}
    run = Run.create(make([*TEXTS, ("only three", "3")], files), tmp_path / "run")
    known = set(run.tokenizer.vocabulary) - {"[UNK]"}
    training = " ".join(text for text, stars in TEXTS if stars != "3").lower()
    assert known == set(re.findall(r"\w\w+\b", training))
    assert run.experiment.model.vocabulary_size == len(run.tokenizer)
    tokens = encode_texts(run.experiment, run.tokenizer, ["unheard of"])
    assert tokens[0, :3].tolist() == [run.tokenizer.unknown_id, run.tokenizer.unknown_id, PADDING]


def test_empty_texts_are_counted_on_stderr(make, tmp_path, capsys):
    """A run without words in two texts trains, without a baseline."""
    rows = [("?", "5"), ("...", "1"), ("", "5"), (" \n", "1")]
    Run.create(make(rows, seeds=1, steps=1), tmp_path / "run").train()
    out, err = capsys.readouterr()
    for split in ("training", "validation"):
        assert f"warning: {split} texts that are empty are left out: 2\n" in err
    assert "not fitted, as no word is in two texts" in out


@pytest.mark.parametrize(("sentences", "size"), [(0, "12 tokens"), (2, "2 sentences of 12 tokens")])
def test_truncated_texts_are_counted(make, tmp_path, capsys, sentences, size):
    long = "good " * 13 if not sentences else "Good. Good! Good?"
    rows = [(long, "5"), ("bad " * 12, "1"), ("bad " * 50, "3")]  # 3 stars: no class
    run = Run.create(make(rows, seeds=1, steps=1, sentences=sentences), tmp_path / "run")
    run.train()
    run.evaluate("validation")
    lines = [line for line in capsys.readouterr().out.splitlines() if "texts are truncated" in line]
    parts = "training", "validation"
    assert lines == [f"1 of 2 {split} texts are truncated to {size}" for split in parts]


def test_mean_scores_leave_out_classes_without_texts(capsys):
    confusions = classifier.print_classes("", ["a", "b", "c"], np.array([0, 2]), np.array([0, 2]))
    assert re.search(r"macro avg +1.00 +1.00 +1.00", capsys.readouterr().out)
    assert confusions.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a trained run by name; each is trained once."""
    folder = tmp_path_factory.mktemp("trained")
    labelled(folder / "test.jsonl", [("So so", "3"), ("It is a chair", "3")])
    test = (str(folder / "test.jsonl"),)
    reviews = labelled(folder / "texts.jsonl", 4 * TEXTS, test=test)
    changes = {"dropout": 0.0, "padding": "unknown"}
    experiments = {
        "words": LOGISTIC,
        "transformer": varied(TRANSFORMER, **changes),
        "sentences": varied(LOGISTIC, data=reviews, sentences=3, tokenizer=SUBWORDS),
        "binary": varied(LOGISTIC, data=reviews, seeds=1),
    }
    runs = {}

    def trained(name):
        if name not in runs:
            runs[name] = train(experiments[name], folder / name)
        return runs[name]

    return trained


def encode(run, texts, **changes):
    return encode_texts(dataclasses.replace(run.experiment, **changes), run.tokenizer, texts)


@pytest.mark.parametrize("padding", ["mask", "unknown"])
def test_texts_are_cut_or_padded_to_the_context(trained, padding):
    run = trained("binary")
    tokens = encode(run, ["good bad", "", "good " * 50], padding=padding)
    good, bad = run.tokenizer.encode("good bad")
    fill = PADDING if padding == "mask" else run.tokenizer.unknown_id
    np.testing.assert_array_equal(tokens, [[good, bad, *10 * [fill]], 12 * [fill], 12 * [good]])


@pytest.mark.parametrize("padding", ["mask", "unknown"])
def test_each_sentence_of_a_text_is_encoded_alone(trained, padding):
    run = trained("binary")
    texts = ["Good. Bad! Is it good? It is.", "", "Good\nbad"]
    tokens = encode(run, texts, sentences=3, padding=padding)
    assert tokens.shape == (3, 3, 12)
    for rows, text in zip(tokens, texts, strict=True):
        split = sentences(text)[:3]
        alone = encode(run, split, padding=padding)
        np.testing.assert_array_equal(rows[: len(split)], alone.reshape(-1, 12))
        assert (rows[len(split) :] == PADDING).all()


def test_only_labelled_examples_are_encoded_in_any_chunks(trained, monkeypatch):
    run = trained("binary")
    examples = [Example(t, v, {"1": 0, "3": None, "5": 1}[v]) for t, v in 3 * TEXTS]
    known = [e for e in examples if e.label is not None]
    for chunk in (classifier.CHUNK_TEXTS, 1, 4, 12):
        monkeypatch.setattr(classifier, "CHUNK_TEXTS", chunk)
        tokens, labels = encode_examples(run.experiment, run.tokenizer, iter(examples))
        assert labels.tolist() == [e.label for e in known]
        np.testing.assert_array_equal(tokens, encode(run, [e.text for e in known]))
    message = complaint(encode_examples, run.experiment, run.tokenizer, [Example("a", "3", None)])
    assert "no text has one" in message


@pytest.mark.parametrize("name", ["words", "transformer", "sentences"])
def test_predictions_have_the_scores_of_the_validation(trained, name):
    run = trained(name)
    first, _, validation = (
        line for line in read_metrics(run.dir.metrics) if line["split"] == "validation"
    )
    assert validation["loss"] < first["loss"]
    examples = [e for e in run.built.validation if e.label is not None]
    probabilities, step = run.predict([e.text for e in examples], "last")
    assert step == STEPS
    assert probabilities.shape == (2, len(examples), len(run.experiment.data.classes))
    np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-6)
    labels = np.array([e.label for e in examples])
    right = probabilities.argmax(-1) == labels
    assert right.mean(-1).tolist() == pytest.approx(validation["accuracy_replicas"])
    label_probabilities = probabilities[:, np.arange(len(labels)), labels]
    np.testing.assert_allclose(
        -np.log(label_probabilities).mean(-1), validation["loss_replicas"], atol=1e-4
    )


def test_predictions_of_an_opened_run_equal_those_by_hand(trained):
    run = Run.open(trained("words").dir.path)
    examples = [*run.built.validation, Example("", "?", None), Example("words unheard", "?", None)]
    texts = [sorted({*row} - {PADDING}) for row in encode(run, [e.text for e in examples]).tolist()]
    models = run.trainer.models(run.parameters("best")[0])
    for model, rows in zip(models, run.predict([e.text for e in examples])[0], strict=True):
        weights, bias = (np.asarray(a[...], np.float64) for a in (model.weights, model.bias))
        scores = [weights[words].sum(0) / np.sqrt(max(len(words), 1)) for words in texts]
        np.testing.assert_allclose(rows, softmax(bias + np.array(scores)), atol=1e-5)


def test_prediction_does_not_depend_on_other_texts(trained):
    run = trained("transformer")
    examples = [*run.built.train, *run.built.validation]
    assert len(examples) > 64  # more than a batch
    together, _ = run.predict([e.text for e in examples])
    models = run.trainer.models(run.parameters("best")[0])
    logits = jax.jit(lambda model, tokens: model(tokens))
    for index in (0, 63, 64, len(examples) - 1):
        tokens = encode_texts(run.experiment, run.tokenizer, [examples[index].text])
        for replica, model in enumerate(models):
            alone = softmax(logits(model, tokens[0]))
            np.testing.assert_allclose(together[replica, index], alone, atol=1e-5)


def test_streamed_data_trains_bitwise_identically(trained, make, tmp_path, capsys):
    experiment = make(4 * TEXTS, {"stream": True}, sentences=3, tokenizer=SUBWORDS)
    streamed = Run.create(experiment, tmp_path / "streamed")
    streamed.train()

    printed, lines = capsys.readouterr().out, read_metrics(streamed.dir.metrics)
    best = min((x for x in lines if x["split"] == "validation"), key=lambda line: line["loss"])
    scores = spread(100 * np.array(best["accuracy_replicas"]), ".1f"), best["loss"]
    assert "validation accuracy {} %, loss {:.4f}\n".format(*scores) in printed
    assert "not fitted, as the texts are streamed" in printed
    one, other = (run.parameters("last")[0] for run in (streamed, trained("sentences")))
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture
def evaluate(monkeypatch, capsys):
    """Return a function that evaluates; it returns stdout and the axes of each picture."""
    axes = {}
    draw = lambda run, plots: axes.update((name, plot()) for name, plot in plots.items())  # noqa: E731
    monkeypatch.setattr(ClassifierRun, "save_plots", draw)

    def evaluate(run, **settings) -> tuple[str, dict]:
        capsys.readouterr()
        run.evaluate(**settings)
        return capsys.readouterr().out, axes

    yield evaluate
    plt.close("all")


CERTAIN = r"  (.*), predicted (.*) \((\d\.\d{3})\): This"


@pytest.mark.parametrize(("split", "replica"), [("training", 0), ("test", 1)])
def test_printed_scores_and_confusions_equal_those_by_hand(trained, evaluate, split, replica):
    run = trained("words")
    classes = run.experiment.data.classes
    out, axes = evaluate(run, split=split, replica=replica)
    examples = [*run.experiment.data.examples(split)]
    labels = np.array([e.label for e in examples])
    probabilities = run.predict([e.text for e in examples])[0]
    right = 100.0 * (probabilities.argmax(-1) == labels)
    message = f"{split} accuracy {spread(right.mean(1), '.1f')} %, {len(labels)} texts\n"
    assert out.startswith(f"step {run.parameters()[1]}: {message}")
    assert re.search(rf"TF-IDF \+ logistic regression: {split} accuracy \d+\.\d %", out)
    assert f"(replica {replica})" in out
    counts = np.zeros((5, 5), int)
    np.add.at(counts, (labels, probabilities[replica].argmax(-1)), 1)
    lines = out.split("columns predicted ones\n")[1].splitlines()[1:6]
    printed = [line.strip().rsplit(maxsplit=5) for line in lines]
    rows = zip(classes, counts.tolist(), strict=True)
    assert printed == [[name, *map(str, row)] for name, row in rows]
    for index, name in enumerate(classes):
        hits, scores = counts[index, index], re.search(rf"^ +{name} +(.*)$", out, re.M)[1].split()
        sums = max(counts[:, index].sum(), 1), max(counts[index].sum(), 1)
        assert [*map(float, scores[:2])] == pytest.approx([hits / n for n in sums], abs=0.006)
        assert float(scores[3]) == counts[index].sum()
    texts = {text.get_position(): text.get_text() for text in axes[f"{split}-confusion"].texts}
    shown = {(y, x): int(text.split("\n")[1]) for (x, y), text in texts.items()}
    assert shown == dict(np.ndenumerate(counts))
    if split == "training":  # where texts are right and wrong
        match = re.match(r"95 % .*: ± (\d+\.\d) \(seeds \d+\.\d, texts", out.partition("\n")[2])
        assert float(match[1]) == pytest.approx(variance(right).half_width, abs=0.06)
        most, is_right = probabilities[replica].max(-1), right[replica] > 0
        for title, chosen in (("right", is_right), ("wrong", ~is_right)):
            lines = out.split(f"most certain {title} predictions (replica 0)\n")[1].splitlines()
            by_text = {e.text: p for e, p, c in zip(examples, most, chosen, strict=True) if c}
            for line, certainty in zip(lines[:3], sorted(by_text.values())[:-4:-1], strict=True):
                truth, guess, printed = re.match(CERTAIN, line).groups()
                assert (truth == guess) == (title == "right")
                assert {truth, guess} <= {*classes}
                assert float(printed) == pytest.approx(certainty, abs=6e-4)


@pytest.mark.parametrize("seeds", [1, 3])
def test_an_accuracy_of_100_percent_has_wilsons_interval(seeds):
    message = accuracy_interval(np.ones((seeds, 99), bool), "texts")
    assert message == "95 % for new texts: 96.3 to 100.0 (Wilson)"


def test_unlabelled_texts_are_not_scored(trained, evaluate):
    """Here those with 3 stars; there is one seed."""
    run = trained("binary")
    out, _ = evaluate(run)
    assert re.match(
        rf"step \d+: validation accuracy \S+ %, {4 * len(TEXTS) - 4} texts\n"
        r"95 % for new texts: \d+\.\d to 100\.0 \(Wilson\)\n",
        out,
    )
    assert "replica" not in out
    shown = re.findall(r"predicted .* \(\d\.\d{3}\): (.*)", out)
    assert 3 <= len(shown) == len({*shown})  # of identical texts one
    assert "no text of the test split" in complaint(run.evaluate, split="test")
