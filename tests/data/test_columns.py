"""Columns of tables: which one has the texts, the classes, the two sides; and refusals."""

import pytest

from tlite.data.columns import class_column, has_known_names, in_order, pair_columns, text_column
from tlite.errors import UserError


@pytest.mark.parametrize(
    ("names", "text", "label"),
    [
        (["text", "label"], "text", "label"),
        (["id", "Review", "stars"], "Review", "stars"),
        (["review_body", "text", "label", "stars"], "text", "label"),
        (["said", "stars"], "said", "stars"),
        (["who", "text"], "text", "who"),
    ],
    ids=str,
)
def test_the_text_and_the_class_are_found(names, text, label):
    assert text_column(names, "t") == text
    assert class_column(names, text, "t") == label


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["review", "comment"], "t has several .* 'review', 'comment': .*--text-c"),
        (["said", "meant"], "t has no column .*the text, only 'said', 'meant': say --text-column"),
        (["text", "stars", "topic"], "several .*the class, 'stars', 'topic': say --label-column"),
        (["text", "a", "b"], "only 'text', 'a', 'b': say --label-column"),
        (["text"], "no column that is known to be the class, only 'text': say --label-column"),
        (["label"], "no column that is known to be the text, only 'label': say --text-column"),
    ],
    ids=str,
)
def test_what_is_not_clear_is_asked_for_by_the_option(names, message):
    with pytest.raises(UserError, match=message):
        class_column(names, text_column(names, "t"), "t")


def test_of_two_columns_the_text_is_the_one_that_is_not_the_class():
    assert text_column(["said", "who"], "t", label="who") == "said"


@pytest.mark.parametrize(
    ("names", "given", "found"),
    [
        (["target", "source"], ("", ""), ("source", "target")),
        (["tgt", "SRC"], ("", ""), ("SRC", "tgt")),
        (["n", "en", "de", "note"], ("", ""), ("en", "de")),
        (["en", "de"], ("de", ""), ("de", "en")),
        (["id", "English", "German", "note"], ("", ""), ("English", "German")),
        (["mine", "yours"], ("", ""), ("mine", "yours")),
        (["mine", "yours"], ("", "mine"), ("yours", "mine")),
    ],
    ids=str,
)
def test_the_two_sides_are_found(names, given, found):
    assert pair_columns(names, *given, "t") == found


@pytest.mark.parametrize(
    ("names", "given", "option"),
    [
        (["en", "de", "fr"], ("", ""), "--source-column and --target-column"),
        (["en", "de", "fr"], ("en", ""), "with --target-column"),
        (["mine", "yours", "n"], ("", ""), "--source-column and --target-column"),
        (["en"], ("", ""), "--source-column and --target-column"),
    ],
    ids=str,
)
def test_sides_that_are_not_clear_are_asked_for(names, given, option):
    with pytest.raises(UserError, match=option):
        pair_columns(names, *given, "t")


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (["text", "x"], True),
        (["X", "Star Rating"], True),
        (["en", "de"], True),
        (["note", "English"], True),
        (["A man sleeps.", "Ein Mann schläft."], False),
        (["said", "who"], False),
    ],
    ids=str,
)
def test_names_of_columns_are_known(names, known):
    assert has_known_names(names) == known


def test_classes_that_are_numbers_are_in_their_order():
    assert in_order(["10", "9", "-1"]) == ["-1", "9", "10"]
    assert in_order(["10", "9", "b"]) == ["10", "9", "b"]


def test_a_column_is_not_translated_into_itself():
    with pytest.raises(UserError, match="can't both be the column 'de'"):
        pair_columns(["de", "en"], "de", "de", "it")
