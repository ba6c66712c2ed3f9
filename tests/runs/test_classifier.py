"""Runs of a classifier: sizes from the data, tokens, predictions, reports and pictures."""

import dataclasses
import re

import jax
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.helpers.complaints import complaint
from tests.helpers.runs import (
    LOGISTIC,
    STEPS,
    TEXTS,
    TRANSFORMER,
    labelled,
    train,
    varied,
)
from tlite.comparison.statistics import variance
from tlite.data import Example
from tlite.experiment import Subwords, Words
from tlite.runs import ClassifierRun, Run, classifier
from tlite.runs.classifier import encode_examples, encode_texts
from tlite.runs.reporting import accuracy_interval, spread
from tlite.text import PADDING, sentences
from tlite.training.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("one_device", "compiled_when_trained")

SUBWORDS = Subwords(pieces=80)


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


# Sizes and tokenizer


def test_vocabulary_is_that_of_labelled_training_texts(make, tmp_path):
    held_out = labelled(tmp_path / "held_out.jsonl", [("unheard of", "5"), ("never seen", "1")])
    files = {"validation": held_out.training}
    run = Run.create(make([*TEXTS, ("only three", "3")], files), tmp_path / "run")
    known = set(run.tokenizer.vocabulary) - {"[UNK]"}
    training = " ".join(text for text, stars in TEXTS if stars != "3").lower()
    assert known == set(re.findall(r"\w\w+\b", training))
    tokens = encode_texts(run.experiment, run.tokenizer, ["unheard of"])
    assert tokens[0, :3].tolist() == [run.tokenizer.unknown_id, run.tokenizer.unknown_id, PADDING]


def test_sizes_of_the_model_come_from_the_data_or_the_config(make, tmp_path):
    run = Run.create(make(), tmp_path / "run")
    assert run.experiment.model.num_classes == 2
    assert run.experiment.model.vocabulary_size == len(run.tokenizer)
    again = Run.create(make(model=run.experiment.model), tmp_path / "again")
    assert again.experiment.model == run.experiment.model


def test_empty_texts_are_counted_on_stderr(make, tmp_path, capsys):
    Run.create(make([*TEXTS, ("", "5"), (" \n", "1")]), tmp_path / "run")
    assert "warning: 2 of the training texts are empty" in capsys.readouterr().err
    Run.create(make(), tmp_path / "another")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("tokenizer", [Words(1), Words(1, marks=True), SUBWORDS], ids=str)
def test_tokenizer_is_saved_with_the_run(make, tmp_path, tokenizer):
    run = Run.create(make(tokenizer=tokenizer), tmp_path / "run")
    loaded = Run.open(tmp_path / "run").tokenizer
    texts = [text for text, _ in TEXTS] + ["neu & unbekannt", ""]
    np.testing.assert_array_equal(loaded.encode_texts(texts), run.tokenizer.encode_texts(texts))
    assert len(loaded) == len(run.tokenizer)


