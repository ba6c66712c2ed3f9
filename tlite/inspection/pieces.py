"""What stands for the tokens of a model in a picture."""

import re
from collections.abc import Iterable

import numpy as np

from tlite.pretrained import PretrainedTokenizer
from tlite.text import ByteTokenizer, CharTokenizer

LONGEST = 12  # characters of a mark
BROKEN = "\N{REPLACEMENT CHARACTER}"  # part of a character
WORD = re.compile(r"[\s\u2581]\w{2,}|\w{3,}")


def mark_of(tokenizer, index: int | np.integer) -> str:
    """A token as a reader sees it: a character, or a piece with its space or joining marks."""
    if isinstance(tokenizer, CharTokenizer):
        return tokenizer.characters[index]
    if not isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.piece_of(index) or f"<{index}>"
    # Pieces of bytes are written with letters of their own, which decoding takes back. Where it
    # would take away a space (\u2581) or a join (##) as well, the piece is clearer.
    piece, text = tokenizer.piece_of(index), tokenizer.decode([index])
    hidden = not text.replace("\n", "").replace("\t", "").isprintable()  # control characters
    keep = not text or BROKEN in text or hidden or piece.startswith(("\u2581", "##"))
    mark = (piece or f"<{index}>") if keep else text
    return mark if len(mark) <= LONGEST else mark[: LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"


def chosen_tokens(tokenizer, shown: Iterable[int | np.integer], number: int) -> list[int]:
    """Tokens for a picture: those of a text, then the first of the vocabulary, which are frequent.

    Of a vocabulary of pieces words come before single letters and marks, of bytes letters and
    digits before the rest.
    """
    size, of_bytes = len(tokenizer), isinstance(tokenizer, ByteTokenizer)
    any_word = not of_bytes and not isinstance(tokenizer, PretrainedTokenizer)
    chosen = dict.fromkeys(int(token) for token in shown if 0 <= token < size)
    words, others = [], []
    for token in range(size):
        if len(chosen) + len(words) >= number:
            break
        if token not in chosen:
            mark = mark_of(tokenizer, token)
            is_word = any_word or (mark.isalnum() if of_bytes else WORD.fullmatch(mark))
            (words if is_word else others).append(token)
    return [*chosen, *words, *others][:number]
