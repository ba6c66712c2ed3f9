"""Words: normalisation, vocabularies by document frequency, round trips, and n-grams."""

import re
import unicodedata
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.text import (
    PADDING,
    IndexTokenizer,
    NgramTokenizer,
    pad,
    select_vocabulary,
    sentences,
    simplify,
    words,
)
from tlite.text.word_tokenizers import is_word_ngram, ngrams

any_text = st.text(st.characters(exclude_categories=()))
plain_words = st.text("abc", min_size=1, max_size=3)  # few letters, so that words repeat
plain_texts = st.lists(st.lists(plain_words | st.just("!"), max_size=6).map(" ".join), max_size=8)


@given(any_text)
def test_simplified_text_is_lower_case_without_apostrophes(text):
    simple = simplify(text)
    assert simplify(simple) == simple
    assert simple == simple.lower() == unicodedata.normalize("NFC", simple)
    assert not set(simple) & set("'’‘`´\u200d\n\r\u2028\u2029")


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("", ""),
        ("Café", "cafe"),
        ("Cafe\u0301 ώЙё", "cafe ωие"),
        ("ÅNGSTRÖM, naïve Señor Çelik!", "angstrom, naive senor celik!"),
        ("\u212bngstrom", "angstrom"),  # the sign, not the letter
        ("İstanbul", "istanbul"),
        ("Tiếng Việt", "tieng viet"),
        ("first\nsecond\r\nthird", "first second  third"),
        ("zero\u200dwidth", "zerowidth"),
        ("sraße Øl", "sraße øl"),  # these letters have no accent to remove
        ("漢字 и слова", "漢字 и слова"),
        ("ёлка", "елка"),
        ("हिन्दी", "हिन्दी"),
        ("ดีมาก", "ดีมาก"),
        ("love ❤\ufe0f", "love ❤"),
    ],
)
def test_texts_are_simplified(text, simple):
    assert simplify(text) == simple


@pytest.mark.parametrize("mark", "'`´ʹʻʼʽˈ‘’‚‛′＇\u1fef\u1ffd\u200d")  # Greek accents decompose
def test_apostrophes_are_removed(mark):
    assert words(f"Don{mark}t") == [simplify(f"Don{mark}t")] == ["dont"]


@given(any_text)
def test_words_with_marks_omit_only_white_space(text):
    tokens, plain_words = words(text, marks=True), words(text)
    assert "".join(tokens) == "".join(simplify(text).split())
    assert [token for token in tokens if token in plain_words] == plain_words
    marks = [token for token in tokens if token not in plain_words]
    assert all(len(re.findall(r"\w", mark)) < 2 for mark in marks)
    assert words(" ".join(tokens), marks=True) == tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("हिन्दी में अच्छी किताब", ["हिन्दी", "अच्छी", "किताब"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("كتاب جيد", ["كتاب", "جيد"]),
        ("한국어 책", ["한국어"]),
        ("我喜欢。这部", [*"我喜欢这部"]),
        ("がんばれ", [*"がんばれ"]),
        ("ดีมาก", ["ดี", "ม", "า", "ก"]),
        ("GPT 模型 v2", ["gpt", "模", "型", "v2"]),
    ],
)
def test_words_of_scripts_other_than_latin(text, expected):
    assert words(text) == [unicodedata.normalize("NFC", word) for word in expected]


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("Good. Bad! Why?", ["Good.", "Bad!", "Why?"]),
        ("No space.Between them", ["No space.", "Between them"]),
        ("It cost 3.50 at shop.com... really", ["It cost 3.50 at shop.com...", "really"]),
        ("one\ntwo\r\n\r\nthree", ["one", "two", "three"]),
    ],
)
def test_texts_are_split_into_sentences(text, cut):
    assert sentences(text) == cut


@given(plain_texts, st.integers(1, 4))
def test_vocabulary_is_sorted_by_frequency_then_alphabet(corpus, least):
    frequencies = Counter(word for text in corpus for word in set(words(text)))
    expected = sorted(word for word, count in frequencies.items() if count >= least)
    expected.sort(key=lambda word: frequencies[word], reverse=True)  # ties stay in order
    assert select_vocabulary(corpus, least) == expected
    with pytest.raises(ValueError, match="at least 1, not 0"):
        select_vocabulary(corpus, 0)


