"""Rows of tables, which of them are held out, and which columns hold what."""

import itertools
from pathlib import Path

import pytest

from tests.helpers.complaints import complaint
from tlite.data.tables import (
    column_of,
    file_rows,
    held_out,
    in_order,
    pair_columns,
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# Columns


@pytest.mark.parametrize(
    ("names", "text", "label"),
    [
        (["text", "label"], "text", "label"),
        (["id", "Review", "stars"], "Review", "stars"),
        (["review_body", "text", "label", "stars"], "text", "label"),
        (["said", "Star Rating"], "said", "Star Rating"),
        (["who", "text"], "text", "who"),
    ],
    ids=str,
)
def test_the_text_and_the_class_are_found(names, text, label):
    assert column_of(names, "t", "text") == text
    assert column_of(names, "t", "label", text) == label


@pytest.mark.parametrize(
    ("names", "option"),
    [
        (["review", "comment"], "text"),
        (["said", "meant"], "text"),
        (["text", "stars", "topic"], "label"),
        (["text", "a", "b"], "label"),
        (["text"], "label"),
        (["label"], "text"),
    ],
    ids=str,
)
def test_what_is_not_clear_is_asked_for_by_the_option(names, option):
    told = complaint(lambda: column_of(names, "t", "label", column_of(names, "t", "text")))
    columns = ", ".join(map(repr, names))
    assert told.startswith(f"t has the columns {columns}: say which it is by --{option}-column")


def test_of_two_columns_the_text_is_the_one_that_is_not_the_class():
    assert column_of(["said", "who"], "t", "text", "who") == "said"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["target", "source"], ("source", "target")),
        (["tgt", "SRC", "n"], ("SRC", "tgt")),
        (["n", "en", "de_at", "note"], ("en", "de_at")),
        (["id", "en", "de"], ("en", "de")),
        (["mine", "yours"], ("mine", "yours")),
        (["en", "de", "fr"], None),
        (["mine", "yours", "n"], None),
        (["en"], None),
    ],
    ids=str,
)
def test_the_two_sides_are_found_or_asked_for(names, found):
    if found:
        assert pair_columns(names, "t") == found
    else:
        assert "--source-column and --target-column" in complaint(pair_columns, names, "t")


def test_classes_that_are_numbers_are_in_their_order():
    assert in_order(["10", "9", "-1"]) == ["-1", "9", "10"]
    assert in_order(["10", "9", "b"]) == ["10", "9", "b"]


# Rows


def rows_of(content: str, name: str) -> list[dict]:
    Path(name).write_text(content)
    return list(file_rows(Path(name)))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", '{"a": 1}\n\nx\n', "a.jsonl is not JSON Lines: line 3 is not JSON"),
        ("a.jsonl", '{"a": 1}\n"x"', "a.jsonl is not JSON Lines: line 2 is not a JSON object"),
        ("a.jsonl", '{"a": "\\ud800"}', "a.jsonl is not JSON Lines: line 1 is not JSON"),
        ("a.jsonl", "{}\n" + "[" * 9999, "a.jsonl is not JSON Lines: line 2 is not JSON"),
        ("a.csv", "a,b\n1,2\n1,2,3\n", "a.csv is not a table: line 3 has 3 columns, not 2"),
        ("a.csv", 'a,b\n"1\n,,",2\n,,\n', "a.csv is not a table: line 4 has 3 columns"),
        ("a.csv", 'a,b\n1,2\n"1,2\n3,4\n', "a.csv is not a table: from line 3 on, unexpected end"),
        ("a.csv", f"a,b\n{'x' * 200_000},2\n1,2,3\n", "a.csv is not a table: line 3 has 3 columns"),
        ("a.csv", "\n \n", "a.csv is empty"),
        ("a.tsv", 'text\tlabel\n"open\t1\nb\t2\t3\n', "a.tsv is not a table: line 3 has 3 columns"),
        ("a.csv", "a,b\r1,2\r", "a.csv is not a table: from line 1 on, new-line character"),
        ("a.json", '[{"a": 1},\n 2]', "a.json is not a list of JSON objects"),
        ("a.json", "[1", "a.json, a list, is not JSON"),
    ],
)
def test_the_first_line_that_does_not_fit_is_told(name, content, reason):
    assert complaint(rows_of, content, name).startswith(reason)


def test_values_are_read_as_they_stand():
    rows = rows_of('a,b\n01,"x ""y""\nz"\n 2,true\n\n,\n3\n', "a.csv")
    assert [*map(tuple, map(dict.values, rows))] == [
        ("01", 'x "y"\nz'), (" 2", "true"), ("", ""), ("3", None)
    ]  # fmt: skip
    assert rows_of('a\tb\n"x\t"\n', "a.tsv") == [{"a": '"x', "b": '"'}]
    assert rows_of('a,b\n5" thick,4"\n', "a.csv") == [{"a": '5" thick', "b": '4"'}]
    assert rows_of(",a\n0,1\n", "a.csv") == [{"": "0", "a": "1"}]
    for content in ('{"a": 1}\n{"b": "x"}\n', '[{"a": 1},\n{"b": "x"}]\n'):
        assert rows_of(content, "a.json") == [{"a": 1}, {"b": "x"}]


# What is held out


def test_rows_are_held_out_as_they_come():
    for fraction, places in ((0.25, [4, 8, 12]), (0.4, [3, 5, 8]), (1 / 3, [4, 7, 10])):
        held = held_out(itertools.count(1), fraction, held=True)
        assert [next(held) for _ in range(3)] == places
