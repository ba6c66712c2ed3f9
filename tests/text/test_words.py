"""Words: clean texts, a vocabulary by document frequency, ids and back; n-grams as features."""

import re
import unicodedata
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.errors import UserError
from tlite.text import (
    PADDING,
    IndexTokenizer,
    NgramTokenizer,
    select_vocabulary,
    sentences,
    simplify,
    words,
)
from tlite.text.word_tokenizers import is_of_words, ngrams

any_text = st.text(st.characters(exclude_categories=()))
plain_words = st.text("abc", min_size=1, max_size=3)  # few letters: many are the same
plain_texts = st.lists(st.lists(plain_words | st.just("!"), max_size=6).map(" ".join), max_size=8)
# Whatever stands on one line of a UTF-8 file may be a word of a vocabulary.
line = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda x: x.splitlines() == [x])
vocabularies = st.lists(line, unique=True, max_size=12)

# Simple texts


@given(any_text)
def test_a_simple_text_has_no_capitals_apostrophes_or_line_ends(text):
    simple = simplify(text)
    assert simplify(simple) == simple
    assert simple == simple.lower() == unicodedata.normalize("NFC", simple)
    assert not set(simple) & set("'’‘`´\u200d\n\r\u2028\u2029")


@given(st.text(st.sampled_from("aéÑçώЙё -1\u0301\u0308\u0327")))
def test_letters_of_scripts_with_accents_lose_them(text):
    assert not any(unicodedata.category(character) == "Mn" for character in simplify(text))


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("", ""),
        ("Café", "cafe"),
        ("Cafe\u0301", "cafe"),
        ("ÅNGSTRÖM, naïve Señor Çelik!", "angstrom, naive senor celik!"),
        ("\u212bngstrom", "angstrom"),  # the sign, not the letter
        ("İstanbul", "istanbul"),
        ("Tiếng Việt", "tieng viet"),
        ("first\nsecond\r\nthird", "first second  third"),
        ("first\u2028second\u2029third", "first second third"),
        ("zero\u200dwidth", "zerowidth"),
        ("sraße Øl", "sraße øl"),  # letters of their own, without a mark to drop
        ("漢字 и слова", "漢字 и слова"),
        ("ёлка", "елка"),
        ("हिन्दी", "हिन्दी"),
        ("ดีมาก", "ดีมาก"),
        ("ガール", "ガール"),
        ("love ❤\ufe0f", "love ❤"),
    ],
)
def test_texts_are_simplified(text, simple):
    assert simplify(text) == simple


@pytest.mark.parametrize("mark", "'`´ʹʻʼʽˈ‘’‚‛′＇\u1fef\u1ffd\u200d")  # Greek accents decompose
def test_an_apostrophe_of_any_kind_is_removed(mark):
    assert words(f"Don{mark}t") == [simplify(f"Don{mark}t")] == ["dont"]


# Words


@given(st.text(st.characters(max_codepoint=0x52F)))
def test_words_are_the_runs_of_two_or_more_letters_digits_and_underscores(text):
    spaced = "".join(c if c.isalnum() or c == "_" else " " for c in simplify(text))
    assert words(text) == [word for word in spaced.split() if len(word) > 1]


@given(any_text)
def test_words_with_marks_leave_out_nothing_but_white_space(text):
    pieces = words(text, marks=True)
    assert "".join(pieces) == "".join(simplify(text).split())
    of_one = re.compile(r"\w")
    assert [p for p in pieces if p in {*words(text)}] == words(text)
    assert all(len(of_one.findall(p)) < 2 for p in pieces if p not in {*words(text)})
    assert words(" ".join(pieces), marks=True) == pieces


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


# Sentences

prose = st.text(st.sampled_from("ab AB.!?,\n\r\t1"))


@given(prose | any_text)
def test_sentences_lose_only_white_space_and_cannot_be_cut_further(text):
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())
    for sentence in sentences(text):
        assert sentence.strip()
        assert not set(sentence) & set("\n\r")
        assert sentences(sentence) == [sentence]


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("Good. Bad! Why?", ["Good.", "Bad!", "Why?"]),
        ("No space.Between them", ["No space.", "Between them"]),
        ("It cost 3.50 at shop.com... really", ["It cost 3.50 at shop.com...", "really"]),
        ("one\ntwo\r\n\r\nthree", ["one", "two", "three"]),
    ],
)
def test_texts_are_cut_into_sentences(text, cut):
    assert sentences(text) == cut


# Vocabularies


@given(plain_texts, st.integers(1, 4))
def test_a_vocabulary_is_ordered_by_the_number_of_texts_then_by_alphabet(corpus, least):
    frequencies = Counter(word for text in corpus for word in set(words(text)))
    expected = sorted(word for word, count in frequencies.items() if count >= least)
    expected.sort(key=lambda word: frequencies[word], reverse=True)  # keeps the alphabet in ties
    assert select_vocabulary(corpus, least) == expected


@given(st.lists(any_text, max_size=6), st.booleans())
def test_every_vocabulary_that_is_selected_can_be_a_tokenizers(corpus, marks):
    vocabulary = select_vocabulary(corpus, marks=marks)
    tokenizer = IndexTokenizer(vocabulary, marks=marks)
    assert len(tokenizer) == len(vocabulary) + 1
    assert not (tokenizer.encode_texts(corpus) == tokenizer.unknown_id).any()


