"""Sources of text: what they load, and what a bad file is called."""

import pytest

from tlite.data import BuiltinText, TextFile, TinyShakespeare
from tlite.errors import UserError

TEXT = "Grüße,\n\nKönig 𝄞\n"


def load(path, content):
    path.write_bytes(content)
    return TextFile(str(path)).load()


def test_the_builtin_text_is_long_and_always_the_same():
    text = BuiltinText().load()
    assert len(text) > 400_000
    assert text == BuiltinText().load()


def test_tiny_shakespeare_is_the_known_file(data_folder, monkeypatch):
    monkeypatch.setenv("TLITE_DATA", str(data_folder))
    text = TinyShakespeare().load()
    assert len(text) == 1_115_394
    assert len(set(text)) == 65


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_a_byte_order_mark_make_no_difference(tmp_path, line_end, mark):
    assert load(tmp_path / "a.txt", (mark + TEXT.replace("\n", line_end)).encode()) == TEXT


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"there is no file .*missing\.txt: .* TLITE_DATA"):
        TextFile(str(tmp_path / "missing.txt")).load()


def test_a_source_says_where_it_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TLITE_DATA", str(tmp_path))
    (tmp_path / "a.txt").touch()
    assert TextFile("a.txt").reads("training") == [str(tmp_path / "a.txt")]
    assert TinyShakespeare().reads("training") == [TinyShakespeare.url]
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare/tiny_shakespeare.txt.gz").touch()
    file = str(tmp_path / "shakespeare/tiny_shakespeare.txt.gz")
    assert TinyShakespeare().reads("training") == [file]


def test_without_a_path_the_option_is_named():
    with pytest.raises(UserError, match="--path"):
        TextFile().load()
