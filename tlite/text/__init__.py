"""From text to numbers and back."""

from tlite.text.characters import ByteTokenizer, CharTokenizer, NumberTokenizer, load_tokenizer
from tlite.text.subwords import PairTokenizer, SubwordTokenizer
from tlite.text.tokenizer import PADDING, Tokenizer, pad
from tlite.text.words import (
    IndexTokenizer,
    NgramTokenizer,
    select_vocabulary,
    sentences,
    simplify,
    words,
)

__all__ = [name for name in globals() if name[0] != "_"]  # offered, to type checkers too
