"""Files that are read whole: lines and encodings, what is no file, how much is read, and where."""

import gzip
import os
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.complaints import complaint
from tlite.data import LabelledText, ParallelText, TextFile
from tlite.data.reading import (
    MEGABYTE,
    find,
    is_table,
    kind_of,
    locate,
    pieces,
    read_lines,
    read_text,
    text_lines,
)

CONTENTS = {
    "": [],
    "one": ["one"],
    "one\n": ["one"],
    "one\r\ntwo\r\n": ["one", "two"],
    "one\n\ntwo": ["one", "", "two"],
    "a\u2028b\x85c\x0cd\x1ce\n": ["a\u2028b\x85c\x0cd\x1ce"],
}


def ways(path: Path) -> list:
    """Every way in which a text of one's own is read: the action, and what it is given."""
    return [
        (read_text, path),
        (read_lines, path),
        (TextFile(str(path)).load,),
        (list, ParallelText(training=(str(path), str(path))).all_rows("training")),
    ]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("content", CONTENTS)
def test_lines_end_at_line_feeds_alone(tmp_path, content, pack):
    path = tmp_path / ("a.gz" if pack is gzip.compress else "a")
    path.write_bytes(pack(content.encode()))
    assert read_lines(path) == CONTENTS[content]


@pytest.mark.parametrize("line", [1, 2, 40])
def test_the_line_that_is_not_in_the_encoding_is_named(tmp_path, line):
    (tmp_path / "a").write_bytes(b"ok\n" * (line - 1) + b"caf\xe9\n" + b"\xe9\n")
    message = complaint(read_lines, tmp_path / "a", "utf-8")
    assert f"line {line} has the byte 0xe9" in message
    assert "--encoding" in message


@pytest.mark.parametrize("encoding", ["klingon", "hex", "a\0b", "undefined"])
def test_an_encoding_that_does_not_exist_is_named(tmp_path, encoding):
    (tmp_path / "a").write_text("a..b")
    assert complaint(read_lines, tmp_path / "a", encoding) == f"there is no encoding {encoding!r}"


PACKED = gzip.compress(b"some lines\n" * 99, mtime=0)


@pytest.mark.parametrize(
    "content",
    [PACKED[:-9], PACKED[:4], PACKED[:15] + b"\xff" * 9 + PACKED[24:], b"some lines\n"],
    ids=["cut", "no more than a beginning", "damaged", "not gzip"],
)
def test_broken_gzip_is_named(tmp_path, content):
    path = tmp_path / "bad.txt.gz"
    path.write_bytes(content)
    for way, *given in ways(path):
        assert complaint(way, *given) == f"{path} is not a whole gzip file"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("folder", "it is a directory"),
        ("pipe", "it is a pipe"),
        ("/dev/zero", "it is a device"),
        ("missing", "No such file"),
        ("n" * 300, "File name too long"),
        ("loop", "Too many levels of symbolic links"),
    ],
)
def test_what_is_no_file_is_refused_without_reading(tmp_path, monkeypatch, name, reason):
    monkeypatch.chdir(tmp_path)
    os.symlink("loop", "loop")
    os.mkdir("folder")
    os.mkfifo("pipe")
    for way, *given in ways(Path(name))[: 4 if "it is" in reason else 2]:
        assert reason in complaint(way, *given)
    assert "can't be the name of a file" in complaint(find, "a\0b")


@pytest.fixture
def bomb(tmp_path):
    """A line of text and 64 megabytes of zeros, in a file of 64 kilobytes."""
    path = tmp_path / "bomb.txt.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"a line\n")
        for _ in range(64):
            file.write(bytes(MEGABYTE))
    return path


def test_a_bomb_is_stopped_at_the_limit_in_little_memory(bomb, monkeypatch):
    monkeypatch.setattr("tlite.data.reading.MAX_MEGABYTES", 3)
    table = bomb.with_name("bomb.csv.gz")
    table.hardlink_to(bomb)
    labelled = [LabelledText(training=(str(path),)).all_rows("training") for path in (bomb, table)]
    tracemalloc.start()
    for way, *given in [*ways(bomb), *((list, rows) for rows in labelled)]:
        assert "larger than 3 megabytes" in complaint(way, *given)
    assert tracemalloc.get_traced_memory()[1] < 40 * MEGABYTE
    tracemalloc.stop()


def test_a_file_of_the_limit_is_read_and_one_byte_more_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr("tlite.data.reading.MAX_MEGABYTES", 1)
    path = tmp_path / "a"
    path.write_bytes(b"x" * MEGABYTE)
    assert len(read_text(path)) == MEGABYTE
    path.write_bytes(b"x" * (MEGABYTE + 1))
    assert "larger than 1 megabytes" in complaint(read_text, path)
    assert len(next(text_lines(path, any_size=True))) == MEGABYTE + 1


def test_standard_input_is_asked_once_after_its_end(monkeypatch):
    """After a line and Ctrl-D a terminal would wait for another one; what has no end is stopped."""
    answers = iter([b"x" * MEGABYTE, b"a line\n"])
    stdin = SimpleNamespace(buffer=SimpleNamespace(read=lambda size: next(answers)))
    monkeypatch.setattr("sys.stdin", stdin)
    assert b"".join(pieces(None)) == b"x" * MEGABYTE + b"a line\n"
    stdin.buffer.read = bytes
    monkeypatch.setattr("tlite.data.reading.MAX_MEGABYTES", 3)
    assert "standard input is larger than 3 megabytes" in complaint(read_lines, None)


@pytest.mark.parametrize("name", ["a{}", "a{}.gz", "a.b.xml{}", ".hidden{}.GZ", "folder.txt/a{}"])
def test_the_kind_is_decided_by_the_ending_before_gz(name):
    for ending, kind in {".csv": "csv", ".TSV": "csv", ".json": "json", ".Txt": "text"}.items():
        path = Path(name.format(ending))
        assert kind_of(path) == kind
        assert is_table(path) == (kind != "text")
    for ending in ("", ".xml", ".csv.xml", ".csv.gz.gz", ".zip"):
        assert not is_table(Path(name.format(ending)))


def test_a_file_is_found_here_and_then_in_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TLITE_DATA", str(tmp_path / "data"))
    message = complaint(find, "set/a.csv")
    assert message.startswith("there is no file set/a.csv")
    assert message.endswith(f"by TLITE_DATA=FOLDER (now {tmp_path / 'data'})")
    for folder in (tmp_path / "data", tmp_path):
        (folder / "set").mkdir(parents=True)
        (folder / "set" / "a.csv").touch()
        assert find("set/a.csv").resolve() == folder / "set" / "a.csv"
        assert locate("set/a.csv") == str(folder / "set" / "a.csv")
