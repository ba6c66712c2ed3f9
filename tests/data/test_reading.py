"""Reading of files: lines, encodings, limits and paths."""

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
    data_folder,
    find,
    format_of,
    is_table,
    iter_bytes,
    locate,
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
    "a\u2028b\x85c\x0cd\x1ce\rü𝄞\n": ["a\u2028b\x85c\x0cd\x1ce\rü𝄞"],
}


def readers(path: Path) -> list:
    """Return all functions that read a text file, and their arguments."""
    pairs = ParallelText(training=(str(path), str(path)))
    return [
        (read_text, path),
        (read_lines, path),
        (TextFile(str(path)).load,),
        (lambda: list(pairs.split_rows("training")),),
    ]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("content", CONTENTS)
def test_only_line_feeds_end_lines(tmp_path, content, pack, mark):
    """Byte-order marks are removed; a text that is not read by lines has line feeds only."""
    path = tmp_path / ("a.gz" if pack is gzip.compress else "a")
    path.write_bytes(pack((mark + content).encode()))
    assert read_lines(path) == CONTENTS[content]
    assert TextFile(str(path)).load() == content.replace("\r\n", "\n").replace("\r", "\n")


def test_unknown_encoding_or_the_line_in_another_is_named(tmp_path):
    for line in (1, 2, 40):
        (tmp_path / "a").write_bytes(b"ok\n" * (line - 1) + b"caf\xe9\n" + b"\xe9\n")
        message = complaint(read_lines, tmp_path / "a", "utf-8")
        assert f"line {line} has the byte 0xe9 (--encoding sets" in message
    for encoding in ("klingon", "hex", "a\0b", "undefined"):
        message = complaint(read_lines, tmp_path / "a", encoding)
        assert message == f"there is no encoding {encoding!r}"


PACKED = gzip.compress(b"some lines\n" * 99, mtime=0)


@pytest.mark.parametrize(
    "content",
    [PACKED[:-9], PACKED[:4], PACKED[:15] + b"\xff" * 9 + PACKED[24:], b"some lines\n"],
    ids=["truncated", "header only", "damaged", "not gzip"],
)
def test_damaged_gzip_is_an_error(tmp_path, content):
    path = tmp_path / "bad.txt.gz"
    path.write_bytes(content)
    for reader, *arguments in readers(path):
        assert complaint(reader, *arguments) == f"{path} is not a complete gzip file"


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
def test_other_than_regular_files_are_not_read(tmp_path, monkeypatch, name, reason):
    monkeypatch.chdir(tmp_path)
    os.symlink("loop", "loop")
    os.mkdir("folder")
    os.mkfifo("pipe")
    for reader, *arguments in readers(Path(name))[: 4 if "it is" in reason else 2]:
        assert reason in complaint(reader, *arguments)
    assert "can't be the name of a file" in complaint(find, "a\0b")


def test_a_bomb_is_stopped_at_the_limit_in_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("tlite.data.reading.MAX_MEGABYTES", 3)
    path, table = tmp_path / "bomb.txt.gz", tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"a line\n")
        for _ in range(64):
            file.write(bytes(MEGABYTE))
    table.hardlink_to(path)
    labelled = [
        LabelledText(training=(str(name),)).split_rows("training") for name in (path, table)
    ]
    tracemalloc.start()
    for reader, *arguments in [*readers(path), *((list, rows) for rows in labelled)]:
        assert "larger than 3 megabytes" in complaint(reader, *arguments)
    assert tracemalloc.get_traced_memory()[1] < 40 * MEGABYTE
    tracemalloc.stop()


def test_file_of_the_limit_is_read_and_one_byte_more_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr("tlite.data.reading.MAX_MEGABYTES", 1)
    path = tmp_path / "a"
    path.write_bytes(b"x" * MEGABYTE)
    assert len(read_text(path)) == MEGABYTE
    path.write_bytes(b"x" * (MEGABYTE + 1))
    assert "larger than 1 megabytes" in complaint(read_text, path)
    assert len(next(text_lines(path, unlimited=True))) == MEGABYTE + 1


def test_standard_input_is_read_up_to_its_first_end(monkeypatch):
    """After a line and Ctrl-D a terminal would wait for another line."""
    answers = iter([b"x" * MEGABYTE, b"a line\n"])
    stdin = SimpleNamespace(buffer=SimpleNamespace(read=lambda size: next(answers)))
    monkeypatch.setattr("sys.stdin", stdin)
    assert b"".join(iter_bytes(None)) == b"x" * MEGABYTE + b"a line\n"
    stdin.buffer.read = bytes
    monkeypatch.setattr("tlite.data.reading.MAX_MEGABYTES", 3)
    assert "standard input is larger than 3 megabytes" in complaint(read_lines, None)


@pytest.mark.parametrize("name", ["a{}", "a{}.gz", "a.b.xml{}", ".hidden{}.GZ", "folder.txt/a{}"])
def test_suffix_before_gz_is_the_format(name):
    for suffix, format in {".csv": "csv", ".TSV": "csv", ".json": "json", ".Txt": "text"}.items():
        path = Path(name.format(suffix))
        assert format_of(path) == format
        assert is_table(path) == (format != "text")
    for suffix in ("", ".xml", ".csv.xml", ".csv.gz.gz", ".zip"):
        assert not is_table(Path(name.format(suffix)))


def test_files_are_searched_here_then_in_the_data_folder(tmp_path, monkeypatch):
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
    monkeypatch.delenv("TLITE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "tlite"
