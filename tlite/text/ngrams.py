"""Sequences of neighbouring words and characters, as features of a text beside its words."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from tlite.text.tokenizer import PADDING, pad, read_text
from tlite.text.words import IndexTokenizer, select_vocabulary, simplify, words

BETWEEN_WORDS = "\t"  # n-grams of characters have none


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
        frequencies = Counter()
        for text in texts:
            frequencies.update(set(ngrams(text, most_words, most_characters, marks)))
        chosen = [ngram for ngram, n in frequencies.items() if n >= min_document_frequency]
        chosen.sort(key=lambda ngram: (not is_of_words(ngram), -frequencies[ngram], ngram))
        vocabulary = select_vocabulary(texts, min_document_frequency, marks)
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