@pytest.mark.parametrize("frequency", [0, -1])
def test_a_frequency_below_1_is_refused(frequency):
    with pytest.raises(ValueError, match=f"at least 1, not {frequency}"):
        select_vocabulary(["aa"], frequency)


# Ids


def test_the_unknown_word_is_added_in_front_or_keeps_its_place():
    assert IndexTokenizer(["aa"]).vocabulary == ["[UNK]", "aa"]
    tokenizer = IndexTokenizer(["aa", "[UNK]", "bb"])
    assert (len(tokenizer), tokenizer.unknown_id) == (3, 1)
    assert tokenizer.encode("bb cc aa").tolist() == [2, 1, 0]
    other = IndexTokenizer(["aa", "[UNK]"], unknown="?")
    assert other.vocabulary == ["?", "aa", "[UNK]"]
    assert other.decode(other.encode("cc")) == "?"


@given(st.lists(plain_words))
def test_decoding_gives_known_words_back(some):
    tokenizer = IndexTokenizer(sorted({*some}), marks=True)
    text = " ".join(some)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert [tokenizer.piece_of(index) for index in tokenizer.encode(text)] == some


def test_a_text_is_encoded_word_by_word():
    tokenizer = IndexTokenizer(["the", "cat", "sat"])
    ids = tokenizer.encode("The cat sat, too.")
    assert ids.dtype == np.int32
    assert ids.tolist() == [1, 2, 3, 0]
    assert tokenizer.encode("").shape == (0,)


@given(plain_texts, st.none() | st.integers(0, 4), st.booleans())
def test_texts_become_the_ids_of_their_words_filled_up_with_padding(texts, max_length, marks):
    tokenizer = IndexTokenizer(select_vocabulary(texts, 2, marks), marks=marks)
    encoded = tokenizer.encode_texts(iter(texts), max_length)
    ids = {word: index for index, word in enumerate(tokenizer.vocabulary)}
    rows = [[ids.get(word, ids["[UNK]"]) for word in words(text, marks)] for text in texts]
    width = max(map(len, rows), default=0) if max_length is None else max_length
    assert encoded.shape == (len(texts), width)
    for row, ids, text in zip(rows, encoded.tolist(), texts, strict=True):
        assert ids == (row + [PADDING] * width)[:width]
        assert tokenizer.pieces(text) == words(text, marks)


@pytest.mark.parametrize(
    ("vocabulary", "says"),
    [(["aa", "bb", "aa"], "'aa' is in the vocabulary more than once")]
    + [(["bb", word], "can't be a word") for word in ("", "aa\n", "\r", "a\u2028a", "a\x85")],
)
def test_a_word_that_is_there_twice_or_is_no_line_is_refused(vocabulary, says):
    with pytest.raises(ValueError, match=says):
        IndexTokenizer(vocabulary)


# Files


@given(vocabularies)
def test_a_saved_tokenizer_comes_back_from_one_word_a_line(tmp_path_factory, vocabulary):
    path = tmp_path_factory.getbasetemp() / "vocabulary.txt"
    tokenizer = IndexTokenizer(vocabulary)
    tokenizer.save(path)
    lines = path.read_bytes().decode().split("\n")
    assert lines == [*tokenizer.vocabulary, ""]
    loaded = IndexTokenizer.load(path, marks=True)
    assert loaded.pieces("a!") == ["a", "!"]
    loaded = IndexTokenizer.load(path)
    assert loaded.vocabulary == tokenizer.vocabulary


def test_a_list_of_words_without_a_last_line_end_or_unknown_word_is_a_vocabulary(tmp_path):
    path = tmp_path / "vocabulary.txt"
    for content in (b"aa\nbb", b"aa\nbb\n", b"aa\r\nbb\r\n"):
        path.write_bytes(content)
        assert IndexTokenizer.load(path).vocabulary == ["[UNK]", "aa", "bb"]


@pytest.mark.parametrize(
    "content", [b"aa\nbb\naa\n", b"aa\n\nbb\n", b"\n", b"\xff\xfe", b"a\x0bb\n"]
)
def test_a_missing_or_broken_file_is_a_user_error_that_names_it(tmp_path, content):
    path = tmp_path / "vocabulary.txt"
    with pytest.raises(UserError, match="No such file"):
        IndexTokenizer.load(path)
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path} is not a vocabulary"):
        IndexTokenizer.load(path)


# N-grams

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


@pytest.mark.parametrize("marks", [False, True])
def test_tokens_are_those_without_ngrams_and_features_follow(marks):
    tokenizer = learned(marks=marks)
    plain = IndexTokenizer(tokenizer.vocabulary, marks=marks)
    encoded = tokenizer.encode_texts(TEXTS, 5)
    np.testing.assert_array_equal(encoded[:, :5], plain.encode_texts(TEXTS, 5))
    for text, row in zip(TEXTS, encoded[:, 5:], strict=True):
        found = row[row >= 0].tolist()
        of_words = [tokenizer.vocabulary[i] for i in found if i < len(tokenizer)]
        of_ngrams = [tokenizer.ngrams[i - len(tokenizer)] for i in found if i >= len(tokenizer)]
        assert sorted(of_words) == sorted(set(plain.pieces(text)))
        assert sorted(of_ngrams) == sorted(set(ngrams(text, 3, 4, marks)))


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
