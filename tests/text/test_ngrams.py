"""N-grams: those of a text by hand, and a tokenizer whose features are what is in the text."""

import numpy as np
import pytest

from tlite.errors import UserError
from tlite.text import PADDING, IndexTokenizer
from tlite.text.ngrams import NgramTokenizer, is_of_words, ngrams

TEXTS = ["Not good.\x0bNot at all", "good, very good", "Café!  not\n\u2028bad", "at # noon", ""]


def learned(least=1, words=3, characters=4, marks=False):
    return NgramTokenizer.learn(TEXTS, least, words, characters, marks)


def test_the_ngrams_of_a_text_by_hand():
    assert ngrams("Is it so?", 3, 0) == ["is\tit", "it\tso", "is\tit\tso"]
    assert ngrams("so?", 2, 0, marks=True) == ["so\t?"]
    assert ngrams("A  b", 0, 3) == [" a", "a ", " b", "b ", " a ", "a b", " b "]
    assert ngrams("anything", 1, 1) == []


def test_words_and_characters_are_never_the_same_ngram():
    both = ngrams("# ab # ab", 2, 0, marks=True), ngrams("# ab # ab", 0, 9)
    assert not set(both[0]) & set(both[1])


def test_tokens_are_those_without_ngrams_and_features_follow():
    tokenizer = learned()
    plain = IndexTokenizer(tokenizer.vocabulary)
    encoded = tokenizer.encode_texts(TEXTS, 5)
    np.testing.assert_array_equal(encoded[:, :5], plain.encode_texts(TEXTS, 5))
    for text, row in zip(TEXTS, encoded[:, 5:], strict=True):
        found = row[row >= 0].tolist()
        of_words = [tokenizer.vocabulary[i] for i in found if i < len(tokenizer)]
        of_ngrams = [tokenizer.ngrams[i - len(tokenizer)] for i in found if i >= len(tokenizer)]
        assert sorted(of_words) == sorted(set(plain.pieces(text)))
        assert sorted(of_ngrams) == sorted(set(ngrams(text, 3, 4)))


def test_a_text_of_unknown_words_has_room_for_features_and_none_of_them():
    tokenizer = NgramTokenizer.learn(["ab ab", "ab"], 1, 2, 0)
    assert tokenizer.encode_texts(["xyz"], 2).tolist() == [[tokenizer.unknown_id, PADDING, PADDING]]
    assert tokenizer.encode_texts([], 2).shape == (0, 3)
    assert tokenizer.encode_texts(["ab"]).tolist() == [[1]]  # without a length words alone


@pytest.mark.parametrize("least", [1, 2, 3])
def test_the_ngrams_of_so_many_texts_are_kept_the_frequent_first(least):
    kept = learned(least).ngrams
    counts = [sum(ngram in set(ngrams(text, 3, 4)) for text in TEXTS) for ngram in kept]
    assert min(counts) >= least
    places = list(zip(map(is_of_words, kept), counts, strict=True))
    assert places == sorted(places, reverse=True)
    every = {ngram for text in TEXTS for ngram in ngrams(text, 3, 4)}
    rare = every - set(kept)
    assert all(sum(r in set(ngrams(t, 3, 4)) for t in TEXTS) < least for r in rare)


@pytest.mark.parametrize("marks", [False, True])
def test_what_is_saved_comes_back(tmp_path, marks):
    tokenizer = learned(marks=marks)
    path = tmp_path / NgramTokenizer.file_name
    tokenizer.save(path)
    again = NgramTokenizer.load(path, 3, 4, marks=marks)
    assert again.ngrams == tokenizer.ngrams
    np.testing.assert_array_equal(again.encode_texts(TEXTS, 4), tokenizer.encode_texts(TEXTS, 4))


@pytest.mark.parametrize("content", [None, b"ab\nab\n", b"\xff\n"])
def test_a_file_without_its_ngrams_is_told(tmp_path, content):
    path = tmp_path / NgramTokenizer.file_name
    learned().save(path)
    file = tmp_path / NgramTokenizer.ngrams_file
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(UserError, match=NgramTokenizer.ngrams_file):
        NgramTokenizer.load(path, 3, 4)
