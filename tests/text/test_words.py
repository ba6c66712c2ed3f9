"""Words: clean texts, a vocabulary by document frequency, ids and back."""

import unicodedata
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.errors import UserError
from tlite.text import PADDING, IndexTokenizer, select_vocabulary, sentences, simplify, words

any_text = st.text(st.characters(exclude_categories=()))
ascii_text = st.text(st.characters(codec="ascii"))
plain_words = st.text("abc", min_size=1, max_size=3)  # few letters: many are the same
plain_texts = st.lists(st.lists(plain_words | st.just("!"), max_size=6).map(" ".join), max_size=8)
# Whatever stands on one line of a UTF-8 file may be a word of a vocabulary.
line = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda x: x.splitlines() == [x])
vocabularies = st.lists(line, unique=True, max_size=12)

# Simple texts


@given(any_text)
def test_a_simple_text_stays_as_it_is(text):
    assert simplify(simplify(text)) == simplify(text)


@given(any_text)
def test_a_simple_text_has_no_capitals_marks_apostrophes_or_line_ends(text):
    simple = simplify(text)
    assert simple == simple.lower() == unicodedata.normalize("NFC", simple)
    assert not set(simple) & set("'’‘`´\u200d\n\r\u2028\u2029")
    assert not any(unicodedata.category(character) == "Mn" for character in simple)


@given(ascii_text)
def test_plain_ascii_is_only_made_lower_case_without_apostrophes_and_line_ends(text):
    expected = text.lower().replace("'", "").replace("`", "")
    assert simplify(text) == expected.replace("\n", " ").replace("\r", " ")


@given(st.text(st.sampled_from("aeouAEOUnc'’ \n\u0301\u0308\u0327éÖüÇÅñ")))
def test_composed_and_decomposed_letters_are_simplified_alike(text):
    forms = {simplify(unicodedata.normalize(form, text)) for form in ("NFC", "NFD")}
    assert forms == {simplify(text)}


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
    ],
)
def test_texts_are_simplified(text, simple):
    assert simplify(text) == simple


APOSTROPHES = [
    "APOSTROPHE",
    "GRAVE ACCENT",
    "ACUTE ACCENT",
    "LEFT SINGLE QUOTATION MARK",
    "RIGHT SINGLE QUOTATION MARK",
    "SINGLE LOW-9 QUOTATION MARK",
    "SINGLE HIGH-REVERSED-9 QUOTATION MARK",
    "MODIFIER LETTER APOSTROPHE",
    "MODIFIER LETTER TURNED COMMA",
    "MODIFIER LETTER REVERSED COMMA",
    "MODIFIER LETTER PRIME",
    "MODIFIER LETTER VERTICAL LINE",
    "PRIME",
    "FULLWIDTH APOSTROPHE",
    "GREEK VARIA",  # decomposes to a grave accent
    "GREEK OXIA",
    "ZERO WIDTH JOINER",
]


@pytest.mark.parametrize("name", APOSTROPHES)
def test_an_apostrophe_of_any_kind_is_removed(name):
    text = f"Don{unicodedata.lookup(name)}t"
    assert simplify(text) == "dont"
    assert words(text) == ["dont"]


# Words


@given(any_text)
def test_words_are_the_runs_of_two_or_more_letters_digits_and_underscores(text):
    spaced = "".join(c if c.isalnum() or c == "_" else " " for c in simplify(text))
    assert words(text) == [word for word in spaced.split() if len(word) > 1]


@given(any_text)
def test_words_joined_by_spaces_have_the_same_words(text):
    assert words(" ".join(words(text))) == words(text)


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("This coffee from Kenya is really good.", "this coffee from kenya is really good"),
        ("I don't like it - not a bit!", "dont like it not bit"),
        ("5 stars, 10/10; snake_case", "stars 10 10 snake_case"),
        ("good.Bad", "good bad"),
        (" \n.!? a ", ""),
    ],
)
def test_texts_have_the_words(text, joined):
    assert " ".join(words(text)) == joined


