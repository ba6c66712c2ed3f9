"""Subwords, of one language and of two: learned pieces, ids and back; BLEU."""

import math
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tlite.text import PADDING, PairTokenizer, SubwordTokenizer
from tlite.text.subwords import END_ID, PAD_ID, START_ID, bleu, exact_match
from tlite.text.subwords import SPECIALS as OF_PAIRS

TEXTS = [
    "The lower the tower, the wider the view; the widest tower is the lowest.",
    "She sells sea shells, 10 for 3 coins: cheap!",
    "Un café à Genève? Oui, un grand café.",
] * 3
TARGETS = ["Je höher der Turm, je weiter der Blick.", "Sie verkauft Muscheln, 10 für 3!"] * 3
SPECIALS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
KNOWN = "".join(sorted(set("".join(TEXTS).lower())))
BPE = SubwordTokenizer.train(TEXTS, 90, specials=SPECIALS)
JOINT, SEPARATE = (PairTokenizer.train(TEXTS, TARGETS, 90, joint=joint) for joint in (True, False))


each_pair = pytest.mark.parametrize("pair", [JOINT, SEPARATE], ids=["joint", "separate"])
known_text = st.text(KNOWN, max_size=20) | st.sampled_from(TEXTS)
any_text = st.text(st.characters(codec="utf-8"), max_size=20)
source_text = st.text("".join(sorted(set("".join(TEXTS)))), max_size=20)
target_text = st.text("".join(sorted(set("".join(TARGETS)))), max_size=20)


# There and back


@given(known_text)
@example("  two spaces")
def test_bpe_gives_text_of_known_characters_back_in_lower_case(text):
    assert BPE.decode(BPE.encode(text)) == text.lower().lstrip(" ")


def test_composed_and_decomposed_letters_have_the_same_ids():
    composed, decomposed = (unicodedata.normalize(form, TEXTS[2]) for form in ("NFC", "NFD"))
    assert composed != decomposed
    assert BPE.encode(decomposed).tolist() == BPE.encode(composed).tolist()
    assert BPE.unknown_id not in BPE.encode(composed)


@given(st.lists(any_text | known_text, max_size=4))
def test_ids_of_texts_are_those_of_each_and_of_its_pieces(texts):
    rows = [BPE.encode(text).tolist() for text in texts]
    assert BPE.encode_ids(iter(texts)) == rows
    for text, row in zip(texts, rows, strict=True):
        assert all(0 <= index < len(BPE) for index in row)
        assert [BPE.piece_of(index) for index in row] == BPE.pieces(text)


def test_what_is_not_known_is_the_unknown_piece():
    assert BPE.encode("☃").tolist()[-1] == BPE.unknown_id
    assert BPE.pieces("☃")[-1] == "[UNK]"


def test_padding_and_special_pieces_are_not_part_of_a_decoded_text():
    ids = BPE.encode("the tower").tolist()
    assert len(ids) < 5
    begin, end = map(SPECIALS.index, ("[BOS]", "[EOS]"))
    assert BPE.decode([PADDING, begin, *ids, end, -7, PADDING]) == "the tower"
    assert BPE.decode(BPE.encode("")) == BPE.decode([]) == ""


# Training


def test_the_vocabulary_is_as_large_as_it_may_be_and_keeps_every_character():
    assert [len(SubwordTokenizer.train(TEXTS, size)) for size in (70, 90)] == [70, 90]
    tokenizer = SubwordTokenizer.train(TEXTS, 10)
    assert all(tokenizer.unknown_id not in tokenizer.encode(text) for text in TEXTS)


def test_a_saved_tokenizer_comes_back(tmp_path):
    path = tmp_path / SubwordTokenizer.file_name
    BPE.save(path)
    loaded = SubwordTokenizer.load(path)
    assert loaded.to_dict() == BPE.to_dict()
    for text in ["", "☃ the [UNK]", " The tower, é!", *TEXTS]:
        ids = BPE.encode(text)
        assert loaded.encode(text).tolist() == ids.tolist()
        assert loaded.decode(ids) == BPE.decode(ids)
        assert loaded.pieces(text) == BPE.pieces(text)


