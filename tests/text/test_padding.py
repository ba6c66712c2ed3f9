"""Padding: rows of any lengths as one array, nothing lost but what is cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.text import PADDING, pad

some_rows = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=5)


@given(some_rows, st.none() | st.integers(0, 8), st.sampled_from([PADDING, 0, 7]))
def test_rows_come_first_then_padding_up_to_the_length_or_the_longest(rows, length, pad_id):
    padded = pad(rows, length, pad_id)
    width = max(map(len, rows), default=0) if length is None else length
    assert padded.shape == (len(rows), width)
    assert padded.dtype == np.int32
    for row, filled in zip(rows, padded.tolist(), strict=True):
        assert filled == (row + [pad_id] * width)[:width]


@given(some_rows)
def test_rows_come_back_when_padding_is_left_out(rows):
    assert [row[row != PADDING].tolist() for row in pad(rows, None, PADDING)] == rows


@pytest.mark.parametrize("kind", [list, tuple, iter, lambda rows: map(np.array, rows)])
def test_rows_may_be_of_any_kind(kind):
    expected = [[1, 2, 3], [4, PADDING, PADDING]]
    assert pad(kind([[1, 2, 3], [4]]), None, PADDING).tolist() == expected
