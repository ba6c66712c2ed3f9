"""Synthetic data: content, sizes of splits, and reproducibility."""

import itertools
import re

import pytest

from tests.helpers.complaints import complaint
from tlite.data import CopyTask, NumberWords, SyntheticReviews
from tlite.data.synthetic import INTENSITIES, MOODS, NEGATION

pytest.importorskip("num2words")
SPLITS = ("training", "validation", "test")
COPY = CopyTask(letters=5, longest=6, sequences=200)
NUMBERS = NumberWords(below=10_000, numbers=60)
SENTENCE = re.compile(r"The \w+ is (not )?(?:(quite|very|extremely) )?(\w+)\.")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("split", SPLITS)
def test_stars_follow_from_the_words(split, seed):
    for review in SyntheticReviews(reviews=600, data_seed=seed).examples(split):
        scores = [
            MOODS[word] * INTENSITIES[intensity] * (NEGATION if negated else 1)
            for negated, intensity, word in SENTENCE.findall(review.text)
        ]
        assert len(scores) in (2, 3)
        mean = sum(scores) / len(scores)
        stars = 1 + (mean > -1.2) + (mean > -0.4) + (mean > 0.4) + (mean > 1.2)
        assert (review.value, review.label) == (str(stars), stars - 1)


def test_reviews_depend_on_seed_and_split():
    splits = {split: SyntheticReviews(600).examples(split) for split in SPLITS}
    assert [len(examples) for examples in splits.values()] == [600, 100, 100]
    texts = [{e.text for e in examples} for examples in splits.values()]
    for index, split in enumerate(texts):
        assert len(split - texts[index - 1]) > 0.9 * len(split)
    assert SyntheticReviews(600).examples("test") == splits["test"]
    assert SyntheticReviews(600, data_seed=4).examples("test") != splits["test"]


# Pairs


@pytest.fixture(scope="module")
def pairs():
    """Return the pairs of each task by split."""
    return {task: {split: task.pairs(split) for split in SPLITS} for task in (COPY, NUMBERS)}


@pytest.mark.parametrize(
    ("task", "sizes"), [(COPY, [200, 10, 10]), (NUMBERS, [60, 1000, 1000])], ids=["copy", "numbers"]
)
def test_splits_of_pairs_are_disjoint_and_reproducible(pairs, task, sizes):
    assert [len(pairs[task][split]) for split in SPLITS] == sizes
    sources = [pair.source for split in SPLITS for pair in pairs[task][split]]
    assert len(set(sources)) == len(sources)
    assert task.pairs("validation") == pairs[task]["validation"]


def test_copy_task_has_sequences_and_their_reverse(pairs):
    copies = list(itertools.chain(*pairs[COPY].values()))
    assert all(pair.source == pair.target for pair in copies)
    letters = [pair.source.split(" ") for pair in copies]
    assert {len(sequence) for sequence in letters} == {4, 5, 6}
    assert set(itertools.chain(*letters)) == set("abcde")
    reverse = CopyTask(reverse=True, letters=5, longest=6, sequences=200).pairs("test")
    assert [pair.source for pair in reverse] == [pair.source for pair in pairs[COPY]["test"]]
    assert all(p.target.split(" ") == p.source.split(" ")[::-1] for p in reverse)


def test_numbers_are_words_of_both_languages(pairs):
    by_number = {pair.where: pair for split in SPLITS for pair in pairs[NUMBERS][split]}
    assert all(0 <= int(number) < 10_000 for number in by_number)
    short = sum(int(number) < 1000 for number in by_number)
    assert 0.2 < short / len(by_number) < 0.8
    assert by_number["8"][:2] == ("eight", "acht")
    french = NumberWords(below=10_000, numbers=60, source_language="fr", target_language="en")
    english = [pair.source for pair in pairs[NUMBERS]["training"]]
    assert [pair.target for pair in french.pairs("training")] == english


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (CopyTask(letters=1), "the copy task needs"),
        (CopyTask(longest=3), "the copy task needs"),
        (CopyTask(sequences=10**12), "the copy task needs"),
        (CopyTask(letters=2, longest=5, sequences=100), "the copy task needs"),
        (NumberWords(below=9_999), "--below must be between"),
        (NumberWords(numbers=500_001), "at most half of it"),
        (NumberWords(below=10_000, numbers=60, target_language="klingon"), "no language en or kl"),
        (SyntheticReviews(reviews=5), "--reviews must be between 6 and"),
    ],
    ids=str,
)
def test_impossible_sizes_and_languages_are_errors(data, message):
    assert message in complaint(getattr(data, "pairs", None) or data.examples, "training")