# Tokens


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that is not trained."""
    folder = tmp_path_factory.mktemp("runs")
    data = labelled(folder / "texts.jsonl")
    return Run.create(dataclasses.replace(LOGISTIC, data=data), folder / "run")


def encode(run, texts, **changes):
    return encode_texts(dataclasses.replace(run.experiment, **changes), run.tokenizer, texts)


@pytest.mark.parametrize("padding", ["mask", "unknown"])
def test_texts_are_cut_or_padded_to_the_context(run, padding):
    tokens = encode(run, ["good bad", "", "good " * 50], padding=padding)
    good, bad = run.tokenizer.encode("good bad")
    fill = PADDING if padding == "mask" else run.tokenizer.unknown_id
    np.testing.assert_array_equal(tokens, [[good, bad, *10 * [fill]], 12 * [fill], 12 * [good]])


@pytest.mark.parametrize("padding", ["mask", "unknown"])
def test_each_sentence_of_a_text_is_encoded_alone(run, padding):
    texts = ["Good. Bad! Is it good? It is.", "", "Good\nbad"]
    tokens = encode(run, texts, sentences=3, padding=padding)
    assert tokens.shape == (3, 3, 12)
    for rows, text in zip(tokens, texts, strict=True):
        split = sentences(text)[:3]
        alone = encode(run, split, padding=padding)
        np.testing.assert_array_equal(rows[: len(split)], alone.reshape(-1, 12))
        assert (rows[len(split) :] == PADDING).all()


def test_only_labelled_examples_are_encoded_in_any_chunks(run, monkeypatch):
    examples = [Example(t, v, {"1": 0, "3": None, "5": 1}[v]) for t, v in 3 * TEXTS]
    known = [e for e in examples if e.label is not None]
    for chunk in (classifier.CHUNK, 1, 4, 12):
        monkeypatch.setattr(classifier, "CHUNK", chunk)
        tokens, labels = encode_examples(run.experiment, run.tokenizer, iter(examples))
        assert labels.tolist() == [e.label for e in known]
        np.testing.assert_array_equal(tokens, encode(run, [e.text for e in known]))
    message = complaint(encode_examples, run.experiment, run.tokenizer, [Example("a", "3", None)])
    assert "no text has one" in message


# Training and prediction


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
        "bpe": varied(LOGISTIC, tokenizer=SUBWORDS),
        "transformer": varied(TRANSFORMER, **changes),
        "sentences": varied(LOGISTIC, data=reviews, sentences=3),
        "binary": varied(LOGISTIC, data=reviews, seeds=1),
    }
    runs = {}

    def trained(name):
        if name not in runs:
            runs[name] = train(experiments[name], folder / name)
        return runs[name]

    return trained


@pytest.mark.parametrize("name", ["words", "bpe", "transformer", "sentences"])
def test_predictions_have_the_scores_of_the_validation(trained, name):
    run = trained(name)
    first, _, validation = (
        line for line in read_metrics(run.dir.metrics) if line["split"] == "validation"
    )
    assert validation["loss"] < first["loss"]
    examples = [e for e in run.built.validation if e.label is not None]
    probabilities, step = run.predict(examples, "last")
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


def by_hand(run, replica, rows):
    """Probabilities (N, C) of rows of tokens (N, T) by a replica, in NumPy."""
    model = run.trainer.models(run.parameters("best")[0])[replica]
    weights, bias = (np.asarray(a[...], np.float64) for a in (model.weights, model.bias))
    assert weights.shape == (len(run.tokenizer), len(run.experiment.data.classes))
    words = [sorted({int(token) for token in row if token >= 0}) for row in rows]
    scores = [weights[w].sum(0) / np.sqrt(max(len(w), 1)) for w in words]
    return softmax(bias + np.array(scores))


@pytest.mark.parametrize("name", ["words", "bpe"])
def test_predictions_are_the_probabilities_computed_by_hand(trained, name):
    run = trained(name)
    examples = [*run.built.validation, Example("", "?", None), Example("words unheard", "?", None)]
    tokens = run.tokenizer.encode_texts([e.text for e in examples], 12)
    for replica, rows in enumerate(run.predict(examples)[0]):
        np.testing.assert_allclose(rows, by_hand(run, replica, tokens), atol=1e-5)


def test_probabilities_of_sentences_are_joined_as_by_hand(trained):
    run = trained("sentences")
    texts = [text for text, _ in TEXTS] + ["", "Good. Bad. Good! Never read"]
    predicted, _ = run.predict([Example(text, "?", None) for text in texts])
    for text, row in zip(texts, predicted[1], strict=True):
        expected = 0.5
        if text:
            tokens = run.tokenizer.encode_texts(sentences(text)[:3], 12)
            p = by_hand(run, 1, tokens)[:, 1]
            expected = np.average(p, weights=np.square(p - 0.5))
        np.testing.assert_allclose(row, [1 - expected, expected], atol=1e-5)


def test_prediction_does_not_depend_on_other_texts(trained):
    run = trained("transformer")
    examples = [*run.built.train, *run.built.validation]
    assert len(examples) > 64  # more than a batch
    together, _ = run.predict(examples)
    models = run.trainer.models(run.parameters("best")[0])
    logits = jax.jit(lambda model, tokens: model(tokens))
    for index in (0, 63, 64, len(examples) - 1):
        tokens = encode_texts(run.experiment, run.tokenizer, [examples[index].text])
        for replica, model in enumerate(models):
            alone = softmax(logits(model, tokens[0]))
            np.testing.assert_allclose(together[replica, index], alone, atol=1e-5)


def test_report_has_accuracies_of_model_and_baseline(trained, capsys):
    run = trained("words")
    capsys.readouterr()
    Run.open(run.dir.path).train()
    out = capsys.readouterr().out
    assert " training_texts=60 validation_texts=10\n" in out
    lines = [line for line in read_metrics(run.dir.metrics) if line["split"] == "validation"]
    best = min(lines, key=lambda line: line["loss"])
    assert f"best checkpoint: step {best['step']}\n" in out
    mean, spread = 100 * best["accuracy"], 100 * best["accuracy_spread"]
    assert f"validation accuracy {mean:.1f} (SD {spread:.1f}) %, loss {best['loss']:.4f}\n" in out
    assert re.search(r"TF-IDF \+ logistic regression: validation accuracy \d+\.\d %\n", out)
    assert f"tlite evaluate {run.dir.path} --split test" in out
    assert {path.name for path in run.dir.plots.iterdir()} == {"loss.png", "accuracy.png"}


def test_streamed_data_trains_bitwise_identically(trained, make, tmp_path, capsys):
    streamed = Run.create(make(4 * TEXTS, {"stream": True}, sentences=3), tmp_path / "streamed")
    streamed.train()
    assert "not fitted, as the texts are streamed" in capsys.readouterr().out
    one, other = (run.parameters("last")[0] for run in (streamed, trained("sentences")))
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("texts", [("alpha beta", "gamma delta"), ("?", "...")])
def test_run_trains_without_a_fitted_baseline(make, tmp_path, texts):
    run = Run.create(make(list(zip(texts, "51", strict=True)), seeds=1, steps=1), tmp_path / "run")
    run.train()
    assert (run.dir.plots / "accuracy.png").exists()


# Evaluation


@pytest.fixture
def stars(trained):
    """A model of five classes, two seeds."""
    return trained("words")


@pytest.fixture
def binary(trained):
    """A model of two classes, which knows nothing of the 3 stars."""
    return trained("binary")


@pytest.fixture
def drawn(monkeypatch):
    """Axes of each picture by name; no file is written."""
    matplotlib.use("Agg")
    axes = {}

    def draw(run, plots):
        axes.update((name, plot()) for name, plot in plots.items())

    monkeypatch.setattr(ClassifierRun, "save_plots", draw)
    yield axes
    plt.close("all")


@pytest.fixture
def report(capsys):
    """Return what an evaluation prints."""

    def report(run, **settings) -> str:
        capsys.readouterr()
        run.evaluate(**settings)
        return capsys.readouterr().out

    return report


def table(out: str, classes: list[str]) -> np.ndarray:
    """Return the printed confusions."""
    lines = out.split("columns predicted ones\n")[1].splitlines()[1 : len(classes) + 1]
    for line, name in zip(lines, classes, strict=True):
        assert line.strip().startswith(name)
    return np.array([[int(n) for n in line.split()[-len(classes) :]] for line in lines])


def predicted(run, split):
    """Return the labelled texts of a split, their labels and each replica's probabilities."""
    known = [e for e in run.experiment.data.examples(split) if e.label is not None]
    labels = np.array([e.label for e in known])
    return np.array([e.text for e in known]), labels, run.predict(known)[0]


