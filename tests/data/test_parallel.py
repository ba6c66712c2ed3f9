"""Pairs of sentences: files side by side, rows of tables, and one sentence on what is no pair."""

import gzip
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
]


def lines(name: str, sentences) -> str:
    content = "".join(f"{sentence}\n" for sentence in sentences).encode()
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return name


def sides(*names: str) -> tuple[str, ...]:
    """Two text files with a sentence a line."""
    return tuple(map(lines, names, zip(*PAIRS, strict=True)))


def whole(*names: str, **settings) -> list[Pair]:
    """All pairs of these files: none is held out where validation files are given."""
    return ParallelText(training=names, validation=names, **settings).pairs("training")


def texts(pairs) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in pairs]


@pytest.mark.parametrize(
    "names", [("a.en", "a.de"), ("a.txt", "b.txt"), ("a.en.gz", "a.de.gz"), ("a", "b.gz")], ids=str
)
def test_two_text_files_have_a_sentence_a_line(names):
    pairs = whole(*sides(*names), *sides("more.en", "more.de"))
    assert texts(pairs) == 2 * PAIRS
    assert pairs[1].where == f"line 2 of {names[0]} and {names[1]}"


def test_rows_of_a_table_are_pairs():
    names = [lines(f"{n}.tsv", [f"{s}\t{t}" for s, t in [("en", "de"), *PAIRS]]) for n in "ab"]
    pairs = whole(*names, source_column="de", target_column="en")
    assert texts(pairs) == 2 * [(target, source) for source, target in PAIRS]
    assert pairs[-1].where == "row 4 of b.tsv"
    told = complaint(whole, *names, source_column="de", target_column="fr")
    assert told == "a.tsv has no column 'fr': it has en, de"


@pytest.mark.parametrize(
    ("source", "target", "first"),
    [(["a", "", "c", ""], ["a", "b", "c", "d"], 2), (["a", "b", "c"], ["a", "b", " \t"], 3)],
)
def test_pairs_with_an_empty_side_are_left_out_and_told(source, target, first, capsys):
    found = whole(lines("a.en", source), lines("a.de", target))
    pairs = zip(source, target, strict=True)
    assert texts(found) == [pair for pair in pairs if all(map(str.strip, pair))]
    err = capsys.readouterr().err
    assert f"{len(source) - len(found)} of the {len(source)} training pairs are left out" in err
    assert f"the first is line {first} of a.en and a.de" in err


@pytest.mark.parametrize("names", [("a.en",), ("a.en", "a.de", "b.en"), ("a.en", "a.jsonl")])
def test_text_files_that_make_no_pairs_are_told(names):
    for name in names:
        lines(name, ["x"])
    message = complaint(whole, *names)
    assert "text files by twos, a source and its target" in message
    assert message.endswith(", ".join(names))


def test_files_of_different_lengths_or_without_a_line_are_told():
    names = lines("a.en", ["x"] * 1234), lines("a.de", ["y"] * 1233)
    assert complaint(whole, *names) == "a.en has 1,234 lines, but a.de has 1,233"
    names = lines("a.en", []), lines("a.de", [])
    assert "the training part has no sentences" in complaint(whole, *names)
