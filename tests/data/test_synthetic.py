"""Synthetic reviews: what their stars follow from, and how the parts differ."""

import re
from collections import Counter

import pytest

from tlite.data import SyntheticReviews
from tlite.data.synthetic import FILLERS, INTENSITIES, MOODS, NEGATION, PARTS, THINGS
from tlite.errors import UserError

TEXTS = ("training", "validation", "test")
SENTENCE = re.compile(r"The (\w+) is (not )?(?:(quite|very|extremely) )?(\w+)\.")


def judgements(text: str) -> list[tuple[str, float]]:
    """(part, mood) of each sentence of a review that judges."""
    found = []
    for part, negated, intensity, word in SENTENCE.findall(text):
        mood = MOODS[word] * INTENSITIES[intensity]
        found.append((part, NEGATION * mood if negated else mood))
    return found


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("part", TEXTS)
def test_the_stars_follow_from_the_words(part, seed):
    for review in SyntheticReviews(reviews=600, data_seed=seed).examples(part):
        moods = [mood for _, mood in judgements(review.text)]
        mean = sum(moods) / len(moods)
        stars = 1 + (mean > -1.2) + (mean > -0.4) + (mean > 0.4) + (mean > 1.2)
        assert (review.value, review.label) == (str(stars), stars - 1)


@pytest.mark.parametrize(
    ("words", "stars"), [({"superb", "wonderful"}, "5"), ({"awful", "dreadful"}, "1")]
)
def test_strong_words_alone_give_the_most_and_the_fewest_stars(words, stars):
    found = 0
    for review in SyntheticReviews().examples("training"):
        judged = SENTENCE.findall(review.text)
        if all(word in words and not negated for _, negated, _, word in judged):
            assert review.value == stars
            found += 1
    assert found > 20


def test_two_or_three_different_parts_of_one_thing_are_judged():
    for review in SyntheticReviews(reviews=600).examples("training"):
        things = re.findall(r"This (\w+) is new\.", review.text)
        assert len(things) == 1
        assert things[0] in THINGS
        judged = [part for part, _ in judgements(review.text)]
        assert len(judged) in (2, 3)
        assert len(set(judged)) == len(judged)
        assert set(judged) <= set(PARTS)


def test_every_sentence_judges_introduces_or_means_nothing():
    fillers = {filler.capitalize() + "." for filler in FILLERS}
    for review in SyntheticReviews(reviews=600).examples("training"):
        rest = SENTENCE.sub("", review.text)
        left = set(re.findall(r"\S[^.]*\.", re.sub(r"This \w+ is new\.", "", rest)))
        assert left <= fillers


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


@pytest.mark.parametrize("part", TEXTS)
def test_all_classes_occur(part):
    reviews = SyntheticReviews().examples(part)
    shares = Counter(review.label for review in reviews)
    assert shares.keys() == set(range(len(SyntheticReviews().classes)))
    assert min(shares.values()) > 0.1 * len(reviews)


def test_too_few_reviews_for_three_parts_are_refused():
    with pytest.raises(UserError, match=r"between 6 and .*, not 5"):
        SyntheticReviews(reviews=5).examples("training")
    assert [len(SyntheticReviews(reviews=6).examples(part)) for part in TEXTS] == [6, 1, 1]
