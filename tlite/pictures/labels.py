"""Text of pictures: symbols for invisible characters, and labels for the tokens of a model."""

import re
from collections.abc import Iterable
from itertools import islice

import numpy as np

from tlite.errors import printable
from tlite.text import Tokenizer

CARETS = {0x2400 + code: f"^{chr(code ^ 0x40)}" for code in range(0x20)} | {0x2421: "^?"}
MAX_LABEL_CHARACTERS = 12
WORD = re.compile(r"[\s\u2581]\w{2,}|\w{3,}")


def show_whitespace(token: str) -> str:
    """Return a token with symbols for invisible characters: ␣, ↵, ⇥, ␌; others are \\u200b."""
    return escape_controls(token).replace(" ", "␣").replace("\n", "↵")


def escape_controls(text: str) -> str:
    """Return a text with symbols for control characters, except line ends."""
    text = printable(text).replace("\t", "⇥")
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def matplotlib_text(text: str) -> str:
    """Return a text that matplotlib draws literally: `$` does not start a formula.

    Its font has no symbols for control characters: a form feed is ^L.
    """
    return printable(text).translate(CARETS).replace("$", r"\$")


def matplotlib_label(token: str) -> str:
    """Return a token with `show_whitespace` that matplotlib draws literally."""
    return matplotlib_text(show_whitespace(token))


def token_label(tokenizer: Tokenizer, token: int | np.integer) -> str:
    """Return a token as text, shortened: a character, or a subword with its space or prefix."""
    label = tokenizer.id_to_token(token) or f"<{token}>"
    if len(label) <= MAX_LABEL_CHARACTERS:
        return label
    return label[: MAX_LABEL_CHARACTERS - 1] + "\N{HORIZONTAL ELLIPSIS}"


def token_labels(tokenizer: Tokenizer, tokens: Iterable[int | np.integer]) -> list[str]:
    """Return the label of each token."""
    return [token_label(tokenizer, token) for token in tokens]


def select_tokens(tokenizer: Tokenizer, text: Iterable[int | np.integer], number: int) -> list[int]:
    """Return tokens for a picture: those of a text, then words, then the first of the vocabulary.

    In a vocabulary of bytes letters and digits count as words.
    """

    def is_word(token: int) -> bool:
        label = token_label(tokenizer, token)
        is_byte = tokenizer.unit == "byte"
        return tokenizer.unit == "word" or bool(
            label.isalnum() if is_byte else WORD.fullmatch(label)
        )

    vocabulary = range(len(tokenizer))
    tokens = [int(token) for token in text if token in vocabulary]
    words = islice(filter(is_word, vocabulary), number)
    return [*dict.fromkeys([*tokens, *words, *vocabulary[:number]])][:number]