def test_unknown_word_is_prepended_or_keeps_its_index():
    assert IndexTokenizer(["aa"]).vocabulary == ["[UNK]", "aa"]
    tokenizer = IndexTokenizer(["aa", "[UNK]", "bb"])
    assert (len(tokenizer), tokenizer.unknown_id) == (3, 1)
    assert tokenizer.encode("bb cc aa").tolist() == [2, 1, 0]
    assert tokenizer.decode([2, 1, 0]) == "bb [UNK] aa"
    assert tokenizer.id_to_token(2) == "bb"


@given(plain_texts, st.none() | st.integers(0, 4), st.booleans())
def test_texts_become_padded_ids_of_their_words(texts, max_length, marks):
    tokenizer = IndexTokenizer(select_vocabulary(texts, 2, marks), marks=marks)
    ids = {word: index for index, word in enumerate(tokenizer.vocabulary)}
    rows = [[ids.get(word, ids["[UNK]"]) for word in words(text, marks)] for text in texts]
    encoded = tokenizer.encode_texts(iter(texts), max_length)
    np.testing.assert_array_equal(encoded, pad(rows, max_length, PADDING))
    assert [tokenizer.tokenize(text) for text in texts] == [words(text, marks) for text in texts]


def test_a_repeated_word_is_an_error():
    with pytest.raises(ValueError, match="'aa' is in the vocabulary more than once"):
        IndexTokenizer(["aa", "bb", "aa"])


TEXTS = ["Not good.\x0bNot at all", "good, very good", "Café!  not\n\u2028bad", "at # noon", ""]


def learn(least=1, words=3, characters=4, marks=False):
    return NgramTokenizer.learn(TEXTS, least, words, characters, marks)


def test_ngrams_equal_those_by_hand():
    assert ngrams("Is it so?", 3, 0) == ["is\tit", "it\tso", "is\tit\tso"]
    assert ngrams("so?", 2, 0, marks=True) == ["so\t?"]
    assert ngrams("A  b", 0, 3) == [" a", "a ", " b", "b ", " a ", "a b", " b "]
    assert ngrams("anything", 1, 1) == []


@pytest.mark.parametrize("marks", [False, True])
def test_features_follow_the_tokens(marks):
    tokenizer = learn(marks=marks)
    plain = IndexTokenizer(tokenizer.vocabulary, marks=marks)
    encoded = tokenizer.encode_texts(TEXTS, 5)
    np.testing.assert_array_equal(encoded[:, :5], plain.encode_texts(TEXTS, 5))
    for text, row in zip(TEXTS, encoded[:, 5:], strict=True):
        names = [*tokenizer.vocabulary, *tokenizer.ngrams]
        features = sorted(names[index] for index in row if index >= 0)
        assert features == sorted([*{*plain.tokenize(text)}, *{*ngrams(text, 3, 4, marks)}])


def test_text_of_unknown_words_has_no_features():
    tokenizer = NgramTokenizer.learn(["ab ab", "ab"], 1, 2, 0)
    assert tokenizer.encode_texts(["xyz"], 2).tolist() == [[tokenizer.unknown_id, PADDING, PADDING]]
    assert tokenizer.encode_texts([], 2).shape == (0, 3)
    assert tokenizer.encode_texts(["ab"]).tolist() == [[1]]  # without a length words alone


@pytest.mark.parametrize("least", [1, 2, 3])
def test_frequent_ngrams_are_learned_in_order(least):
    counts = Counter(ngram for text in TEXTS for ngram in {*ngrams(text, 3, 4)})
    learned = learn(least).ngrams
    assert {*learned} == {ngram for ngram, count in counts.items() if count >= least}
    order = [(is_word_ngram(ngram), counts[ngram]) for ngram in learned]
    assert order == sorted(order, reverse=True)
