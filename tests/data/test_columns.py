"""Columns of tables: which one has the texts, the classes, the two sides; and refusals."""

import pytest

from tlite.data.columns import class_column, in_order, missing_names, pair_columns, text_column
from tlite.errors import UserError

LONG = "a good one, and not dear"


def rows(number=40, **columns):
    """Rows whose values are those of each column in turn."""
    return [{n: values[i % len(values)] for n, values in columns.items()} for i in range(number)]


@pytest.mark.parametrize(
    ("columns", "text", "label"),
    [
        ({"text": [LONG], "label": [0, 1]}, "text", "label"),
        ({"id": [*range(40)], "Review": [LONG], "stars": [1, 2, 3]}, "Review", "stars"),
        ({"review_body": [LONG], "text": ["x"], "label": "ab", "stars": [1]}, "text", "label"),
        ({"said": [LONG], "who": ["Ann", "Bob"]}, "said", "who"),
        ({"Unnamed: 0": [*range(40)], "said": [LONG], "good": [True, False]}, "said", "good"),
        ({"said": [LONG], "at": [0.5 * i for i in range(40)], "kind": "xyz"}, "said", "kind"),
    ],
    ids=str,
)
def test_the_text_and_the_class_are_found(columns, text, label):
    table = rows(**columns)
    assert text_column(table, "t") == text
    assert class_column(table, text, "t") == label


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"review": [LONG], "comment": [LONG]}, "t has several .* 'review', 'comment': .*--text-c"),
        ({"said": [LONG], "meant": [LONG]}, "t has several .*'said', 'meant': say --text-column"),
        ({"a": [1, 2], "b": ["3"]}, "t has no column that may be the text, only 'a', 'b': say"),
        ({"text": [LONG], "stars": [1], "topic": "ab"}, "several .*the class, 'stars', 'topic':"),
        ({"text": [LONG], "a": [1, 2], "b": [3, 4]}, "'a', 'b': say --label-column"),
        ({"text": [LONG]}, "no column that may be the class, only 'text': say --label-column"),
        ({"text": [LONG], "id": [*range(40)]}, "no column that may be the class"),
        ({"text": [LONG], "same": ["x"]}, "no column that may be the class"),
    ],
    ids=str,
)
def test_what_is_not_clear_is_asked_for_by_the_option(columns, message):
    table = rows(**columns)
    with pytest.raises(UserError, match=message):
        class_column(table, text_column(table, "t"), "t")


@pytest.mark.parametrize(
    ("columns", "given", "found"),
    [
        ({"target": ["b"], "source": ["a"]}, ("", ""), ("source", "target")),
        ({"tgt": ["b"], "SRC": ["a"]}, ("", ""), ("SRC", "tgt")),
        ({"n": [1], "en": ["a"], "de": ["b"], "note": ["c"]}, ("", ""), ("en", "de")),
        ({"English": ["a"], "Deutsch": ["b"], "n": [1]}, ("", ""), ("English", "Deutsch")),
        ({"en": ["a"], "de": ["b"]}, ("de", ""), ("de", "en")),
    ],
    ids=str,
)
def test_the_two_sides_are_found(columns, given, found):
    assert pair_columns(rows(**columns), *given, "t") == found


@pytest.mark.parametrize(
    ("columns", "given", "option"),
    [
        ({"en": ["a"], "de": ["b"], "fr": ["c"]}, ("", ""), "--source-column and --target-column"),
        ({"en": ["a"], "de": ["b"], "fr": ["c"]}, ("en", ""), "with --target-column"),
        ({"en": ["a"], "n": [1]}, ("", ""), "--source-column and --target-column"),
    ],
    ids=str,
)
def test_sides_that_are_not_clear_are_asked_for(columns, given, option):
    with pytest.raises(UserError, match=option):
        pair_columns(rows(**columns), *given, "t")


@pytest.mark.parametrize(
    "lines",
    [
        ["A man sleeps.\tEin Mann schläft.\n", "No.\tNein.\n"],
        ["a fine film to see on a day\t1\n", "a bad one\t0\n"],
        ["fine\tgood\n", "poor\tbad\n", "nice\tgood\n"],
    ],
    ids=str,
)
def test_a_first_line_that_is_a_row_gets_names(lines):
    assert missing_names(lines, tabs=True) == ("column 1", "column 2")


@pytest.mark.parametrize(
    "lines",
    [
        ["text,label\n", "a,1\n"],
        [",said,who\n", "0,x,y\n"],
        ["en,de\n"],
        ["id,a b c d\n"],
        [],
        ["\n"],
    ],
    ids=str,
)
def test_a_first_line_that_names_the_columns_is_left(lines):
    assert missing_names(lines, tabs=False) == ()


def test_classes_that_are_numbers_are_in_their_order():
    assert in_order(["10", "9", "-1"]) == ["-1", "9", "10"]
    assert in_order(["10", "9", "b"]) == ["10", "9", "b"]


def test_a_column_is_not_translated_into_itself():
    with pytest.raises(UserError, match="can't both be the column 'de'"):
        pair_columns(rows(de="a b", en="c d"), "de", "de", "it")
