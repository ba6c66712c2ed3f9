"""Tokens that are known by their numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.errors import UserError
from tlite.text import NumberTokenizer

TOKENIZER = NumberTokenizer(70)


@given(st.lists(st.integers(0, 69)))
def test_numbers_come_back(ids):
    assert TOKENIZER.encode(TOKENIZER.decode(ids)).tolist() == ids
    stream = TOKENIZER.stream([1, 2])
    streamed = stream.push(ids[:3]) + stream.push(ids[3:]) + stream.finish()
    assert streamed.strip() == TOKENIZER.decode(ids)


@pytest.mark.parametrize("text", ["a", "1 x", "70", "-1", "1.5", "9" * 6000, "²"])
def test_what_is_no_number_of_a_token_is_refused(text):
    with pytest.raises(UserError, match="only the numbers are known: give numbers below 70"):
        TOKENIZER.encode(text)


def test_saved_and_opened(tmp_path):
    TOKENIZER.save(tmp_path / "tokenizer.json")
    assert len(NumberTokenizer.load(tmp_path / "tokenizer.json")) == 70
    assert TOKENIZER.piece_of(7) == "7"
