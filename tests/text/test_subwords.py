"""Subwords of one language and of pairs: training, round trips, files; BLEU."""

import math
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tlite.models import seq2seq
from tlite.text import PairTokenizer, SubwordTokenizer
from tlite.text.subwords import (
    END_ID,
    PAD_ID,
    SPECIALS,
    START_ID,
    bleu,
    bleu_by_sentence,
    bleu_statistics,
    exact_match,
)

TEXTS = [
    "The lower the tower, the wider the view; the widest tower is the lowest.",
    "She sells sea shells, 10 for 3 coins: cheap!",
    "Un café à Genève? Oui, un grand café.",
] * 3
TARGETS = ["Je höher der Turm, je weiter der Blick.", "Sie verkauft Muscheln, 10 für 3!"] * 3
KNOWN = "".join(sorted(set("".join(TEXTS).lower())))
BPE = SubwordTokenizer.train(TEXTS, 90, specials=SPECIALS)
JOINT, SEPARATE = (PairTokenizer.train(TEXTS, TARGETS, 90, joint=joint) for joint in (True, False))


each_pair = pytest.mark.parametrize("pair", [JOINT, SEPARATE], ids=["joint", "separate"])
known_text = st.text(KNOWN, max_size=20) | st.sampled_from(TEXTS)
source_text = st.text("".join(sorted(set("".join(TEXTS)))), max_size=20)
target_text = st.text("".join(sorted(set("".join(TARGETS)))), max_size=20)


@given(known_text)
@example("  two spaces")
def test_decode_gives_known_text_in_lower_case(text):
    assert BPE.decode(BPE.encode(text)) == text.lower().lstrip(" ")


def test_composed_and_decomposed_letters_have_equal_ids():
    composed, decomposed = (unicodedata.normalize(form, TEXTS[2]) for form in ("NFC", "NFD"))
    assert composed != decomposed
    assert BPE.encode(decomposed).tolist() == BPE.encode(composed).tolist()
    assert BPE.unknown_id not in BPE.encode(composed)


def test_vocabulary_has_its_size_and_every_character():
    assert [len(SubwordTokenizer.train(TEXTS, size)) for size in (70, 90)] == [70, 90]
    tokenizer = SubwordTokenizer.train(TEXTS, 10)
    assert all(tokenizer.unknown_id not in tokenizer.encode(text) for text in TEXTS)


def test_joint_subwords_are_one_tokenizer():
    assert JOINT.joint
    assert not SEPARATE.joint
    assert (len(JOINT), len(SEPARATE.source)) == (90, 90)
    assert 80 < len(SEPARATE) == len(SEPARATE.target) <= 90
    assert "[UNK]" in SEPARATE.source.tokenize("höher")
    assert "[UNK]" not in SEPARATE.target.tokenize("höher") + JOINT.source.tokenize("höher")
    for side in (JOINT.source, SEPARATE.source, SEPARATE.target):
        assert [side.id_to_token(index) for index in range(4)] == list(SPECIALS)
    assert (START_ID, END_ID) == (seq2seq.START_ID, seq2seq.END_ID)
    assert seq2seq.SpecialTokens().pad_id == PAD_ID


def test_lowercase_option():
    tokenizer = PairTokenizer.train(TEXTS, TARGETS, 80, lowercase=True)
    (tokens,) = tokenizer.encode_targets(["Der Turm"])
    assert tokenizer.decode(tokens) == "der turm"


@each_pair
@given(source_text, target_text, target_text)
def test_pairs_are_decoded_up_to_their_end(pair, source, target, rest):
    (tokens,), (first, second) = pair.encode_sources([source]), pair.encode_targets([target, rest])
    assert tokens.dtype == first.dtype == np.int32
    assert (first[0], first[-1], tokens[-1]) == (START_ID, END_ID, END_ID)
    for ids, text, side in ((tokens[:-1], source, pair.source), (first[1:-1], target, pair.target)):
        assert not set(ids.tolist()) & {0, 1, 2, 3}
        assert side.decode(ids) == unicodedata.normalize("NFC", text).lstrip(" ")
    assert pair.decode(np.r_[first, second, PAD_ID]) == pair.decode(first)
    assert pair.decode(np.r_[first[:-1], PAD_ID, PAD_ID]) == pair.decode(first)


@each_pair
def test_typed_special_tokens_are_ordinary_text(pair):
    (tokens,) = pair.encode_targets(["[END] Turm [PAD]"])
    assert (tokens == END_ID).sum() == 1
    assert not (tokens == PAD_ID).any()


REFERENCES = ["The cat sits on the mat.", "It is raining, again!"]


def test_bleu_has_a_brevity_penalty_and_a_lowercase_option():
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


@pytest.mark.parametrize(
    "hypotheses",
    [REFERENCES, ["The cat sat on a mat", "It is raining"], ["The cat", "raining"], ["", ""]],
)
def test_scores_of_sentences_have_the_mean_of_corpus_bleu(hypotheses):
    pytest.importorskip("sacrebleu")
    scores = bleu_by_sentence(bleu_statistics(hypotheses, REFERENCES))
    assert scores.mean() == pytest.approx(bleu(hypotheses, REFERENCES)[0])


def test_exact_match_is_the_share_of_equal_texts():
    assert exact_match(["a", "b ", "c", "D"], ["a", "b", "c", "d"]) == 0.5
    with pytest.raises(ValueError, match="longer"):
        exact_match(["a"], ["a", "b"])
