"""Words: normalisation of texts, vocabularies, word tokenizers, and n-grams as features."""

import functools
import itertools
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tlite.text.tokenizer import PADDING, Tokenizer, pad

UNKNOWN = "[UNK]"
ASCII_WORD = re.compile(r"\w\w+")
ASCII_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")
ACCENTED = "LATIN", "GREEK", "COPTIC", "CYRILLIC"  # scripts whose marks are accents
# Letters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana and Han.
UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e46\u0e81-\u0ec6\u1000-\u103f\u104c-\u108f\u1780-\u17d3"
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
# A capital may follow at once: reviews often lack the space.
SENTENCE_END = re.compile(r"(?<=[.!?])(?:\s+|(?=[A-Z]))|[\n\r\u2028\u2029]+")
WORD_SEPARATOR = "\t"  # of n-grams; those of characters have none
_APOSTROPHES = "'`´ʹʻʼʽˈ‘’‚‛′\N{FULLWIDTH APOSTROPHE}\N{ZERO WIDTH JOINER}"
_REPLACED = dict.fromkeys(map(ord, _APOSTROPHES)) | dict.fromkeys(map(ord, "\n\r\u2028\u2029"), " ")


def simplify(text: str) -> str:
    """Return the text in lower case without accents, apostrophes and zero-width joiners.

    "Café" is "cafe" (by canonical decomposition, NFD), "Don’t" is "dont", a line end is a space.
    Marks of letters that are neither Latin, Greek nor Cyrillic are vowels and tones, and stay.
    """
    text = text.lower().translate(_REPLACED)
    if text.isascii():
        return text
    characters, letter = [], ""
    for character in unicodedata.normalize("NFD", text):
        category = unicodedata.category(character)
        if category != "Mn" or _keeps_marks(letter):
            characters.append(character)
        if category not in ("Mn", "Mc"):
            letter = character
    return unicodedata.normalize("NFC", "".join(characters)).translate(_REPLACED)


@functools.cache
def _keeps_marks(character: str) -> bool:
    """True for a letter whose marks are not accents."""
    name = unicodedata.name(character, "") if character.isalpha() else ""
    return bool(name) and not name.startswith(ACCENTED)


@functools.cache
def _word_patterns() -> tuple[re.Pattern, re.Pattern]:
    """Return the expressions of `words` without and with `marks`, for texts beyond ASCII.

    They count vowel signs as parts of letters, which `re` does not.
    """
    characters = map(chr, range(sys.maxunicode))
    signs = f"[{''.join(c for c in characters if unicodedata.category(c) in ('Mn', 'Mc'))}]*"
    letter, alone = rf"(?:(?![{UNSPACED}])\w{signs})", f"[{UNSPACED}]{signs}"
    return re.compile(f"{alone}|{letter}{{2,}}"), re.compile(rf"{alone}|{letter}+|[^\w\s]")


def words(text: str, marks: bool = False) -> list[str]:
    r"""Return the words of the simplified text: two or more letters, digits or underscores.

    Each letter of a script without spaces between words is a word.

    Args:
        marks: include words of one letter and each punctuation mark: `\w+|[^\w\s]`.
    """
    text = simplify(text)
    if text.isascii():
        return (ASCII_WORD_OR_MARK if marks else ASCII_WORD).findall(text)
    return _word_patterns()[marks].findall(text)


def sentences(text: str) -> list[str]:
    """Split a text after full stops, question and exclamation marks, and at line ends."""
    return [sentence for sentence in SENTENCE_END.split(text) if sentence.strip()]


def select_vocabulary(
    corpus: Iterable[str], min_document_frequency: int = 1, marks: bool = False
) -> list[str]:
    """Return the words of at least so many texts by falling frequency, ties by alphabet.

    Args:
        marks: that of `words`.

    Raises:
        ValueError: the frequency is below 1.
    """
    return _select_terms((words(text, marks) for text in corpus), min_document_frequency)


def _select_terms(terms: Iterable[list[str]], min_document_frequency: int) -> list[str]:
    """Return the terms of at least so many texts by falling frequency, ties by alphabet."""
    if min_document_frequency < 1:
        raise ValueError(f"min_document_frequency must be at least 1, not {min_document_frequency}")
    frequencies = Counter(itertools.chain.from_iterable(map(set, terms)))
    chosen = [name for name, count in frequencies.items() if count >= min_document_frequency]
    return sorted(chosen, key=lambda name: (-frequencies[name], name))


