"""Tokenizers: text to token ids and back."""

from tlite.text.characters import ByteTokenizer, CharTokenizer, NumberTokenizer, load_tokenizer
from tlite.text.subwords import PairTokenizer, SubwordTokenizer
from tlite.text.tokenizer import PADDING, Tokenizer, pad
from tlite.text.word_tokenizers import (
    IndexTokenizer,
    NgramTokenizer,
    select_vocabulary,
    sentences,
    simplify,
    words,
)

__all__ = [
    "PADDING", "ByteTokenizer", "CharTokenizer", "IndexTokenizer", "NgramTokenizer",
    "NumberTokenizer", "PairTokenizer", "SubwordTokenizer", "Tokenizer", "load_tokenizer", "pad",
    "select_vocabulary", "sentences", "simplify", "words",
]  # fmt: skip
