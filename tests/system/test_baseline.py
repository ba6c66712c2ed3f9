"""TF-IDF and logistic regression: what they reach on real reviews, and what they go by."""

import pytest

from tlite.baselines.tfidf import tfidf_logistic_regression
from tlite.cli.experiment_files import load_experiment

pytest.importorskip("sklearn")


def test_reviews_by_their_words_alone_reach_50_1_percent(data_folder, monkeypatch):
    monkeypatch.setenv("TLITE_DATA", str(data_folder))
    data = load_experiment("reviews").data
    training, test = (data.examples(part) for part in ("training", "test"))
    baseline = tfidf_logistic_regression([e.text for e in training], [e.label for e in training])
    right = baseline.predict([e.text for e in test]) == [e.label for e in test]
    assert right.mean() == pytest.approx(0.501, abs=5e-4)


TEXTS = ["good and fine", "good or fine", "bad and poor", "bad or poor", "rare and bad"]
LABELS = [7, 7, 2, 2, 2]


def test_words_and_pairs_of_neighbours_tell_classes_apart():
    baseline = tfidf_logistic_regression(TEXTS, LABELS)
    assert baseline.predict(["fine", "poor", "good unheard", "BAD"]).tolist() == [7, 2, 7, 2]
    known = {"good", "fine", "bad", "poor", "and", "or"}  # what is in one text alone is not
    assert {*baseline[0].get_feature_names_out()} == known
    texts = ["not good really", "really not good", "good not really", "really good not"]
    baseline = tfidf_logistic_regression(texts, [0, 0, 1, 1])
    assert baseline.predict(["not good", "good not"]).tolist() == [0, 1]
