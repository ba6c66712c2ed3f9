"""Rows of tables: which are held out, and columns that are not there."""

import itertools
import logging
import warnings
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.data.tables import check_fraction, file_rows, held_out, need_columns
from tlite.errors import UserError

shares = st.integers(1, 99).map(lambda percent: percent / 100)


@given(st.integers(0, 300), shares)
def test_the_rows_held_out_and_the_others_are_all_rows_in_their_order(number, fraction):
    held, others = (list(held_out(range(number), fraction, held=h)) for h in (True, False))
    assert sorted(held + others) == list(range(number))
    assert held == sorted(held)
    assert others == sorted(others)
    assert len(held) == int(number * Fraction(str(fraction)))


@given(st.integers(1, 300), shares)
def test_rows_are_held_out_at_even_distances(number, fraction):
    held = list(held_out(range(number), fraction, held=True))
    distances = {b - a for a, b in itertools.pairwise(held)}
    assert all(abs(distance - 1 / fraction) < 1 for distance in distances)


def test_rows_are_held_out_as_they_come():
    def endless():
        index = 0
        while True:
            yield (index := index + 1)

    held = held_out(endless(), 0.25, held=True)
    assert [next(held) for _ in range(3)] == [4, 8, 12]


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_fraction_that_leaves_a_part_empty_is_refused(fraction):
    with pytest.raises(UserError, match="between 0 and 1"):
        check_fraction(fraction)


def test_the_first_column_that_is_missing_is_named_with_those_there_are():
    need_columns({"a": 1, "b": 2}, ("b", "a"), "x.csv")
    with pytest.raises(UserError, match=r"x\.csv has no column 'c': it has a, b$"):
        need_columns({"a": 1, "b": 2}, ("a", "c", "d"), "x.csv")


def test_a_line_with_too_many_columns_is_told_and_the_process_stays_as_it_was(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.logging.set_verbosity_warning()
    path = tmp_path / "a.csv"
    path.write_text("text,label\nfine,1\nodd,2,3\n")
    with pytest.raises(UserError, match=r"a\.csv"):
        list(file_rows(path, "utf-8"))
    assert "ParserWarning" not in str(warnings.filters)
    assert logging.getLogger("datasets").level == logging.WARNING
