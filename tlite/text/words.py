"""Words: cleaning a text, choosing a vocabulary, and a tokenizer with one token for each word."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tlite.text.tokenizer import Tokenizer, pad, read_text

WORD = re.compile(r"\w\w+\b")
WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")
# A capital may follow at once: reviews often lack the space.
SENTENCE_END = re.compile(r"(?<=[.!?])(?:\s+|(?=[A-Z]))|[\n\r\u2028\u2029]+")
_APOSTROPHES = "'`´ʹʻʼʽˈ‘’‚‛′\N{FULLWIDTH APOSTROPHE}\N{ZERO WIDTH JOINER}"
_REPLACED = dict.fromkeys(map(ord, _APOSTROPHES)) | dict.fromkeys(map(ord, "\n\r\u2028\u2029"), " ")


def simplify(text: str) -> str:
    """Lower case; no accents, apostrophes, zero-width joiners or line ends.

    Canonical decomposition (NFD) splits letters from their marks, which are dropped: "Café" is
    "cafe" and "Don’t" is "dont". A line end becomes a space.
    """
    text = text.lower().translate(_REPLACED)
    if text.isascii():
        return text
    letters = (c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
    return unicodedata.normalize("NFC", "".join(letters)).translate(_REPLACED)  # Hangul again


def words(text: str, marks: bool = False) -> list[str]:
    r"""The words of the simplified text: `\w\w+\b`, two or more letters, digits or underscores.

    With `marks`, words of one letter and each punctuation mark too: `\w+|[^\w\s]`.
    """
    return (WORD_OR_MARK if marks else WORD).findall(simplify(text))


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
    frequencies = Counter()
    for text in corpus:
        frequencies.update(set(words(text, marks)))
    chosen = [word for word, count in frequencies.items() if count >= min_document_frequency]
    return sorted(chosen, key=lambda word: (-frequencies[word], word))


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

    def encode(
        self,
        tokens: str | Sequence[str] | Sequence[Sequence[str]],
        max_length: int | None = None,
        pad_id: int | None = None,
    ) -> int | np.ndarray:
        """The id of one word; the ids (T,) of a sequence of words; those (B, T) of a batch.

        Sequences are cut to `max_length`. A batch is filled up with `pad_id`, by default that of
        the unknown word, to `max_length` or its longest sequence.
        """
        if isinstance(tokens, str):
            return self._ids.get(tokens, self.unknown_id)
        if not len(tokens) or isinstance(tokens[0], str):
            get, unknown = self._ids.get, self.unknown_id
            return np.array([get(word, unknown) for word in tokens[:max_length]], np.int32)
        rows = [self.encode(row, max_length) for row in tokens]
        return pad(rows, max_length, self.unknown_id if pad_id is None else pad_id)

    def encode_ids(self, texts: Iterable[str]) -> list[np.ndarray]:
        """The ids of each text's words, as many as there are."""
        return [self.encode(self.words(text)) for text in texts]

    def decode(self, tokens):
        """The inverse of `encode`: a word, a list of words, or a list of lists.

        Padding (ids below 0) is left out.
        """
        tokens = np.asarray(tokens)
        if tokens.ndim == 0:
            return self.vocabulary[int(tokens)] if tokens >= 0 else ""
        if tokens.ndim == 1:
            return [self.vocabulary[t] for t in tokens.tolist() if t >= 0]
        return [self.decode(row) for row in tokens]

    def piece_of(self, index: int | np.integer) -> str:
        return self.vocabulary[int(index)]

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
