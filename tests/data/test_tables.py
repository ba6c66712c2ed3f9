"""Rows of tables: which are held out, and columns that are not there."""

import itertools
import logging
import warnings
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.data.tables import file_rows, held_out
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


def rows_of(content: str, name: str, **settings) -> list[dict]:
    Path(name).write_text(content)
    return list(file_rows(Path(name), **settings))


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", '{"a": 1}\n{}\nx\n', "a.jsonl is not JSON Lines: line 3 is not JSON"),
        ("a.jsonl", '{"a": 1}\n\nx\n', "a.jsonl is not JSON Lines: line 3 is not JSON"),
        ("a.jsonl", '{"a": 1}\n"x"', "a.jsonl is not JSON Lines: line 2 is not a JSON object"),
        ("a.csv", "a,b\n1,2\n1,2,3\n", "a.csv is not a table: line 3 has 3 columns, not 2"),
        ("a.csv", 'a,b\n"1\n,,",2\n,,\n', "a.csv is not a table: line 4 has 3 columns"),
        ("a.tsv", "a\tb\n1,1,1\t2\n1\t2\t3\n", "a.tsv is not a table: line 3 has 3 columns"),
        (
            "a.jsonl",
            '{"a": "\\ud800"}',
            "a.jsonl is not JSON Lines: line 1 has half",
        ),
        ("a.jsonl", "{}\n" + "[" * 9999, "a.jsonl is not JSON Lines: line 2 is nested too deeply"),
        (
            "a.csv",
            'a,b\n1,2\n"1,2\n3,4\n',
            "a.csv is not a table: the quotation mark in line 3",
        ),
        ("a.csv", f"a,b\n{'x' * 200_000},2\n1,2,3\n", "a.csv is not a table: line 3 has 3 columns"),
        ("a.csv", "\n \n", "a.csv is empty"),
        ("a.tsv", 'text\tlabel\n"open\t1\nb\t2\t3\n', "a.tsv is not a table: line 3 has 3 columns"),
        ("a.csv", "a,b\r1,2\r", "a.csv is not a table: line 1 has a carriage return within"),
        ("a.json", '[{"a": 1},\n 2]', "a.json is not a list of JSON objects"),
        ("a.json", "[1", "a.json, a list, is not JSON"),
    ],
)
def test_the_first_line_that_does_not_fit_is_told(name, content, reason):
    with pytest.raises(UserError) as caught:
        rows_of(content, name)
    assert str(caught.value).startswith(reason)
    assert len(str(caught.value).splitlines()) == 1


def test_values_are_read_as_they_stand():
    rows = rows_of('a,b\n01,"x ""y""\nz"\n 2,true\n\n,\n3\n', "a.csv")
    assert [*map(tuple, map(dict.values, rows))] == [
        ("01", 'x "y"\nz'), (" 2", "true"), ("", ""), ("3", None)
    ]  # fmt: skip
    assert rows_of('a\tb\n"x\t"\n', "a.tsv") == [{"a": '"x', "b": '"'}]
    assert rows_of('a,b\n5" thick,4"\n', "a.csv") == [{"a": '5" thick', "b": '4"'}]
    assert rows_of('a\n4"', "a.csv") == [{"a": '4"'}]
    assert rows_of(",a,a\n0,1,2\n", "a.csv") == [{"column 1": "0", "a": "1", "column 3": "2"}]


@pytest.mark.parametrize("content", ['{"a": 1}\n{"b": "x"}\n', '[{"a": 1},\n{"b": "x"}]\n'])
def test_a_field_that_one_object_has_is_a_column_of_all(content):
    assert rows_of(content, "a.json") == [{"a": 1, "b": None}, {"a": None, "b": "x"}]


def test_a_long_field_is_read():
    assert rows_of(f"a\n{'x' * 200_000}\n", "a.csv") == [{"a": "x" * 200_000}]


def test_reading_leaves_the_process_as_it_was():
    datasets = pytest.importorskip("datasets")
    datasets.logging.set_verbosity_warning()
    filters = list(warnings.filters)
    with pytest.raises(UserError, match="line 3 has 3 columns"):
        rows_of("text,label\nfine,1\nodd,2,3\n", "a.csv")
    assert warnings.filters == filters
    assert logging.getLogger("datasets").level == logging.WARNING
