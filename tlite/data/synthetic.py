"""Reviews from a small grammar of our own, so that a classifier can be tried without a download."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tlite.data.labelled import Example, Part
from tlite.errors import UserError

THINGS = [
    "coffee", "kettle", "lamp", "radio", "tent", "novel", "album", "jacket", "keyboard", "camera",
]  # fmt: skip
PARTS = [
    "price", "design", "sound", "quality", "handle", "colour", "delivery", "manual", "battery",
    "finish",
]  # fmt: skip
FILLERS = (
    "i bought it in spring",
    "my sister has one too",
    "it came in a brown box",
    "we use it every day",
    "it stands in the kitchen",
    "the shop was far away",
)
# What a word adds to the mood of a review; an intensity multiplies, a negation turns it round.
MOODS = {
    "superb": 2.0,
    "wonderful": 2.0,
    "good": 1.0,
    "pleasant": 1.0,
    "fine": 0.5,
    "plain": -0.5,
    "weak": -1.0,
    "poor": -1.0,
    "awful": -2.0,
    "dreadful": -2.0,
}
INTENSITIES = {"": 1.0, "quite": 0.75, "very": 1.5, "extremely": 2.0}
NEGATION = -0.5  # "not awful" is not praise


@dataclass(frozen=True)
class SyntheticReviews:
    """SYNTHETIC reviews: their stars follow from their words by the rules of this file.

    Each has two or three judgements ("the sound is not very good") among sentences that mean
    nothing. The mean of the judgements, from -4 to 4, gives the stars: below -1.2 one, below -0.4
    two, up to 0.4 three, up to 1.2 four, above it five.
    """

    reviews: int = 6000
    """Reviews for training; there are a sixth as many for validation, and for the test."""
    data_seed: int = 0
    """Of the reviews."""

    @property
    def classes(self) -> list[str]:
        return ["1 star", "2 stars", "3 stars", "4 stars", "5 stars"]

    def examples(self, part: Part) -> list[Example]:
        """The reviews of a part.

        Raises:
            UserError: there are none.
        """
        if not 6 <= self.reviews <= 10_000_000:
            raise UserError(f"--reviews must be between 6 and 10,000,000, not {self.reviews:,}")
        number = self.reviews if part == "training" else self.reviews // 6
        return list(self._write(random.Random(f"{self.data_seed} {part}"), number))

    def _write(self, chance: random.Random, number: int) -> Iterator[Example]:
        for _ in range(number):
            thing = chance.choice(THINGS)
            sentences, moods = [f"This {thing} is new."], []
            for part in chance.sample(PARTS, chance.choice((2, 3))):
                sentence, mood = _judgement(chance, part)
                sentences.append(sentence)
                moods.append(mood)
                if chance.random() < 0.5:
                    sentences.append(chance.choice(FILLERS).capitalize() + ".")
            mood = sum(moods) / len(moods)
            label = sum(mood > bound for bound in (-1.2, -0.4, 0.4, 1.2))
            yield Example(" ".join(sentences), str(label + 1), label)


def _judgement(chance: random.Random, part: str) -> tuple[str, float]:
    word, intensity = chance.choice(list(MOODS)), chance.choice(list(INTENSITIES))
    mood, negated = MOODS[word] * INTENSITIES[intensity], chance.random() < 0.25
    described = " ".join(filter(None, ["not" if negated else "", intensity, word]))
    return f"The {part} is {described}.", mood * (NEGATION if negated else 1.0)
