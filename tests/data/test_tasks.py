"""Made-up translations: what they say, disjoint parts, the same each time."""

import itertools

import pytest

from tlite.data import CopyTask, NumberWords
from tlite.errors import UserError

PARTS = ("training", "validation", "test")
COPY = CopyTask(letters=5, longest=6, sequences=200)
NUMBERS = NumberWords(below=10_000, numbers=60)


@pytest.fixture(scope="module")
def parts():
    """The parts of each task, made once."""
    pytest.importorskip("num2words")
    return {task: {part: task.pairs(part) for part in PARTS} for task in (COPY, NUMBERS)}


each_task = pytest.mark.parametrize("task", [COPY, NUMBERS], ids=["copy", "numbers"])


@each_task
def test_no_pair_is_in_two_parts_or_twice_in_one(parts, task):
    sources = [pair.source for part in PARTS for pair in parts[task][part]]
    assert len(set(sources)) == len(sources)


@each_task
def test_a_task_is_the_same_each_time(parts, task):
    assert task.pairs("validation") == parts[task]["validation"]


@pytest.mark.parametrize(
    ("task", "sizes"), [(COPY, [200, 10, 10]), (NUMBERS, [60, 1000, 1000])], ids=["copy", "numbers"]
)
def test_parts_are_as_large_as_they_say(parts, task, sizes):
    assert [len(parts[task][part]) for part in PARTS] == sizes


def test_copies_are_sequences_of_the_letters_and_the_same_again(parts):
    pairs = list(itertools.chain(*parts[COPY].values()))
    assert all(pair.source == pair.target for pair in pairs)
    letters = [pair.source.split(" ") for pair in pairs]
    assert {len(sequence) for sequence in letters} == {4, 5, 6}
    assert set(itertools.chain(*letters)) == set("abcde")


def test_the_reverse_is_the_same_sequences_backwards(parts):
    backwards = CopyTask(reverse=True, letters=5, longest=6, sequences=200)
    for pair, copy in zip(backwards.pairs("test"), parts[COPY]["test"], strict=True):
        assert pair.source == copy.source
        assert pair.target.split(" ") == pair.source.split(" ")[::-1]


def test_numbers_are_written_in_both_languages(parts):
    pairs = {pair.where: pair for part in PARTS for pair in parts[NUMBERS][part]}
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
    "wrong",
    [
        {"letters": 1},
        {"letters": 27},
        {"longest": 3},
        {"longest": 10**9},
        {"sequences": 19},
        {"sequences": 10**12},
    ],
    ids=str,
)
def test_copies_that_cannot_be_are_refused(wrong):
    with pytest.raises(UserError, match="the copy task needs"):
        CopyTask(**wrong).pairs("training")


def test_more_sequences_than_there_are_are_refused():
    with pytest.raises(UserError, match="not so many different sequences"):
        CopyTask(letters=2, longest=5, sequences=100).pairs("training")


@pytest.mark.parametrize(
    "wrong",
    [
        {"below": 9_999},
        {"below": 10**16},
        {"numbers": 0},
        {"numbers": 500_001},
        {"numbers": 10**8, "below": 10**9},
    ],
    ids=str,
)
def test_numbers_that_cannot_be_are_refused(wrong):
    pytest.importorskip("num2words")
    with pytest.raises(UserError, match=rf"--{next(iter(wrong))} must be between .* not "):
        NumberWords(**wrong).pairs("training")


def test_a_language_without_number_words_is_named():
    pytest.importorskip("num2words")
    with pytest.raises(UserError, match="num2words has no language 'en' or 'klingon'"):
        NumberWords(below=10_000, numbers=60, target_language="klingon").pairs("test")