@pytest.mark.parametrize(("split", "replica"), [("training", 0), ("validation", 1), ("test", 1)])
def test_confusions_and_scores_equal_those_by_hand(stars, drawn, report, split, replica):
    classes = stars.experiment.data.classes
    out = report(stars, split=split, replica=replica)
    _, labels, probabilities = predicted(stars, split)
    expected = np.zeros((5, 5), int)
    np.add.at(expected, (labels, probabilities[replica].argmax(-1)), 1)
    counts = table(out, classes)
    np.testing.assert_array_equal(counts, expected)
    for index, name in enumerate(classes):
        precision, recall, _, support = re.search(rf"^ +{name} +(.*)$", out, re.M)[1].split()
        right = counts[index, index]
        assert float(precision) == pytest.approx(right / max(counts[:, index].sum(), 1), abs=0.006)
        assert float(recall) == pytest.approx(right / max(counts[index].sum(), 1), abs=0.006)
        assert float(support) == counts[index].sum()
    assert f"(replica {replica})" in out
    axes = drawn[f"{split}-confusion"]
    shown = {text.get_position(): text.get_text().split("\n")[1] for text in axes.texts}
    assert shown == {(column, row): str(n) for (row, column), n in np.ndenumerate(counts)}


def test_printed_accuracy_is_the_mean_over_replicas(stars, drawn, report):
    out = report(stars, split="training")
    _, labels, probabilities = predicted(stars, "training")
    right = 100.0 * (probabilities.argmax(-1) == labels)
    first = f"training accuracy {spread(right.mean(1), '.1f')} %, {len(labels)} texts\n"
    assert out.startswith(f"step {stars.parameters()[1]}: {first}")
    match = re.match(r"95 % .*: ± (\d+\.\d) \(seeds \d+\.\d, texts", out.partition("\n")[2])
    assert float(match[1]) == pytest.approx(variance(right).half_width, abs=0.06)
    assert re.search(r"TF-IDF \+ logistic regression: training accuracy \d+\.\d %", out)


