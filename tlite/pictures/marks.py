"""How text is drawn: what can't be seen as symbols, and what stands for the tokens of a model."""

import re
from collections.abc import Iterable
from itertools import islice

import numpy as np

from tlite.errors import printable
from tlite.text import Tokenizer

CARETS = {0x2400 + code: f"^{chr(code ^ 0x40)}" for code in range(0x20)} | {0x2421: "^?"}
LONGEST = 12  # characters of a mark
WORD = re.compile(r"[\s\u2581]\w{2,}|\w{3,}")


def symbols(token: str) -> str:
    """A token with a symbol for each character that can't be seen: ␣, ↵, ⇥, ␌; others \\u200b."""
    return readable(token).replace(" ", "␣").replace("\n", "↵")


def readable(text: str) -> str:
    """A text whose control characters but line ends are symbols; spaces stay spaces."""
    known = printable(text).replace("\t", "⇥")
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in known)


def plain(text: str) -> str:
    """Text as matplotlib draws it letter by letter: a `$` would begin a formula.

    Its font has no symbols for control characters: a form feed is ^L, as keyboards have it.
    """
    return printable(text).translate(CARETS).replace("$", r"\$")


def visible(token: str) -> str:
    """A token's `symbols` in a picture, letter by letter."""
    return plain(symbols(token))


def mark_of(tokenizer: Tokenizer, index: int | np.integer) -> str:
    """A token as a reader sees it: a character, or a piece with its space or joining marks."""
    mark = tokenizer.piece_of(index) or f"<{index}>"
    return mark if len(mark) <= LONGEST else mark[: LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"


def chosen_tokens(
    tokenizer: Tokenizer, shown: Iterable[int | np.integer], number: int
) -> list[int]:
    """Tokens for a picture: those of a text, then the first of the vocabulary, which are frequent.

    Of a vocabulary of pieces words come before single letters and marks, of bytes letters and
    digits before the rest.
    """
    of_bytes, of_words = (tokenizer.unit == unit for unit in ("byte", "word"))

    def is_word(token: int) -> bool:
        mark = mark_of(tokenizer, token)
        return of_words or (mark.isalnum() if of_bytes else bool(WORD.fullmatch(mark)))

    every = range(len(tokenizer))
    known = [int(token) for token in shown if token in every]
    words = islice(filter(is_word, every), number)
    return [*dict.fromkeys([*known, *words, *every[:number]])][:number]
