"""From text to numbers and back."""

import importlib
from typing import TYPE_CHECKING

from tlite.text.characters import ByteTokenizer, CharTokenizer, NumberTokenizer, load_tokenizer
from tlite.text.tokenizer import PADDING, Tokenizer, pad

if TYPE_CHECKING:
    from tlite.text.subwords import PairTokenizer, SubwordTokenizer
    from tlite.text.words import (
        IndexTokenizer,
        NgramTokenizer,
        select_vocabulary,
        sentences,
        simplify,
        words,
    )

FILES = {
    "PairTokenizer": "tlite.text.subwords",
    "SubwordTokenizer": "tlite.text.subwords",
    "IndexTokenizer": "tlite.text.words",
    "NgramTokenizer": "tlite.text.words",
    "select_vocabulary": "tlite.text.words",
    "sentences": "tlite.text.words",
    "simplify": "tlite.text.words",
    "words": "tlite.text.words",
}
"""Module of each name that is imported when it is used."""

__all__ = [
    "PADDING", "ByteTokenizer", "CharTokenizer", "IndexTokenizer", "NgramTokenizer",
    "NumberTokenizer", "PairTokenizer", "SubwordTokenizer", "Tokenizer", "load_tokenizer", "pad",
    "select_vocabulary", "sentences", "simplify", "words",
]  # fmt: skip


def __getattr__(name: str):
    if name in FILES:
        return getattr(importlib.import_module(FILES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
