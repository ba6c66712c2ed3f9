"""Kinds of files by their endings, and what is wrong with one that is not what it promises."""

import gzip
from pathlib import Path

import pytest

from tlite.data.files import KINDS, explain, kind_of, read_lines
from tlite.errors import UserError


def complaint(action, *arguments) -> str:
    """The one line that a user error says."""
    with pytest.raises(UserError) as caught:
        action(*arguments)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize("ending", KINDS)
@pytest.mark.parametrize("name", ["a{}", "a{}.gz", "a.b.xml{}", ".hidden{}.gz", "folder.txt/a{}"])
def test_the_kind_is_decided_by_the_ending_before_gz(ending, name):
    assert kind_of(Path(name.format(ending))) == KINDS[ending]


@pytest.mark.parametrize(
    "name", ["a", "a.gz", "a.xml", "a.csv.xml", "a.csv.gz.gz", ".csv", "a.zip"]
)
def test_other_endings_are_refused_and_the_known_ones_listed(name):
    message = complaint(kind_of, Path(name))
    assert message.startswith(f"{name} has none of the endings")
    assert all(ending in message for ending in KINDS)


CONTENTS = {
    "": [],
    "one": ["one"],
    "one\n": ["one"],
    "one\r\ntwo\r\n": ["one", "two"],
    "one\n\ntwo": ["one", "", "two"],
    "a\u2028b\x85c\x0cd\x1ce\n": ["a\u2028b\x85c\x0cd\x1ce"],
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("content", CONTENTS)
def test_lines_end_at_line_feeds_alone(tmp_path, content, pack):
    path = tmp_path / ("a.gz" if pack is gzip.compress else "a")
    path.write_bytes(pack(content.encode()))
    assert read_lines(path, "utf-8") == CONTENTS[content]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
def test_lines_are_decoded(tmp_path, encoding):
    (tmp_path / "a").write_bytes("Grüße\ncafé".encode(encoding))
    assert read_lines(tmp_path / "a", encoding) == ["Grüße", "café"]


@pytest.mark.parametrize("line", [1, 2, 40])
def test_the_line_that_is_not_in_the_encoding_is_named(tmp_path, line):
    (tmp_path / "a").write_bytes(b"ok\n" * (line - 1) + b"caf\xe9\n" + b"\xe9\n")
    message = complaint(read_lines, tmp_path / "a", "utf-8")
    assert f"line {line} has the byte 0xe9" in message
    assert "--encoding" in message


def test_an_encoding_that_does_not_exist_is_named(tmp_path):
    (tmp_path / "a").write_text("a")
    assert complaint(read_lines, tmp_path / "a", "klingon") == "there is no encoding 'klingon'"


PACKED = gzip.compress(b"some lines\n" * 99, mtime=0)


@pytest.mark.parametrize(
    "content",
    [PACKED[:-9], PACKED[:4], PACKED[:15] + b"\xff" * 9 + PACKED[24:], b"some lines\n"],
    ids=["cut", "no more than a beginning", "damaged", "not gzip"],
)
def test_broken_gzip_is_named(tmp_path, content):
    path = tmp_path / "bad.txt.gz"
    path.write_bytes(content)
    assert complaint(read_lines, path, "utf-8").startswith(f"can't read {path}: ")


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        assert complaint(read_lines, path, "utf-8").startswith(f"can't read {path}: ")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", '{"a": 1}\n{}\nx\n', "a.jsonl is not JSON Lines: line 3 is not a JSON object"),
        ("a.jsonl", '{"a": 1}\n\nx\n', "a.jsonl is not JSON Lines: line 3 is not a JSON object"),
        ("a.jsonl", '{"a": 1}\n"x"', "a.jsonl is not JSON Lines: line 2 is not a JSON object"),
        ("a.csv", "a,b\n1,2\n1,2,3\n", "a.csv is not a table: line 3 has 3 columns, not 2"),
        ("a.csv", 'a,b\n"1\n,,",2\n,,\n', "a.csv is not a table: line 4 has 3 columns"),
        ("a.tsv", "a\tb\n1,1,1\t2\n1\t2\t3\n", "a.tsv is not a table: line 3 has 3 columns"),
        ("a.parquet", "", "a.parquet is not a whole Parquet file (ValueError: the reason)"),
        ("a.arrow", "", "a.arrow is not a whole Arrow file (ValueError: the reason)"),
        ("a.csv", "a,b\n1,2\n", "can't read a.csv (ValueError: the reason)"),
        ("a.jsonl", '{"a": 1}\n', "can't read a.jsonl (ValueError: the reason)"),
    ],
)
def test_an_error_is_explained_by_the_first_line_that_does_not_fit(
    tmp_path, monkeypatch, name, content, reason
):
    monkeypatch.chdir(tmp_path)
    path = Path(name)
    path.write_text(content)
    said = explain(path, kind_of(path), "utf-8", ValueError("the reason\nand more"))
    assert said.startswith(reason)
    assert len(said.splitlines()) == 1


def test_quotes_mean_nothing_in_a_tsv_that_is_explained(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"open\t1\nb\t2\t3\n')
    said = explain(path, "csv", "utf-8", ValueError("the reason"))
    assert f"{path} is not a table: line 3 has 3 columns" in said