# Pairs


def test_joint_pieces_are_one_tokenizer_and_separate_ones_two():
    assert JOINT.joint
    assert not SEPARATE.joint
    assert (len(JOINT), len(SEPARATE.source)) == (90, 90)
    assert 80 < len(SEPARATE) == len(SEPARATE.target) <= 90
    assert "[UNK]" in SEPARATE.source.pieces("höher")
    assert "[UNK]" not in SEPARATE.target.pieces("höher") + JOINT.source.pieces("höher")
    for side in (JOINT.source, SEPARATE.source, SEPARATE.target):
        assert [side.piece_of(index) for index in range(4)] == list(OF_PAIRS)
    assert (PAD_ID, START_ID, END_ID) == (0, 2, 3)


def test_lower_case_is_made_where_asked_for():
    tokenizer = PairTokenizer.train(TEXTS, TARGETS, 80, lowercase=True)
    (tokens,) = tokenizer.encode_targets(["Der Turm"])
    assert tokenizer.decode(tokens) == "der turm"


@each_pair
@given(source_text, target_text, target_text)
def test_texts_of_known_characters_come_back_up_to_their_end(pair, source, target, rest):
    (tokens,), (first, second) = pair.encode_sources([source]), pair.encode_targets([target, rest])
    assert tokens.dtype == first.dtype == np.int32
    assert (first[0], first[-1], tokens[-1]) == (START_ID, END_ID, END_ID)
    for ids, text, side in ((tokens[:-1], source, pair.source), (first[1:-1], target, pair.target)):
        assert not set(ids.tolist()) & {0, 1, 2, 3}
        assert side.decode(ids) == unicodedata.normalize("NFC", text).lstrip(" ")
    assert pair.decode(np.r_[first, second, PAD_ID]) == pair.decode(first)
    assert pair.decode(np.r_[first[:-1], PAD_ID, PAD_ID]) == pair.decode(first)


@each_pair
def test_special_pieces_that_are_typed_are_no_special_pieces(pair):
    (tokens,) = pair.encode_targets(["[END] Turm [PAD]"])
    assert (tokens == END_ID).sum() == 1
    assert not (tokens == PAD_ID).any()


@each_pair
def test_a_saved_pair_comes_back(tmp_path, pair):
    path = tmp_path / PairTokenizer.file_name
    pair.save(path)
    loaded = PairTokenizer.load(path)
    assert loaded.joint == pair.joint
    assert loaded.to_dict() == pair.to_dict()
    (tokens,) = pair.encode_targets(TARGETS[:1])
    assert loaded.decode(tokens) == TARGETS[0]


# BLEU is sacrebleu's, of whole sentences; exact matches are to the letter

REFERENCES = ["The cat sits on the mat.", "It is raining, again!"]


def test_bleu_is_of_the_references_and_in_lower_case_where_asked_for():
    pytest.importorskip("sacrebleu")
    # 6 of 6 words, 5 of 5 pairs, 4 of 4 threes, 3 of 3 fours; 6 words for 7
    score, _ = bleu(["The cat sits on the mat"], REFERENCES[:1])
    assert score == pytest.approx(100 * math.exp(1 - 7 / 6))
    shouted = [reference.upper() for reference in REFERENCES]
    assert bleu(shouted, REFERENCES)[0] < 50
    score, signature = bleu(shouted, REFERENCES, lowercase=True)
    assert score == pytest.approx(100)
    assert "tok:13a" in signature
    assert "case:lc" in signature


def test_exact_matches_are_the_share_that_is_the_same_to_the_letter():
    assert exact_match(["a", "b ", "c", "D"], ["a", "b", "c", "d"]) == 0.5
    with pytest.raises(ValueError, match="longer"):
        exact_match(["a"], ["a", "b"])
