"""Words: cleaning a text, choosing a vocabulary, a token for each word; and n-grams as features."""

import functools
import itertools
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from tlite.text.tokenizer import PADDING, Tokenizer, pad, read_text

ASCII_WORD = re.compile(r"\w\w+")
ASCII_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")
ACCENTED = "LATIN", "GREEK", "COPTIC", "CYRILLIC"  # scripts whose marks are accents
# Scripts that put no space between words: each letter is a word. Thai, Lao, Burmese, Khmer, kana
# and Han. Digits and signs in between are left out.
UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e46\u0e81-\u0ec6\u1000-\u103f\u104c-\u108f\u1780-\u17d3"
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
# A capital may follow at once: reviews often lack the space.
SENTENCE_END = re.compile(r"(?<=[.!?])(?:\s+|(?=[A-Z]))|[\n\r\u2028\u2029]+")
BETWEEN_WORDS = "\t"  # n-grams of characters have none
_APOSTROPHES = "'`´ʹʻʼʽˈ‘’‚‛′\N{FULLWIDTH APOSTROPHE}\N{ZERO WIDTH JOINER}"
_REPLACED = dict.fromkeys(map(ord, _APOSTROPHES)) | dict.fromkeys(map(ord, "\n\r\u2028\u2029"), " ")


def simplify(text: str) -> str:
    """Lower case; no accents, apostrophes, zero-width joiners or line ends.

    Canonical decomposition (NFD) splits letters from their marks, which are dropped: "Café" is
    "cafe" and "Don’t" is "dont". A line end becomes a space. Marks of letters that are neither
    Latin, Greek nor Cyrillic stay: there they are vowels and tones.
    """
    text = text.lower().translate(_REPLACED)
    if text.isascii():
        return text
    kept, letter = [], ""
    for character in unicodedata.normalize("NFD", text):
        category = unicodedata.category(character)
        if category != "Mn" or _keeps_marks(letter):
            kept.append(character)
        if category not in ("Mn", "Mc"):
            letter = character
    return unicodedata.normalize("NFC", "".join(kept)).translate(_REPLACED)  # Hangul again


@functools.cache
def _keeps_marks(character: str) -> bool:
    """True for a letter whose marks are no accents."""
    name = unicodedata.name(character, "") if character.isalpha() else ""
    return bool(name) and not name.startswith(ACCENTED)


@functools.cache
def _word_patterns() -> tuple[re.Pattern, re.Pattern]:
    """The expressions of `words` without and with `marks`: `re` does not count vowel signs to
    letters."""
    every = map(chr, range(sys.maxunicode))
    signs = f"[{''.join(c for c in every if unicodedata.category(c) in ('Mn', 'Mc'))}]*"
    letter, alone = rf"(?:(?![{UNSPACED}])\w{signs})", f"[{UNSPACED}]{signs}"
    return re.compile(f"{alone}|{letter}{{2,}}"), re.compile(rf"{alone}|{letter}+|[^\w\s]")


def words(text: str, marks: bool = False) -> list[str]:
    r"""The words of the simplified text: two or more letters, digits or underscores, `\w\w+\b`.

    With `marks`, words of one letter and each punctuation mark too: `\w+|[^\w\s]`. Vowel signs
    belong to their letter. Where a script has no spaces between words, each letter is a word.
    """
    text = simplify(text)
    if text.isascii():
        return (ASCII_WORD_OR_MARK if marks else ASCII_WORD).findall(text)
    return _word_patterns()[marks].findall(text)


def sentences(text: str) -> list[str]:
    """A text cut after full stops, question and exclamation marks, and at line ends."""
    return [part for part in SENTENCE_END.split(text) if part.strip()]


def select_vocabulary(
    corpus: Iterable[str], min_document_frequency: int = 1, marks: bool = False
) -> list[str]:
    """The words of at least so many texts, those of the most texts first, ties by alphabet.

    `marks` is that of `words`.

    Raises:
        ValueError: the frequency is below 1.
    """
    if min_document_frequency < 1:
        raise ValueError(f"min_document_frequency must be at least 1, not {min_document_frequency}")
    return _frequent((words(text, marks) for text in corpus), min_document_frequency)


