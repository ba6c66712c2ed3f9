"""From text to numbers and back."""

from tlite.text.byte_level import ByteTokenizer
from tlite.text.characters import CharTokenizer
from tlite.text.ngrams import NgramTokenizer
from tlite.text.numbers import NumberTokenizer
from tlite.text.padding import PADDING, pad
from tlite.text.pairs import PairTokenizer
from tlite.text.saved import load_tokenizer
from tlite.text.subwords import SubwordTokenizer
from tlite.text.tokenizer import HuggingFace, Tokenizer
from tlite.text.words import IndexTokenizer, select_vocabulary, sentences, simplify, words

__all__ = [name for name in globals() if name[0] != "_"]  # offered, to type checkers too