class IndexTokenizer(Tokenizer):
    """Words to their indices in a vocabulary, all others to that of UNKNOWN.

    Args:
        vocabulary: different words; UNKNOWN is prepended if it is missing.
        marks: that of `words`.
    """

    kind, file_name, unit = "words", "words.json", "word"

    def __init__(self, vocabulary: Sequence[str], marks: bool = False):
        vocabulary = list(vocabulary)
        self.vocabulary = vocabulary if UNKNOWN in vocabulary else [UNKNOWN, *vocabulary]
        self.marks = marks
        self._ids = {word: index for index, word in enumerate(self.vocabulary)}
        if len(self._ids) < len(self.vocabulary):
            word = next(word for word, n in Counter(self.vocabulary).items() if n > 1)
            raise ValueError(f"the word {word!r} is in the vocabulary more than once")
        self.unknown_id = self._ids[UNKNOWN]

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str) -> np.ndarray:
        """Return the ids (T,) of a text's words, int32."""
        ids = [self._ids.get(word, self.unknown_id) for word in self.words(text)]
        return np.array(ids, np.int32)

    def id_to_token(self, index: int | np.integer) -> str:
        return self.vocabulary[int(index)] if index >= 0 else ""

    def words(self, text: str) -> list[str]:
        return words(text, self.marks)

    def tokenize(self, text: str, max_length: int | None = None) -> list[str]:
        return self.words(text)[:max_length]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "vocabulary": self.vocabulary, "marks": self.marks}


# N-grams of words and characters, as features of a text


def ngrams(text: str, max_words: int, max_characters: int, marks: bool = False) -> list[str]:
    """Return the n-grams of 2 to `max_words` words, then those of 2 to `max_characters` characters.

    Words are joined by a tab. Characters are those of the simplified text with single spaces
    between words and at either end.
    """
    characters = f" {' '.join(simplify(text).split())} "
    by_words = (WORD_SEPARATOR.join(run) for run in _runs(words(text, marks), max_words))
    return [*by_words, *_runs(characters, max_characters)]


def _runs(sequence: Sequence[str], max_size: int) -> Iterator[Sequence[str]]:
    """Yield the runs of 2, then 3, up to `max_size` neighbours in a sequence."""
    for size in range(2, max_size + 1):
        yield from (sequence[i : i + size] for i in range(len(sequence) - size + 1))


def is_word_ngram(ngram: str) -> bool:
    """True for an n-gram of words, False for one of characters."""
    return WORD_SEPARATOR in ngram


class NgramTokenizer(IndexTokenizer):
    """Words to ids as by `IndexTokenizer`, followed by the ids of features of the text.

    Tokens are (B, T), features (B, G): the different words of the text, with ids below V, and its
    different n-grams, with ids from V on.

    Args:
        vocabulary, marks: those of `IndexTokenizer`.
        ngrams: different n-grams, as returned by `ngrams`.
        max_words, max_characters: largest sizes of n-grams in a text.
    """

    kind = "n-grams"

    def __init__(
        self,
        vocabulary: Sequence[str],
        ngrams: Sequence[str],
        max_words: int,
        max_characters: int,
        *,
        marks: bool = False,
    ):
        super().__init__(vocabulary, marks=marks)
        self.ngrams, self.sizes = list(ngrams), (max_words, max_characters)
        self._ngram_ids = {ngram: index for index, ngram in enumerate(self.ngrams, len(self))}
        if len(self._ngram_ids) < len(self.ngrams):
            raise ValueError("an n-gram is repeated")

    @classmethod
    def learn(
        cls,
        texts: Iterable[str],
        min_document_frequency: int,
        max_words: int,
        max_characters: int,
        marks: bool = False,
    ) -> "NgramTokenizer":
        """Return a tokenizer with the words and the n-grams of at least so many texts.

        N-grams of words come first, then those of characters, the most frequent of each first.
        """
        texts = list(texts)
        vocabulary = select_vocabulary(texts, min_document_frequency, marks)
        by_text = (ngrams(text, max_words, max_characters, marks) for text in texts)
        chosen = _select_terms(by_text, min_document_frequency)
        chosen.sort(key=is_word_ngram, reverse=True)
        return cls(vocabulary, chosen, max_words, max_characters, marks=marks)

    def without_ngrams(self) -> IndexTokenizer:
        """Return a tokenizer with the same words."""
        return IndexTokenizer(self.vocabulary, marks=self.marks)

    def encode_texts(
        self, texts: Iterable[str], max_length: int | None = None, pad_id: int = PADDING
    ) -> np.ndarray:
        """Return the words of each text (B, T), and with a `max_length` its features (B, T + G).

        G, at least 1, is the largest number of features of these texts; others are padded.
        """
        texts = list(texts)
        tokens = super().encode_texts(texts, max_length, pad_id)
        if max_length is None:
            return tokens
        rows = [self.features(text) for text in texts]
        features = pad(rows, max(1, *map(len, rows)) if rows else 1, PADDING)
        return np.concatenate([tokens, features], axis=1)

    def features(self, text: str) -> list[int]:
        """Return the ids of the different known words and n-grams of a text, in order."""
        known_words = self._ids.keys() & set(words(text, self.marks))
        known_ngrams = self._ngram_ids.keys() & set(ngrams(text, *self.sizes, self.marks))
        ids = [self._ids[word] for word in known_words]
        return sorted(ids + [self._ngram_ids[ngram] for ngram in known_ngrams])

    def to_dict(self) -> dict[str, Any]:
        sizes = {"max_words": self.sizes[0], "max_characters": self.sizes[1]}
        return super().to_dict() | {"ngrams": self.ngrams} | sizes