def _frequent(of_texts: Iterable[list[str]], least: int) -> list[str]:
    """What at least so many texts have, what the most have first, ties by alphabet."""
    frequencies = Counter(itertools.chain.from_iterable(map(set, of_texts)))
    chosen = [name for name, count in frequencies.items() if count >= least]
    return sorted(chosen, key=lambda name: (-frequencies[name], name))


class IndexTokenizer(Tokenizer):
    """Words to their places in a vocabulary, everything else to the unknown word.

    Args:
        vocabulary: the words, each once; the unknown word is added in front unless it is there.
        unknown: what stands for every word that is not in the vocabulary.
        marks: cut texts as `words` does with its `marks`.

    Raises:
        ValueError: a word occurs twice, is empty, or has a line end in it.
    """

    kind, file_name, unit = "words", "vocabulary.txt", "word"

    def __init__(self, vocabulary: Sequence[str], unknown: str = "[UNK]", marks: bool = False):
        vocabulary = list(vocabulary)
        self.vocabulary = vocabulary if unknown in vocabulary else [unknown, *vocabulary]
        self.unknown, self.marks = unknown, marks
        self._ids = {word: index for index, word in enumerate(self.vocabulary)}
        if len(self._ids) < len(self.vocabulary):
            twice = next(word for word, n in Counter(self.vocabulary).items() if n > 1)
            raise ValueError(f"the word {twice!r} is in the vocabulary more than once")
        if bad := [word for word in self.vocabulary if word.splitlines() != [word]]:
            raise ValueError(f"{bad[0]!r} can't be a word: it is empty or has a line end in it")
        self.unknown_id = self._ids[unknown]

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str) -> np.ndarray:
        """The ids (T,) of a text's words, int32."""
        ids = [self._ids.get(word, self.unknown_id) for word in self.words(text)]
        return np.array(ids, np.int32)

    def decode(self, tokens) -> str:
        """The words of the ids (T,), with spaces between; padding (ids below 0) is left out."""
        ids = np.asarray(tokens).reshape(-1).tolist()
        return " ".join(self.vocabulary[t] for t in ids if t >= 0)

    def piece_of(self, index: int | np.integer) -> str:
        return self.vocabulary[int(index)] if index >= 0 else ""

    def words(self, text: str) -> list[str]:
        return words(text, self.marks)

    def pieces(self, text: str, max_length: int | None = None) -> list[str]:
        """The text's words, known or not."""
        return self.words(text)[:max_length]

    def save(self, path: str | Path) -> None:
        """A text file with one word a line."""
        Path(path).write_text("".join(f"{word}\n" for word in self.vocabulary), encoding="utf-8")

    @classmethod
    def load(
        cls, path: str | Path, unknown: str = "[UNK]", marks: bool = False
    ) -> "IndexTokenizer":
        def make(text: str) -> "IndexTokenizer":
            return cls(text.removesuffix("\n").split("\n"), unknown, marks)

        return read_text(path, make, "a vocabulary, one word a line")


# Neighbouring words and characters, as features of a text beside its words


def ngrams(text: str, most_words: int, most_characters: int, marks: bool = False) -> list[str]:
    """The n-grams of 2 to so many words, then those of 2 to so many characters.

    Those of words are joined by a tab. Those of characters run over the simplified text, its
    spaces included, with one space for each gap and at either end.
    """
    letters = f" {' '.join(simplify(text).split())} "
    of_words = (BETWEEN_WORDS.join(run) for run in _runs(words(text, marks), most_words))
    return [*of_words, *_runs(letters, most_characters)]


