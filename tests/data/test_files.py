"""Kinds of files by their endings."""

from pathlib import Path

import pytest

from tests.helpers.complaints import complaint
from tlite.data.files import KINDS, find, kind_of, locate


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


def test_a_file_is_found_here_and_then_in_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TLITE_DATA", str(tmp_path / "data"))
    message = complaint(find, "set/a.csv")
    assert message.startswith("there is no file set/a.csv")
    assert str(tmp_path / "data") in message
    for folder in (tmp_path / "data", tmp_path):
        (folder / "set").mkdir(parents=True)
        (folder / "set" / "a.csv").touch()
        assert find("set/a.csv").resolve() == folder / "set" / "a.csv"
        assert locate("set/a.csv") == str(folder / "set" / "a.csv")


def test_what_has_moved_is_found_in_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TLITE_DATA", str(tmp_path))
    assert locate("/gone/corpora/mine") == "/gone/corpora/mine"
    assert "name the folder that it is in now by TLITE_DATA" in complaint(find, "/gone/a.csv")
    (tmp_path / "mine").mkdir()
    assert locate("/gone/corpora/mine") == str(tmp_path / "mine")
    assert locate("/gone/corpora/mine", in_data=False) == "/gone/corpora/mine"
