"""Tokenizers: text to token ids and back."""

from typing import TYPE_CHECKING

from tlite import import_lazily
from tlite.text.characters import ByteTokenizer, CharTokenizer, NumberTokenizer, load_tokenizer
from tlite.text.tokenizer import PADDING, Tokenizer, pad

if TYPE_CHECKING:
    from tlite.text.subwords import PairTokenizer, SubwordTokenizer
    from tlite.text.word_tokenizers import (
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
    "IndexTokenizer": "tlite.text.word_tokenizers",
    "NgramTokenizer": "tlite.text.word_tokenizers",
    "select_vocabulary": "tlite.text.word_tokenizers",
    "sentences": "tlite.text.word_tokenizers",
    "simplify": "tlite.text.word_tokenizers",
    "words": "tlite.text.word_tokenizers",
}
"""Module of each name that is imported when it is used."""

__all__ = [
    "PADDING", "ByteTokenizer", "CharTokenizer", "IndexTokenizer", "NgramTokenizer",
    "NumberTokenizer", "PairTokenizer", "SubwordTokenizer", "Tokenizer", "load_tokenizer", "pad",
    "select_vocabulary", "sentences", "simplify", "words",
]  # fmt: skip


__getattr__ = import_lazily(__name__, FILES)
