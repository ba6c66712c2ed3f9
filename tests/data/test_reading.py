"""Files that are read whole: lines and encodings, what is no file, and how much is read."""

import gzip
import io
import os
import shutil
import socket
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from tests.helpers.complaints import complaint
from tlite.data import LabelledText, ParallelText, TextFile
from tlite.data.reading import MEGABYTE, read_lines, read_text, standard_input, text_lines

CONTENTS = {
    "": [],
    "one": ["one"],
    "one\n": ["one"],
    "one\r\ntwo\r\n": ["one", "two"],
    "one\n\ntwo": ["one", "", "two"],
    "a\u2028b\x85c\x0cd\x1ce\n": ["a\u2028b\x85c\x0cd\x1ce"],
}


def ways(path: Path) -> list:
    """Every way in which a file of one's own is read: the action, and what it is given."""
    table = LabelledText(training=(str(path),), labels={"a": "a"})
    return [
        (read_text, path),
        (read_lines, path),
        (TextFile(str(path)).load,),
        (list, ParallelText(training=(str(path), str(path))).all_rows("training")),
        (table.reads, "training"),
    ]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("content", CONTENTS)
def test_lines_end_at_line_feeds_alone(tmp_path, content, pack):
    path = tmp_path / ("a.gz" if pack is gzip.compress else "a")
    path.write_bytes(pack(content.encode()))
    assert read_lines(path) == CONTENTS[content]


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
    for way, *given in ways(path)[:4]:
        assert complaint(way, *given) == f"{path} is not a whole gzip file"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("n" * 300, "File name too long"),
        ("x/" * 3000, "File name too long"),
        ("a\0b", "can't be the name of a file"),
        ("loop", "Too many levels of symbolic links"),
        ("folder", "it is a directory"),
        ("pipe", "it is a pipe"),
        ("socket", "it is a socket"),
        ("/dev/zero", "it is a device"),
    ],
)
def test_what_is_no_file_is_refused_without_reading(tmp_path, monkeypatch, name, reason):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TLITE_DATA", "data")
    os.symlink("loop", "loop")
    os.mkdir("folder")
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        for way, *given in ways(Path(name)):
            if name == "a\0b" and way == read_text:
                continue  # a path that Python itself would not hold in every version
            assert reason in complaint(way, *given)


@pytest.mark.skipif(not shutil.which("setpriv"), reason="root may read everything")
@pytest.mark.parametrize("name", ["closed", "folder/a.txt"])
def test_what_may_not_be_read_is_told(tmp_path, name):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "closed", tmp_path / "folder" / "a.txt"):
        path.write_text("some text")
    for path in (tmp_path / "closed", tmp_path / "folder"):
        path.chmod(0)
    code = (
        "import sys; from tlite.data.reading import read_text, read_lines, is_there\n"
        "from pathlib import Path\n"
        "for way in (read_text, read_lines):\n"
        "    try: way(Path(sys.argv[1]))\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*drop, sys.executable, "-c", code, str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    told = f"UserError can't read {tmp_path / name}: Permission denied\n"
    assert (done.stdout, done.stderr) == (2 * told, "")
    (tmp_path / "folder").chmod(0o700)


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
    settings = {"training": (str(bomb),), "labels": {"a": "a"}}
    table = bomb.rename(bomb.with_name("bomb.jsonl.gz")).resolve()
    copied = shutil.copy(table, bomb)
    text = LabelledText(**settings)
    tables = LabelledText(**settings | {"training": (str(table),)})
    tracemalloc.start()
    for way, *given in [
        (read_text, copied),
        (read_lines, copied),
        (TextFile(str(copied)).load,),
        (list, text.read("training")),
        (list, tables.read("training")),
        (list, ParallelText(training=(str(copied),) * 2).all_rows("training")),
    ]:
        message = complaint(way, *given)
        assert "larger than 3 megabytes: 1 lines were read so far" in message
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
    class Terminal(io.RawIOBase):
        reads = 0

        def readable(self):
            return True

        def readinto(self, buffer):
            self.reads += 1
            line = b"a line\n" if self.reads == 1 else b""  # then Ctrl-D
            buffer[: len(line)] = line
            return len(line)

    terminal = Terminal()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(terminal)))
    assert b"".join(standard_input()) == b"a line\n"
    assert terminal.reads == 2


def test_standard_input_that_cannot_be_read_is_told(monkeypatch):
    class Broken(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Broken())))
    told = complaint(lambda: list(standard_input()))
    assert told == "can't read standard input: Input/output error"