@given(any_text)
def test_words_with_marks_leave_out_nothing_but_white_space(text):
    pieces = words(text, marks=True)
    assert "".join(pieces) == "".join(simplify(text).split())
    assert [piece for piece in pieces if len(piece) > 1] == words(text)
    assert words(" ".join(pieces), marks=True) == pieces


def test_every_mark_and_every_word_of_one_letter_is_a_piece_with_marks():
    assert " ".join(words("I don't: 5/10!! :)", marks=True)) == "i dont : 5 / 10 ! ! : )"


# Sentences

prose = st.text(st.sampled_from("ab AB.!?,\n\r\t1"))


@given(prose | any_text)
def test_sentences_lose_nothing_but_white_space(text):
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


@given(prose | any_text)
def test_sentences_are_not_blank_have_no_line_end_and_cannot_be_cut_further(text):
    for sentence in sentences(text):
        assert sentence.strip()
        assert not set(sentence) & set("\n\r")
        assert sentences(sentence) == [sentence]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n ", []),
        ("No end", ["No end"]),
        ("Good. Bad! Why?", ["Good.", "Bad!", "Why?"]),
        ("No space.Between them", ["No space.", "Between them"]),
        ("Three... dots", ["Three...", "dots"]),
        ("It cost 3.50 at shop.com, really", ["It cost 3.50 at shop.com, really"]),
        ("one\ntwo\r\n\r\nthree", ["one", "two", "three"]),
    ],
)
def test_texts_are_cut_into_sentences(text, expected):
    assert sentences(text) == expected


# Vocabularies


@given(plain_texts, st.integers(1, 4))
def test_a_vocabulary_is_ordered_by_the_number_of_texts_then_by_alphabet(corpus, least):
    frequencies = Counter(word for text in corpus for word in set(words(text)))
    expected = sorted(word for word, count in frequencies.items() if count >= least)
    expected.sort(key=lambda word: frequencies[word], reverse=True)  # keeps the alphabet in ties
    assert select_vocabulary(corpus, least) == expected


@given(plain_texts, st.randoms())
def test_a_vocabulary_does_not_depend_on_the_order_of_texts_or_words(corpus, random):
    texts = [" ".join(random.sample(text.split(), len(text.split()))) for text in corpus]
    random.shuffle(texts)
    assert select_vocabulary(iter(texts), 2) == select_vocabulary(corpus, 2)


def test_a_word_counts_once_a_text():
    corpus = ["aa bb bb bb", "cc Aa", "cc CC áa"]
    assert select_vocabulary(corpus) == ["aa", "cc", "bb"]
    assert select_vocabulary(corpus, min_document_frequency=2) == ["aa", "cc"]
    assert select_vocabulary(corpus, 4) == select_vocabulary([]) == []


@given(st.lists(any_text, max_size=6), st.booleans())
def test_every_vocabulary_that_is_selected_can_be_a_tokenizers(corpus, marks):
    vocabulary = select_vocabulary(corpus, marks=marks)
    tokenizer = IndexTokenizer(vocabulary, marks=marks)
    assert len(tokenizer) == len(vocabulary) + 1
    assert not (tokenizer.encode_texts(corpus) == tokenizer.unknown_id).any()


def test_marks_and_words_of_one_letter_are_selected_where_they_are_asked_for():
    corpus = ["aa! b", "cc!! aa", "!"]
    assert select_vocabulary(corpus) == ["aa", "cc"]
    assert select_vocabulary(corpus, marks=True) == ["!", "aa", "b", "cc"]


@pytest.mark.parametrize("frequency", [0, -1])
def test_a_frequency_below_1_is_refused(frequency):
    with pytest.raises(ValueError, match=f"at least 1, not {frequency}"):
        select_vocabulary(["aa"], frequency)


# Ids


