"""Synthetic data that needs no download: reviews, copies of sequences, numbers in words."""

import random
from dataclasses import dataclass

from tlite.data.examples import Example, Pair
from tlite.data.reading import Split
from tlite.errors import UserError, needs_extra

MAX_SIZE = 10_000_000

THINGS = [
    "coffee", "kettle", "lamp", "radio", "tent", "novel", "album", "jacket", "keyboard", "camera",
]  # fmt: skip
PARTS = [
    "price", "design", "sound", "quality", "handle", "colour", "delivery", "manual", "battery",
    "finish",
]  # fmt: skip
FILLERS = (
    "i bought it in spring", "my sister has one too", "it came in a brown box",
    "we use it every day", "it stands in the kitchen", "the shop was far away",
)  # fmt: skip
# Score of a word in a review; an intensity and a negation multiply it.
MOODS = {
    "superb": 2.0, "wonderful": 2.0, "good": 1.0, "pleasant": 1.0, "fine": 0.5,
    "plain": -0.5, "weak": -1.0, "poor": -1.0, "awful": -2.0, "dreadful": -2.0,
}  # fmt: skip
INTENSITIES = {"": 1.0, "quite": 0.75, "very": 1.5, "extremely": 2.0}
NEGATION = -0.5  # "not awful" is not praise
STAR_BOUNDS = (-1.2, -0.4, 0.4, 1.2)  # scores of a review between one star and five


@dataclass(frozen=True)
class SyntheticReviews:
    """SYNTHETIC reviews: their stars follow from their words by the rules of this module.

    Each has two or three judgements ("The sound is not very good.") among sentences without
    meaning. The mean score of the judgements, from -4 to 4, gives the stars by `STAR_BOUNDS`.
    """

    reviews: int = 6000
    """Reviews of the training split; validation and test splits have a sixth as many."""
    data_seed: int = 0
    """Seed of the reviews."""

    @property
    def classes(self) -> list[str]:
        return ["1 star", "2 stars", "3 stars", "4 stars", "5 stars"]

    def examples(self, split: Split) -> list[Example]:
        """Return the reviews of a split; an invalid number of them is a `UserError`."""
        if not 6 <= self.reviews <= MAX_SIZE:
            raise UserError(f"--reviews must be between 6 and {MAX_SIZE:,}, not {self.reviews:,}")
        number = self.reviews if split == "training" else self.reviews // 6
        rng = random.Random(f"{self.data_seed} {split}")
        return [_write_review(rng) for _ in range(number)]


def _write_review(rng: random.Random) -> Example:
    sentences, scores = [f"This {rng.choice(THINGS)} is new."], []
    for part in rng.sample(PARTS, rng.choice((2, 3))):
        sentence, score = _write_judgement(rng, part)
        sentences.append(sentence)
        scores.append(score)
        if rng.random() < 0.5:
            sentences.append(rng.choice(FILLERS).capitalize() + ".")
    label = sum(sum(scores) / len(scores) > bound for bound in STAR_BOUNDS)
    return Example(" ".join(sentences), str(label + 1), label)


def _write_judgement(rng: random.Random, part: str) -> tuple[str, float]:
    word, intensity = rng.choice(list(MOODS)), rng.choice(list(INTENSITIES))
    score, is_negated = MOODS[word] * INTENSITIES[intensity], rng.random() < 0.25
    words = " ".join(filter(None, ["not" if is_negated else "", intensity, word]))
    return f"The {part} is {words}.", score * (NEGATION if is_negated else 1.0)


@dataclass(frozen=True)
class CopyTask:
    """Sequences of letters to be copied or reversed; no sequence is in two splits."""

    reverse: bool = False
    """The target is the reversed sequence."""
    letters: int = 20
    """Number of different letters."""
    longest: int = 16
    """Length of the longest sequences; the shortest have 4 letters."""
    sequences: int = 20000
    """Sequences of the training split; validation and test splits have a twentieth as many."""

    def pairs(self, split: Split) -> list[Pair]:
        """Return the pairs of a split; a `UserError` if there are too few different sequences."""
        number, held_out = self.sequences, self.sequences // 20
        total = number + 2 * held_out
        is_valid = 2 <= self.letters <= 26 and 4 <= self.longest <= 10_000
        is_valid = is_valid and 20 <= number <= MAX_SIZE
        if not is_valid or self.letters**self.longest < 4 * total:
            raise UserError(
                "the copy task needs 2 to 26 letters, 4 to 10,000 in the longest sequences, 20 to "
                f"{MAX_SIZE:,} of these, and four times as many to choose from"
            )
        rng, sequences = random.Random(0), {}
        while len(sequences) < total:
            length = rng.randint(4, self.longest)
            letters = (chr(ord("a") + rng.randrange(self.letters)) for _ in range(length))
            sequences[" ".join(letters)] = None
        starts = {"training": 0, "validation": number, "test": number + held_out}
        size, step = number if split == "training" else held_out, -1 if self.reverse else 1
        texts = list(sequences)[starts[split] : starts[split] + size]
        return [Pair(text, text[::step], f"sequence {i}") for i, text in enumerate(texts, 1)]


@dataclass(frozen=True)
class NumberWords:
    """English number words to German ones, by the package `num2words`; the splits are disjoint."""

    below: int = 1_000_000
    """Upper bound of the numbers, exclusive."""
    numbers: int = 20_000
    """Numbers of the training split; half of the draws have a random number of digits, so that
    short ones occur. Validation and test splits have 1,000 each."""
    source_language: str = "en"
    """Language of the source, as num2words names it."""
    target_language: str = "de"
    """Language of the target."""

    def pairs(self, split: Split) -> list[Pair]:
        """Return the pairs of a split.

        Raises:
            UserError: there are too few numbers, or num2words lacks a language.
        """
        with needs_extra("text"):
            from num2words import num2words
        most = min(self.below // 2, MAX_SIZE)
        if not (10_000 <= self.below <= 10**15 and 0 < self.numbers <= most):
            raise UserError(
                "--below must be between 10,000 and 10^15, and --numbers at most half of it, or "
                f"{MAX_SIZE:,}: not {self.below:,} and {self.numbers:,}"
            )
        # Of uniform numbers nine in ten have six digits, so that a model would see few short ones:
        # half of them get a random number of digits instead.
        rng, distinct = random.Random(0), {}
        digits = len(str(self.below - 1))
        while len(distinct) < self.numbers + 2_000:
            top = self.below if rng.random() < 0.5 else 10 ** rng.randint(1, digits)
            distinct[rng.randrange(min(top, self.below))] = None
        numbers = list(distinct)
        rng.shuffle(numbers)  # else the splits would have different lengths
        bounds = {"validation": (0, 1000), "test": (1000, 2000), "training": (2000, None)}
        languages = self.source_language, self.target_language
        try:
            return [
                Pair(*(num2words(number, lang=language) for language in languages), str(number))
                for number in numbers[slice(*bounds[split])]
            ]
        except NotImplementedError as error:
            raise UserError(f"num2words has no language {' or '.join(languages)}") from error
