"""BLEU is sacrebleu's, of whole sentences; exact matches are to the letter."""

import math

import pytest

from tlite.text.bleu import bleu, exact_match

pytest.importorskip("sacrebleu")

REFERENCES = ["The cat sits on the mat.", "It is raining, again!"]


def test_the_references_themselves_have_100():
    score, signature = bleu(REFERENCES, REFERENCES)
    assert score == pytest.approx(100)
    assert "tok:13a" in signature
    assert "case:mixed" in signature


def test_bleu_is_the_geometric_mean_of_precisions_with_the_brevity_penalty():
    # 6 of 6 words, 5 of 5 pairs, 4 of 4 threes, 3 of 3 fours; 6 words for 7
    score, _ = bleu(["The cat sits on the mat"], REFERENCES[:1])
    assert score == pytest.approx(100 * math.exp(1 - 7 / 6))
    # "dog" for "cat": 6 of 7, 4 of 6, 3 of 5, 2 of 4
    score, _ = bleu(["The dog sits on the mat."], REFERENCES[:1])
    assert score == pytest.approx(100 * (6 / 7 * 4 / 6 * 3 / 5 * 2 / 4) ** 0.25)


def test_lower_case_counts_where_it_is_not_told_to_be_ignored():
    shouted = [reference.upper() for reference in REFERENCES]
    assert bleu(shouted, REFERENCES)[0] < 50
    score, signature = bleu(shouted, REFERENCES, lowercase=True)
    assert score == pytest.approx(100)
    assert "case:lc" in signature


def test_exact_matches_are_the_share_that_is_the_same_to_the_letter():
    assert exact_match(["a", "b ", "c", "D"], ["a", "b", "c", "d"]) == 0.5
    with pytest.raises(ValueError, match="longer"):
        exact_match(["a"], ["a", "b"])
