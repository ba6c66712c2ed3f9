"""Made-up data: what it says, how its parts differ, and that it is the same each time."""

import itertools
import re

import pytest

from tests.helpers.complaints import complaint
from tlite.data import CopyTask, NumberWords, SyntheticReviews
from tlite.data.synthetic import INTENSITIES, MOODS, NEGATION

TEXTS = ("training", "validation", "test")
COPY = CopyTask(letters=5, longest=6, sequences=200)
NUMBERS = NumberWords(below=10_000, numbers=60)
SENTENCE = re.compile(r"The \w+ is (not )?(?:(quite|very|extremely) )?(\w+)\.")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("part", TEXTS)
def test_the_stars_follow_from_the_words(part, seed):
    for review in SyntheticReviews(reviews=600, data_seed=seed).examples(part):
        moods = [
            MOODS[word] * INTENSITIES[intensity] * (NEGATION if negated else 1)
            for negated, intensity, word in SENTENCE.findall(review.text)
        ]
        assert len(moods) in (2, 3)
        mean = sum(moods) / len(moods)
        stars = 1 + (mean > -1.2) + (mean > -0.4) + (mean > 0.4) + (mean > 1.2)
        assert (review.value, review.label) == (str(stars), stars - 1)


def test_the_parts_have_their_sizes_and_are_different():
    parts = {part: SyntheticReviews(reviews=600).examples(part) for part in TEXTS}
    assert [len(examples) for examples in parts.values()] == [600, 100, 100]
    texts = [{e.text for e in examples} for examples in parts.values()]
    for index, part in enumerate(texts):
        assert len(part - texts[index - 1]) > 0.9 * len(part)


def test_a_seed_gives_the_same_reviews_again_and_another_others():
    for part in TEXTS:
        reviews = SyntheticReviews(reviews=60, data_seed=3).examples(part)
        assert reviews == SyntheticReviews(reviews=60, data_seed=3).examples(part)
        assert reviews != SyntheticReviews(reviews=60, data_seed=4).examples(part)


# Pairs


@pytest.fixture(scope="module")
def parts():
    """The parts of each task, made once."""
    pytest.importorskip("num2words")
    return {task: {part: task.pairs(part) for part in TEXTS} for task in (COPY, NUMBERS)}


@pytest.mark.parametrize(
    ("task", "sizes"), [(COPY, [200, 10, 10]), (NUMBERS, [60, 1000, 1000])], ids=["copy", "numbers"]
)
def test_parts_are_as_large_as_they_say_disjoint_and_the_same_each_time(parts, task, sizes):
    assert [len(parts[task][part]) for part in TEXTS] == sizes
    sources = [pair.source for part in TEXTS for pair in parts[task][part]]
    assert len(set(sources)) == len(sources)
    assert task.pairs("validation") == parts[task]["validation"]


def test_copies_are_sequences_of_the_letters_and_the_reverse_is_the_same_backwards(parts):
    pairs = list(itertools.chain(*parts[COPY].values()))
    assert all(pair.source == pair.target for pair in pairs)
    letters = [pair.source.split(" ") for pair in pairs]
    assert {len(sequence) for sequence in letters} == {4, 5, 6}
    assert set(itertools.chain(*letters)) == set("abcde")
    backwards = CopyTask(reverse=True, letters=5, longest=6, sequences=200).pairs("test")
    assert [pair.source for pair in backwards] == [pair.source for pair in parts[COPY]["test"]]
    assert all(p.target.split(" ") == p.source.split(" ")[::-1] for p in backwards)


def test_numbers_are_written_in_both_languages(parts):
    pairs = {pair.where: pair for part in TEXTS for pair in parts[NUMBERS][part]}
    assert all(0 <= int(number) < 10_000 for number in pairs)
    short = sum(int(number) < 1000 for number in pairs)
    assert 0.2 < short / len(pairs) < 0.8
    for number, source, target in [("8", "eight", "acht"), ("42", "forty-two", "zweiundvierzig")]:
        if number in pairs:
            assert (pairs[number].source, pairs[number].target) == (source, target)
    assert {"8", "42"} & set(pairs)


def test_other_languages_can_be_named(parts):
    french = NumberWords(below=10_000, numbers=60, source_language="fr", target_language="en")
    english = [pair.source for pair in parts[NUMBERS]["training"]]
    assert [pair.target for pair in french.pairs("training")] == english


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (CopyTask(letters=1), "the copy task needs"),
        (CopyTask(longest=3), "the copy task needs"),
        (CopyTask(sequences=19), "the copy task needs"),
        (CopyTask(sequences=10**12), "the copy task needs"),
        (CopyTask(letters=2, longest=5, sequences=100), "the copy task needs"),
        (NumberWords(below=9_999), "--below must be between"),
        (NumberWords(numbers=500_001), "at most half of it"),
        (NumberWords(below=10_000, numbers=60, target_language="klingon"), "no language en or kl"),
        (SyntheticReviews(reviews=5), "--reviews must be between 6 and"),
    ],
    ids=str,
)
def test_what_cannot_be_is_told(data, told):
    pytest.importorskip("num2words")
    assert told in complaint(getattr(data, "pairs", None) or data.examples, "training")