@given(vocabularies)
def test_the_unknown_word_is_added_in_front_unless_it_is_there(vocabulary):
    tokenizer = IndexTokenizer(vocabulary)
    expected = vocabulary if "[UNK]" in vocabulary else ["[UNK]", *vocabulary]
    assert tokenizer.vocabulary == expected
    assert len(tokenizer) == len(expected)
    again = IndexTokenizer(tokenizer.vocabulary)
    assert (again.vocabulary, again.unknown_id) == (expected, tokenizer.unknown_id)


def test_an_unknown_word_in_the_vocabulary_keeps_its_place():
    tokenizer = IndexTokenizer(["aa", "[UNK]", "bb"])
    assert (len(tokenizer), tokenizer.unknown_id) == (3, 1)
    assert tokenizer.encode(["bb", "cc", "aa"]).tolist() == [2, 1, 0]
    other = IndexTokenizer(["aa", "[UNK]"], unknown="?")
    assert other.vocabulary == ["?", "aa", "[UNK]"]
    assert other.decode(other.encode("cc")) == "?"


@given(vocabularies, st.data())
def test_decoding_gives_known_words_back(vocabulary, data):
    tokenizer = IndexTokenizer(vocabulary)
    assert [tokenizer.encode(word) for word in tokenizer.vocabulary] == list(range(len(tokenizer)))
    known = st.sampled_from(tokenizer.vocabulary)
    word, sequence = data.draw(known), data.draw(st.lists(known, max_size=5))
    batch = data.draw(st.lists(st.lists(known, max_size=5), min_size=1, max_size=4))
    assert tokenizer.decode(tokenizer.encode(word)) == word
    assert tokenizer.decode(tokenizer.encode(sequence)) == sequence
    assert tokenizer.decode(tokenizer.encode(batch, pad_id=PADDING)) == batch
    assert tokenizer.decode(tokenizer.encode(batch, max_length=9, pad_id=PADDING)) == batch


@given(st.lists(plain_words, unique=True), st.lists(plain_words))
def test_words_that_are_not_in_the_vocabulary_become_the_unknown_word(vocabulary, sequence):
    tokenizer = IndexTokenizer(vocabulary)
    expected = [word if word in vocabulary else "[UNK]" for word in sequence]
    assert tokenizer.decode(tokenizer.encode(sequence)) == expected
    assert [tokenizer.encode(word) for word in sequence] == tokenizer.encode(sequence).tolist()


@given(
    st.lists(st.lists(plain_words, max_size=5), min_size=1, max_size=4),
    st.none() | st.integers(0, 7),
    st.sampled_from([None, PADDING, 2]),
)
def test_a_batch_is_its_sequences_cut_and_filled_up(batch, max_length, pad_id):
    tokenizer = IndexTokenizer(["a", "b", "[UNK]", "ab"])
    width = max(map(len, batch)) if max_length is None else max_length
    encoded = tokenizer.encode(batch, max_length, pad_id)
    assert encoded.shape == (len(batch), width)
    assert encoded.dtype == np.int32
    padding = [tokenizer.unknown_id if pad_id is None else pad_id] * width
    for sequence, row in zip(batch, encoded.tolist(), strict=True):
        alone = tokenizer.encode(sequence, max_length)
        assert alone.dtype == np.int32
        assert alone.tolist() == tokenizer.encode(sequence).tolist()[:max_length]
        assert row == (alone.tolist() + padding)[:width]


def test_tuples_are_sequences_and_batches_too():
    tokenizer = IndexTokenizer(("aa", "bb"))
    assert tokenizer.encode(("bb", "aa")).tolist() == [2, 1]
    assert tokenizer.encode((("bb", "aa"), ("aa",))).tolist() == [[2, 1], [1, 0]]


def test_no_words_have_no_ids():
    tokenizer = IndexTokenizer(["aa"])
    assert tokenizer.encode([]).shape == (0,)
    assert tokenizer.encode([[]]).shape == (1, 0)
    assert tokenizer.decode([]) == []
    assert tokenizer.decode([[], []]) == [[], []]


