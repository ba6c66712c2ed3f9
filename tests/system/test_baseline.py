"""TF-IDF and logistic regression: accuracy on real questions, penalty and features."""

import numpy as np
import pytest

from tlite.baselines.tfidf import C_VALUES, tfidf_logistic_regression
from tlite.runs.experiment_files import load_experiment

pytest.importorskip("sklearn")


def test_accuracy_on_the_questions_of_trec_is_88_6_percent(data_folder, monkeypatch):
    monkeypatch.setenv("TLITE_DATA", str(data_folder))
    data = load_experiment("trec").data
    training, test = (data.examples(split) for split in ("training", "test"))
    baseline = tfidf_logistic_regression([e.text for e in training], [e.label for e in training])
    right = baseline.predict([e.text for e in test]) == [e.label for e in test]
    assert right.mean() == pytest.approx(0.886, abs=5e-4)


def test_the_penalty_is_chosen_within_the_training_texts():
    """Noise needs a strong penalty, a rule a weak one; few texts get the default."""
    rng, words = np.random.default_rng(0), [f"w{i}" for i in range(40)]
    texts = [" ".join(rng.choice(words, 8, replace=False)) for _ in range(300)]
    rule = [int("w0" in text.split()) for text in texts]
    noise = rng.integers(2, size=300).tolist()
    strengths = [tfidf_logistic_regression(texts, labels)[-1].C for labels in (rule, noise)]
    assert strengths[0] > strengths[1]
    assert {*strengths} <= {*C_VALUES}
    assert tfidf_logistic_regression(TEXTS, LABELS)[-1].C == 3


TEXTS = ["good and fine", "good or fine", "bad and poor", "bad or poor", "rare and bad"]
LABELS = [7, 7, 2, 2, 2]


def test_features_are_words_and_bigrams_of_two_or_more_texts():
    baseline = tfidf_logistic_regression(TEXTS, LABELS)
    assert baseline.predict(["fine", "poor", "good unheard", "BAD"]).tolist() == [7, 2, 7, 2]
    features = {"good", "fine", "bad", "poor", "and", "or"}
    assert {*baseline[0].get_feature_names_out()} == features

    texts = ["not good really", "really not good", "good not really", "really good not"]
    baseline = tfidf_logistic_regression(texts, [0, 0, 1, 1])
    assert baseline.predict(["not good", "good not"]).tolist() == [0, 1]
