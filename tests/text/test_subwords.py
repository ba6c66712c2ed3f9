"""Subwords: learned pieces, ids and back."""

import unicodedata

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from tlite.text import PADDING, SubwordTokenizer

TEXTS = [
    "The lower the tower, the wider the view; the widest tower is the lowest.",
    "She sells sea shells, 10 for 3 coins: cheap!",
    "Un café à Genève? Oui, un grand café.",
] * 3
SPECIALS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
KNOWN = "".join(sorted(set("".join(TEXTS).lower())))
BPE = SubwordTokenizer.train(TEXTS, 90, specials=SPECIALS)


def wordpiece():
    """As earlier versions have learned it: "##" before what goes on with a word."""
    letters = sorted(set(KNOWN) - {" "})
    pieces = [*SPECIALS, *letters, *("##" + letter for letter in letters), "the", "##ow", "##ower"]
    content = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    content.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    content.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    content.decoder = decoders.WordPiece()
    content.add_special_tokens(list(SPECIALS))
    return SubwordTokenizer(content)


WORDPIECE = wordpiece()
each_tokenizer = pytest.mark.parametrize("tokenizer", [BPE, WORDPIECE], ids=["bpe", "wordpiece"])
known_text = st.text(KNOWN, max_size=20) | st.sampled_from(TEXTS)
any_text = st.text(st.characters(codec="utf-8"), max_size=20)

# There and back


@given(known_text)
@example("  two spaces")
def test_bpe_gives_text_of_known_characters_back_in_lower_case(text):
    assert BPE.decode(BPE.encode(text)) == text.lower().lstrip(" ")


@given(st.text(KNOWN.upper() + KNOWN, max_size=20).filter(lambda text: not text.startswith(" ")))
def test_capitals_stay_where_they_are_asked_for(text):
    tokenizer = SubwordTokenizer.train([KNOWN, KNOWN.upper()], vocabulary_size=100, lowercase=False)
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


@given(st.lists(st.sampled_from(" ".join(TEXTS).split()), min_size=1).map(" ".join))
def test_wordpiece_gives_the_letters_of_known_words_back(text):
    decoded = WORDPIECE.decode(WORDPIECE.encode(text))
    assert decoded.replace(" ", "") == text.lower().replace(" ", "")


@each_tokenizer
def test_composed_and_decomposed_letters_have_the_same_ids(tokenizer):
    composed, decomposed = (unicodedata.normalize(form, TEXTS[2]) for form in ("NFC", "NFD"))
    assert composed != decomposed
    assert tokenizer.encode(decomposed).tolist() == tokenizer.encode(composed).tolist()
    assert tokenizer.unknown_id not in tokenizer.encode(composed)


@each_tokenizer
@given(any_text)
def test_any_text_has_ids_of_the_vocabulary_one_for_each_piece(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert ids.shape == (len(tokenizer.pieces(text)),)
    assert ((ids >= 0) & (ids < len(tokenizer))).all()
    assert [tokenizer.id_of(piece) for piece in tokenizer.pieces(text)] == ids.tolist()


@each_tokenizer
def test_what_is_not_known_is_the_unknown_piece(tokenizer):
    assert tokenizer.encode("☃").tolist()[-1] == tokenizer.unknown_id
    assert tokenizer.pieces("☃")[-1] == "[UNK]"


@each_tokenizer
def test_frequent_words_are_fewer_pieces_than_letters(tokenizer):
    assert len(tokenizer.encode("the tower")) < 5


@each_tokenizer
def test_an_empty_text_has_no_pieces(tokenizer):
    assert tokenizer.encode("").shape == (0,)
    assert tokenizer.encode("").dtype == np.int32
    assert tokenizer.decode(tokenizer.encode("")) == tokenizer.decode([]) == ""
    assert tokenizer.pieces("") == []
    assert tokenizer.encode_texts(["", ""]).shape == (2, 0)
    assert tokenizer.encode_texts(["", ""], 3).tolist() == [[PADDING] * 3] * 2
    assert tokenizer.encode_texts([]).shape == (0, 0)


@each_tokenizer
@given(st.lists(any_text | known_text, max_size=4), st.none() | st.integers(0, 6))
def test_ids_of_texts_are_those_of_each_cut_and_filled_up(tokenizer, texts, max_length):
    rows = [tokenizer.encode(text).tolist() for text in texts]
    width = max(map(len, rows), default=0) if max_length is None else max_length
    for pad_id in (PADDING, 0):
        encoded = tokenizer.encode_texts(iter(texts), max_length, pad_id)
        assert encoded.shape == (len(texts), width)
        assert encoded.dtype == np.int32
        assert encoded.tolist() == [(row + [pad_id] * width)[:width] for row in rows]


@each_tokenizer
def test_padding_and_special_pieces_are_not_part_of_a_decoded_text(tokenizer):
    ids = tokenizer.encode("the tower").tolist()
    begin, end = tokenizer.id_of("[BOS]"), tokenizer.id_of("[EOS]")
    assert tokenizer.decode([PADDING, begin, *ids, end, -7, PADDING]) == "the tower"


# Training


@pytest.mark.parametrize("specials", [("[UNK]",), SPECIALS, SPECIALS[::-1]])
def test_special_pieces_get_the_first_ids_in_their_order(specials):
    tokenizer = SubwordTokenizer.train(TEXTS, 60, specials=specials)
    assert [tokenizer.id_of(piece) for piece in specials] == list(range(len(specials)))
    assert tokenizer.unknown_id == specials.index("[UNK]")


@each_tokenizer
def test_a_piece_that_is_not_there_is_a_key_error(tokenizer):
    with pytest.raises(KeyError, match="zzz"):
        tokenizer.id_of("zzz")


@pytest.mark.parametrize("size", [70, 90, 1000])
def test_the_vocabulary_is_not_larger_than_it_may_be(size):
    assert len(SubwordTokenizer.train(TEXTS, size)) <= size


def test_every_character_is_kept_however_small_the_vocabulary_should_be():
    tokenizer = SubwordTokenizer.train(TEXTS, 10)
    assert all(tokenizer.unknown_id not in tokenizer.encode(text) for text in TEXTS)


def test_the_same_texts_give_the_same_tokenizer(tmp_path):
    contents = set()
    for _ in range(3):
        SubwordTokenizer.train(iter(TEXTS), 90).save(tmp_path / "subwords.json")
        contents.add((tmp_path / "subwords.json").read_text())
    assert len(contents) == 1


@pytest.mark.parametrize("texts", [[], [""]])
def test_nothing_to_learn_from_leaves_the_special_pieces(texts):
    tokenizer = SubwordTokenizer.train(texts, 50, specials=SPECIALS)
    assert len(tokenizer) == len(SPECIALS)
    assert set(tokenizer.encode("the tower").tolist()) == {tokenizer.unknown_id}


# Files


@each_tokenizer
def test_a_saved_tokenizer_comes_back(tmp_path, tokenizer):
    path = tmp_path / SubwordTokenizer.file_name
    tokenizer.save(path)
    loaded = SubwordTokenizer.load(path)
    assert (len(loaded), loaded.unknown_id) == (len(tokenizer), tokenizer.unknown_id)
    for text in ["", "☃ the", " The tower, é!", *TEXTS]:
        ids = tokenizer.encode(text)
        assert loaded.encode(text).tolist() == ids.tolist()
        assert loaded.decode(ids) == tokenizer.decode(ids)
        assert loaded.pieces(text) == tokenizer.pieces(text)