def test_padding_is_no_word_wherever_it_stands():
    tokenizer = IndexTokenizer(["aa", "bb"])
    assert tokenizer.decode([PADDING, 1, -7, 2]) == ["aa", "bb"]
    assert tokenizer.decode([[1, PADDING], [PADDING, PADDING]]) == [["aa"], []]


def test_padding_alone_is_no_word():
    tokenizer = IndexTokenizer(["aa", "bb"])
    assert tokenizer.decode(PADDING) not in tokenizer.vocabulary


@given(plain_texts, st.none() | st.integers(0, 4), st.booleans())
def test_texts_become_the_ids_of_their_words_filled_up_with_padding(texts, max_length, marks):
    tokenizer = IndexTokenizer(select_vocabulary(texts, 2, marks), marks=marks)
    encoded = tokenizer.encode_texts(iter(texts), max_length)
    rows = [[tokenizer.encode(word) for word in words(text, marks)] for text in texts]
    width = max(map(len, rows), default=0) if max_length is None else max_length
    assert encoded.shape == (len(texts), width)
    for row, ids, text in zip(rows, encoded.tolist(), texts, strict=True):
        assert ids == (row + [PADDING] * width)[:width]
        assert tokenizer.pieces(text) == words(text, marks)


def test_texts_can_be_filled_up_with_another_id():
    tokenizer = IndexTokenizer(["good", "bad"])
    encoded = tokenizer.encode_texts(["Good, bad.", "", "so-so"], 3, tokenizer.unknown_id)
    assert encoded.tolist() == [[1, 2, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("vocabulary", [["aa", "bb", "aa"], ["[UNK]", "[UNK]"]])
def test_a_word_that_is_there_twice_is_refused_by_name(vocabulary):
    with pytest.raises(
        ValueError, match=rf"'{vocabulary[0]}'.* more than once".replace("[", r"\[")
    ):
        IndexTokenizer(vocabulary)


@pytest.mark.parametrize("word", ["", "aa\n", "a\na", "\r", "a\u2028a", "a\x85", "\x1c"])
def test_a_word_that_cannot_be_a_line_is_refused(word):
    with pytest.raises(ValueError, match="can't be a word"):
        IndexTokenizer(["bb", word])


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
    assert loaded.pieces("aa!") == ["aa"]
    assert loaded.vocabulary == tokenizer.vocabulary
    assert loaded.encode(vocabulary).tolist() == tokenizer.encode(vocabulary).tolist()


@pytest.mark.parametrize("vocabulary", [["aa", "bb"], ["aa", "?", "bb"], ["aa", "[UNK]"]])
def test_a_saved_tokenizer_with_another_unknown_word_comes_back(tmp_path, vocabulary):
    tokenizer = IndexTokenizer(vocabulary, unknown="?")
    tokenizer.save(tmp_path / "vocabulary.txt")
    loaded = IndexTokenizer.load(tmp_path / "vocabulary.txt", unknown="?")
    assert (loaded.vocabulary, loaded.unknown_id) == (tokenizer.vocabulary, tokenizer.unknown_id)


def test_a_list_of_words_without_a_last_line_end_or_unknown_word_is_a_vocabulary(tmp_path):
    path = tmp_path / "vocabulary.txt"
    for content in (b"aa\nbb", b"aa\nbb\n", b"aa\r\nbb\r\n"):
        path.write_bytes(content)
        assert IndexTokenizer.load(path).vocabulary == ["[UNK]", "aa", "bb"]


@pytest.mark.parametrize(
    "content", [b"aa\nbb\naa\n", b"aa\n\nbb\n", b"\n", b"\xff\xfe", b"a\x0bb\n"]
)
def test_a_broken_file_is_a_user_error_that_names_it(tmp_path, content):
    path = tmp_path / "vocabulary.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path} is not a vocabulary"):
        IndexTokenizer.load(path)


def test_a_missing_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="missing"):
        IndexTokenizer.load(tmp_path / "missing.txt")
