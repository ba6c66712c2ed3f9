"""Pairs of sentences: the same from every kind of file, and one sentence on a bad one."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from tests.helpers.complaints import complaint
from tlite.data import Pair, ParallelText

pytestmark = pytest.mark.usefixtures("alone")

PAIRS = [
    ("A man sleeps.", "Ein Mann schläft."),
    ("null", "NA"),
    ('"No", he said', "„Nein“, sagte er"),
    (" a space before", "ein Zeichen\u2028mitten drin "),
    ("007", "1e5"),
    ("True", "☕"),
]
COLUMNS = {"source_column": "en", "target_column": "de"}


def write(name: str, content: str | bytes) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return name


def lines(name: str, sentences) -> str:
    return write(name, "".join(f"{sentence}\n" for sentence in sentences))


def sides(*names: str, pairs=PAIRS) -> tuple[str, ...]:
    """Two text files with a sentence a line."""
    return tuple(
        lines(name, side) for name, side in zip(names, zip(*pairs, strict=True), strict=True)
    )


def table(name: str, pairs=PAIRS) -> str:
    """A table of the kind that its name promises."""
    kind = name.removesuffix(".gz").rpartition(".")[2]
    if kind == "jsonl":
        rows = [json.dumps({"en": s, "de": t, "n": 1}, ensure_ascii=False) for s, t in pairs]
        return lines(name, rows)
    if kind == "tsv":
        return lines(name, [f"{s}\t{t}" for s, t in [("en", "de"), *pairs]])
    with Path(name).open("w", newline="") as file:
        csv.writer(file).writerows([("en", "de"), *pairs])
    return name


def read(part="training", **settings) -> list[Pair]:
    return ParallelText(**COLUMNS | settings).pairs(part)


def whole(*names: str, **settings) -> list[tuple[str, str]]:
    """All pairs of these files: none is held out where validation files are given."""
    return texts(read(training=names, validation=names, **settings))


def texts(pairs) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in pairs]


# What is read


@pytest.mark.parametrize(
    "names", [("a.en", "a.de"), ("a.txt", "b.txt"), ("a.en.gz", "a.de.gz"), ("a", "b.gz")], ids=str
)
def test_two_text_files_have_a_sentence_a_line(names):
    assert whole(*sides(*names)) == PAIRS


@pytest.mark.parametrize("name", ["a.jsonl", "a.tsv", "a.csv", "a.jsonl.gz", "a.tsv.gz"])
def test_every_kind_of_table_gives_the_same_pairs(name):
    assert whole(table(name)) == PAIRS


def test_several_files_follow_each_other():
    assert whole(*sides("a.en", "a.de"), *sides("b.en", "b.de", pairs=PAIRS[:2])) == [
        *PAIRS,
        *PAIRS[:2],
    ]
    assert whole(table("a.jsonl"), table("b.tsv")) == 2 * PAIRS


def test_a_pair_says_where_it_was_read():
    names = sides("a.en", "a.de")
    assert read(training=names, validation=names)[1].where == "line 2 of a.en and a.de"
    name = table("a.jsonl")
    assert read(training=(name,), validation=(name,))[2].where == "row 3 of a.jsonl"


# What is wrong


def test_files_of_different_lengths_are_both_named_with_their_lines():
    names = lines("a.en", ["x"] * 1234), lines("a.de", ["y"] * 1233)
    assert complaint(whole, *names) == "a.en has 1,234 lines, but a.de has 1,233"


@pytest.mark.parametrize(
    ("source", "target", "first"),
    [("a\n\nc\n\n", "a\nb\nc\nd\n", 2), ("a\nb\nc\n", "a\nb\n \t\n", 3)],
)
def test_lines_that_are_empty_are_left_out_and_told(source, target, first, capsys):
    found = whole(write("a.en", source), write("a.de", target))
    lines = zip(source.splitlines(), target.splitlines(), strict=True)
    assert found == [pair for pair in lines if all(map(str.strip, pair))]
    err = capsys.readouterr().err
    left_out = len(source.splitlines()) - len(found)
    assert f"{left_out} of the {len(found) + left_out} training pairs are left out" in err
    assert f"the first is line {first} of a.en and a.de" in err


def test_rows_with_an_empty_side_are_left_out_and_told(capsys):
    name = lines("a.jsonl", ['{"en": "x", "de": "y"}', '{"en": "x", "de": null}'])
    assert whole(name) == [("x", "y")]
    assert "the first is row 2 of a.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize("names", [("a.en",), ("a.en", "a.de", "b.en"), ("a.en", "a.jsonl")])
def test_text_files_that_make_no_pairs_are_told(names):
    for name in names:
        lines(name, ["x"])
    message = complaint(whole, *names)
    assert "text files by twos, a source and its target" in message
    assert message.endswith(", ".join(names))


def test_files_without_a_line_are_told():
    names = write("a.en", ""), write("a.de", "")
    assert "the training part has no sentences" in complaint(whole, *names)
