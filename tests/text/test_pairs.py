"""Subwords of both sides: special pieces first, there and back, saved and loaded."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.text import PairTokenizer, SubwordTokenizer
from tlite.text.pairs import END_ID, PAD_ID, SPECIALS, START_ID, pad_tokens

SOURCES = ["The lower the tower, the wider the view.", "She sells sea shells, 10 for 3!"] * 3
TARGETS = ["Je höher der Turm, je weiter der Blick.", "Sie verkauft Muscheln, 10 für 3!"] * 3
JOINT, SEPARATE = (
    PairTokenizer.train(SOURCES, TARGETS, 80, joint=joint) for joint in (True, False)
)
each_tokenizer = pytest.mark.parametrize("tokenizer", [JOINT, SEPARATE], ids=["joint", "separate"])
source_text = st.text("".join(sorted(set("".join(SOURCES)))), max_size=20)
target_text = st.text("".join(sorted(set("".join(TARGETS)))), max_size=20)
any_text = st.text(st.characters(codec="utf-8"), max_size=20)


# Pieces


@each_tokenizer
def test_special_pieces_have_the_first_ids_on_both_sides(tokenizer):
    assert (PAD_ID, START_ID, END_ID) == (0, 2, 3)
    for side in (tokenizer.source, tokenizer.target):
        assert [side.id_of(piece) for piece in SPECIALS] == [0, 1, 2, 3]
        assert [side.piece_of(index) for index in range(4)] == list(SPECIALS)
        assert side.unknown_id == 1


def test_joint_pieces_are_one_tokenizer_and_separate_ones_two():
    assert JOINT.joint
    assert JOINT.source is JOINT.target
    assert not SEPARATE.joint
    assert len(SEPARATE) == len(SEPARATE.target)
    known = set(SEPARATE.source.pieces("view")), set(SEPARATE.target.pieces("view"))
    assert "[UNK]" not in known[0]
    assert "[UNK]" in SEPARATE.source.pieces("höher")
    assert "[UNK]" not in SEPARATE.target.pieces("höher") + JOINT.source.pieces("höher")


def test_pieces_are_so_many_together_or_of_each_side():
    assert len(JOINT) <= 80
    assert max(len(SEPARATE.source), len(SEPARATE.target)) <= 80
    assert len(SEPARATE.source) + len(SEPARATE.target) > 80


def test_lower_case_is_made_where_asked_for():
    tokenizer = PairTokenizer.train(SOURCES, TARGETS, 80, lowercase=True)
    (tokens,) = tokenizer.encode_targets(["Der Turm"])
    assert tokenizer.decode(tokens) == "der turm"


# There and back


@each_tokenizer
@given(target_text)
def test_a_target_of_known_characters_comes_back(tokenizer, text):
    (tokens,) = tokenizer.encode_targets([text])
    assert tokens.dtype == np.int32
    assert (tokens[0], tokens[-1]) == (START_ID, END_ID)
    decoded = tokenizer.decode(tokens)
    assert decoded.lstrip(" ") == unicodedata.normalize("NFC", text).lstrip(" ")


@each_tokenizer
@given(source_text)
def test_a_source_of_known_characters_has_its_pieces_and_an_end(tokenizer, text):
    (tokens,) = tokenizer.encode_sources([text])
    assert tokens.dtype == np.int32
    assert tokens[-1] == END_ID
    assert not set(tokens[:-1].tolist()) & {0, 1, 2, 3}
    decoded = tokenizer.source.decode(tokens)
    assert decoded.lstrip(" ") == unicodedata.normalize("NFC", text).lstrip(" ")


@each_tokenizer
@given(st.lists(any_text, max_size=3))
def test_each_sentence_is_encoded_alone_as_among_others(tokenizer, texts):
    for encode, side in (
        (tokenizer.encode_sources, tokenizer.source),
        (tokenizer.encode_targets, tokenizer.target),
    ):
        together = encode(iter(texts))
        assert [row.tolist() for row in together] == [encode([t])[0].tolist() for t in texts]
        assert all(((row > 0) & (row < len(side))).all() for row in together)
        assert all((row == END_ID).sum() == 1 for row in together)


@each_tokenizer
def test_special_pieces_that_are_typed_are_no_special_pieces(tokenizer):
    (tokens,) = tokenizer.encode_targets(["[END] Turm [PAD]"])
    assert (tokens == END_ID).sum() == 1
    assert not (tokens == PAD_ID).any()


@each_tokenizer
@given(target_text, target_text)
def test_a_decoded_sentence_ends_at_its_first_end(tokenizer, text, rest):
    first, second = tokenizer.encode_targets([text, rest])
    assert tokenizer.decode(np.r_[first, second, PAD_ID]) == tokenizer.decode(first)
    assert tokenizer.decode(np.r_[first[:-1], PAD_ID, PAD_ID]) == tokenizer.decode(first)


def test_rows_are_filled_up_with_padding():
    rows = [np.array([5, 6], np.int32), np.array([], np.int32)]
    assert pad_tokens(rows).tolist() == [[5, 6], [0, 0]]
    assert pad_tokens(rows, 3).tolist() == [[5, 6, 0], [0, 0, 0]]
    assert pad_tokens(rows).dtype == np.int32


# Files


@each_tokenizer
def test_a_saved_pair_comes_back(tmp_path, tokenizer):
    path = tmp_path / PairTokenizer.file_name
    tokenizer.save(path)
    loaded = PairTokenizer.load(path)
    assert loaded.joint == tokenizer.joint
    assert (len(loaded), len(loaded.source)) == (len(tokenizer), len(tokenizer.source))
    for encode in ("encode_sources", "encode_targets"):
        one, other = (
            getattr(t, encode)([*SOURCES, *TARGETS, "", "☃"]) for t in (tokenizer, loaded)
        )
        assert [row.tolist() for row in one] == [row.tolist() for row in other]
    (tokens,) = tokenizer.encode_targets(TARGETS[:1])
    assert loaded.decode(tokens) == TARGETS[0]


# One side


@given(st.lists(any_text, max_size=4))
def test_ids_of_texts_are_those_of_each(texts):
    ids = JOINT.source.encode_ids(iter(texts))
    assert ids == [JOINT.source.encode(text).tolist() for text in texts]


def test_the_content_of_a_tokenizer_makes_the_same_one():
    tokenizer = SubwordTokenizer.train(SOURCES, 60)
    again = SubwordTokenizer.from_dict(tokenizer.to_dict())
    assert again.to_dict() == tokenizer.to_dict()
    assert again.encode_ids([*SOURCES, "☃ [UNK]"]) == tokenizer.encode_ids([*SOURCES, "☃ [UNK]"])


@pytest.mark.parametrize("content", [{}, {"model": 3}, {"version": "1.0"}], ids=str)
def test_content_that_makes_no_tokenizer_is_a_value_error(content):
    with pytest.raises(ValueError, match=r"\w"):
        SubwordTokenizer.from_dict(content)
