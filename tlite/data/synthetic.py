"""Made-up data that needs no download: reviews, copying, reversing, numbers in words."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tlite.data.examples import Example, Pair
from tlite.data.reading import Split
from tlite.errors import UserError, needs_extra

MOST = 10_000_000

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

    def examples(self, part: Split) -> list[Example]:
        """The reviews of a part.

        Raises:
            UserError: there are none.
        """
        if not 6 <= self.reviews <= MOST:
            raise UserError(f"--reviews must be between 6 and {MOST:,}, not {self.reviews:,}")
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


@dataclass(frozen=True)
class CopyTask:
    """Sequences of letters to be written again, backwards if asked; no sequence is in two parts."""

    reverse: bool = False
    """Write the sequence backwards."""
    letters: int = 20
    """Different letters."""
    longest: int = 16
    """Letters in the longest sequences; the shortest have 4."""
    sequences: int = 20000
    """How many to train on; a twentieth as many to validate, and to test."""

    def pairs(self, part: Split) -> list[Pair]:
        """The pairs of a part.

        Raises:
            UserError: there are no such sequences, or not so many.
        """
        number, held = self.sequences, self.sequences // 20
        parts = {"training": slice(number), "validation": slice(number, -held)}
        whole = number + 2 * held  # different ones: the last are for the test
        sizes = 2 <= self.letters <= 26 and 4 <= self.longest <= 10_000 and 20 <= number <= MOST
        if not sizes or self.letters**self.longest < 4 * whole:
            raise UserError(
                "the copy task needs 2 to 26 letters, 4 to 10,000 in the longest sequences, 20 to "
                f"{MOST:,} of these, and four times as many to choose from"
            )
        draw, seen = random.Random(0), {}
        while len(seen) < whole:
            length = draw.randint(4, self.longest)
            letters = (chr(ord("a") + draw.randrange(self.letters)) for _ in range(length))
            seen[" ".join(letters)] = None
        chosen, step = list(seen)[parts.get(part, slice(-held, None))], -1 if self.reverse else 1
        return [Pair(text, text[::step], f"sequence {i}") for i, text in enumerate(chosen, 1)]


@dataclass(frozen=True)
class NumberWords:
    """English number words to German ones; the parts are disjoint (by the package `num2words`)."""

    below: int = 1_000_000
    """The largest number, plus one."""
    numbers: int = 20_000
    """How many to train on, about half of them below a thousandth of the largest; 1,000 each are
    held out for validation and test."""
    source_language: str = "en"
    """Language of the source, as num2words names it."""
    target_language: str = "de"
    """Language of the target."""

    def pairs(self, part: Split) -> list[Pair]:
        """The pairs of a part.

        Raises:
            UserError: there are not so many numbers, or a language has no words for them.
        """
        with needs_extra("text"):
            from num2words import num2words
        most = min(self.below // 2, MOST)
        if not (10_000 <= self.below <= 10**15 and 0 < self.numbers <= most):
            raise UserError(
                "--below must be between 10,000 and 10^15, and --numbers at most half of it, or "
                f"{MOST:,}: not {self.below:,} and {self.numbers:,}"
            )
        # Evenly drawn numbers have six digits nine times in ten, so that a model would see few
        # short ones: half of them get a random number of digits instead.
        draw, chosen = random.Random(0), {}
        digits = len(str(self.below - 1))
        while len(chosen) < self.numbers + 2_000:
            top = self.below if draw.random() < 0.5 else 10 ** draw.randint(1, digits)
            chosen[draw.randrange(min(top, self.below))] = None
        parts = {"validation": (0, 1000), "test": (1000, 2000), "training": (2000, None)}
        # The held-out ones are spread evenly over all that were drawn.
        order = list(chosen)
        draw.shuffle(order)
        languages = self.source_language, self.target_language
        try:
            return [
                Pair(*(num2words(number, lang=language) for language in languages), str(number))
                for number in order[slice(*parts[part])]
            ]
        except NotImplementedError as error:
            raise UserError(f"num2words has no language {' or '.join(languages)}") from error
