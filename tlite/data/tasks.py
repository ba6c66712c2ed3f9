"""Made-up translations that need no download: copying, reversing, numbers in words."""

import random
from dataclasses import dataclass

from tlite.data.parallel import Pair
from tlite.data.tables import Part
from tlite.errors import UserError, needs_extra

MOST = 10_000_000


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

    def pairs(self, part: Part) -> list[Pair]:
        if not (2 <= self.letters <= 26 and 4 <= self.longest <= 10_000):
            raise UserError("the copy task needs 2 to 26 letters, and 4 to 10,000 of them")
        if not 20 <= self.sequences <= MOST:
            raise UserError(f"the copy task needs 20 to {MOST:,} sequences, not {self.sequences:,}")
        number, held = self.sequences, self.sequences // 20
        parts = {"training": slice(number), "validation": slice(number, -held)}
        whole = number + 2 * held  # different ones: the last are for the test
        if self.letters**self.longest < 4 * whole:
            raise UserError("there are not so many different sequences: more letters, or longer")
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

    def pairs(self, part: Part) -> list[Pair]:
        with needs_extra("text"):
            from num2words import CONVERTER_CLASSES, num2words
        if not 10_000 <= self.below <= 10**15:
            raise UserError(f"--below must be between 10,000 and 10^15, not {self.below:,}")
        if not 0 < self.numbers <= min(self.below // 2, MOST):
            raise UserError(
                f"--numbers must be between 1 and {min(self.below // 2, MOST):,}, half of those "
                f"that there are, not {self.numbers:,}"
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
        if not set(languages) <= set(CONVERTER_CLASSES):
            raise UserError(f"num2words has no language {languages[0]!r} or {languages[1]!r}")
        return [
            Pair(
                num2words(number, lang=self.source_language),
                num2words(number, lang=self.target_language),
                str(number),
            )
            for number in order[slice(*parts[part])]
        ]