@pytest.mark.parametrize("seeds", [1, 3])
def test_an_accuracy_of_100_percent_has_wilsons_interval(seeds):
    message = accuracy_interval(np.ones((seeds, 99), bool), "texts")
    assert message == "95 % for new texts: 96.3 to 100.0 (Wilson)"


def test_unlabelled_texts_are_not_scored(binary, drawn, report):
    out = report(binary)
    assert "replica" not in out
    assert "SD" not in out.splitlines()[0]
    assert re.match(r"95 % for new texts: \d+\.\d to 100\.0 \(Wilson\)\n", out.partition("\n")[2])
    assert f"{4 * len(TEXTS) - 4} texts" in out.splitlines()[0]
    assert table(out, ["negative", "positive"]).sum(1).tolist() == [8, 8]
    shown = re.findall(r"predicted .* \(\d\.\d{3}\): (.*)", out)
    assert 3 <= len(shown) == len({*shown})  # of identical texts one


def test_most_certain_texts_are_shown_right_and_wrong(stars, drawn, report):
    out = report(stars, split="training")
    texts, labels, (probabilities, _) = predicted(stars, "training")
    most, right = probabilities.max(-1), probabilities.argmax(-1) == labels
    for title, chosen in (("right", right), ("wrong", ~right)):
        shown = out.split(f"most certain {title} predictions (replica 0)\n")[1].splitlines()[:3]
        best = sorted(dict(zip(texts[chosen], most[chosen], strict=True)).values())[:-4:-1]
        assert len(shown) == len(best) == 3
        for line, probability in zip(shown, best, strict=True):
            match = re.match(r"  (.*), predicted (.*) \((\d\.\d{3})\): This", line)
            truth, guess, certainty = match.groups()
            assert (truth == guess) == (title == "right")
            assert {truth, guess} <= {*stars.experiment.data.classes}
            assert float(certainty) == pytest.approx(probability, abs=6e-4)


def test_split_without_labels_is_an_error(binary):
    assert "no text of the test split" in complaint(binary.evaluate, split="test")


# Pictures