def _runs(sequence: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    """The neighbours in a sequence, 2 at a time, then 3, up to the most."""
    for size in range(2, most + 1):
        for start in range(len(sequence) - size + 1):
            yield sequence[start : start + size]


def is_of_words(ngram: str) -> bool:
    return BETWEEN_WORDS in ngram


class NgramTokenizer(IndexTokenizer):
    """Words to ids as `IndexTokenizer` does it; after them the ids of a text's n-grams.

    Tokens (B, T) are followed by the features of the whole text (B, G), its different words and
    n-grams: the words (the unknown one among them) have the ids below V, the n-grams V and more.

    Args:
        vocabulary, marks: those of `IndexTokenizer`.
        ngrams: the n-grams, each once, as `ngrams` gives them.
        most_words, most_characters: the sizes of the n-grams that a text is searched for.
    """

    ngrams_file = "ngrams.txt"

    def __init__(
        self,
        vocabulary: Sequence[str],
        ngrams: Sequence[str],
        most_words: int,
        most_characters: int,
        *,
        marks: bool = False,
    ):
        super().__init__(vocabulary, marks=marks)
        self.ngrams, self.sizes = list(ngrams), (most_words, most_characters)
        self._ngram_ids = {ngram: len(self) + place for place, ngram in enumerate(self.ngrams)}
        if len(self._ngram_ids) < len(self.ngrams):
            raise ValueError("an n-gram is there more than once")

    @classmethod
    def learn(
        cls,
        texts: Iterable[str],
        min_document_frequency: int,
        most_words: int,
        most_characters: int,
        marks: bool = False,
    ) -> "NgramTokenizer":
        """With the words and the n-grams of at least so many texts.

        N-grams of words come first, then those of characters, the most frequent of each first.
        """
        texts = list(texts)
        vocabulary = select_vocabulary(texts, min_document_frequency, marks)
        found = (ngrams(text, most_words, most_characters, marks) for text in texts)
        chosen = sorted(_frequent(found, min_document_frequency), key=is_of_words, reverse=True)
        return cls(vocabulary, chosen, most_words, most_characters, marks=marks)

    def of_words(self) -> IndexTokenizer:
        """The same words without n-grams."""
        return IndexTokenizer(self.vocabulary, marks=self.marks)

    def encode_texts(
        self, texts: Iterable[str], max_length: int | None = None, pad_id: int = PADDING
    ) -> np.ndarray:
        """The words of each text as ids (B, T), and with a `max_length` its features (B, T + G).

        G, at least 1, is the largest number of features of these texts; the rest is padding. A
        model takes what has its context as `max_length`.
        """
        texts = list(texts)
        tokens = super().encode_texts(texts, max_length, pad_id)
        if max_length is None:
            return tokens
        rows = [self.features(text) for text in texts]
        features = pad(rows, max(1, *map(len, rows)) if rows else 1, PADDING)
        return np.concatenate([tokens, features], axis=1)

    def features(self, text: str) -> list[int]:
        """The ids of the different words and n-grams of a text, those that are known."""
        of_words = self._ids.keys() & set(words(text, self.marks))
        of_ngrams = self._ngram_ids.keys() & set(ngrams(text, *self.sizes, self.marks))
        found = [self._ids[word] for word in of_words]
        return sorted(found + [self._ngram_ids[ngram] for ngram in of_ngrams])

    def save(self, path: str | Path) -> None:
        """The words as `IndexTokenizer` saves them, and beside them the n-grams, one a line."""
        super().save(path)
        lines = "".join(f"{ngram}\n" for ngram in self.ngrams)
        Path(path).with_name(self.ngrams_file).write_text(lines, encoding="utf-8")

    @classmethod
    def load(
        cls, path: str | Path, most_words: int, most_characters: int, *, marks: bool = False
    ) -> "NgramTokenizer":
        """What `save` wrote."""
        vocabulary = IndexTokenizer.load(path, marks=marks).vocabulary

        def make(text: str) -> "NgramTokenizer":
            lines = text.split("\n")[:-1]
            return cls(vocabulary, lines, most_words, most_characters, marks=marks)

        return read_text(Path(path).with_name(cls.ngrams_file), make, "n-grams, one a line")
