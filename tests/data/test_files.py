"""Kinds of files by their endings, and what is wrong with one that is not what it promises."""

from pathlib import Path

import pytest

from tlite.data.files import KINDS, explain, follow, kind_of, locate
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


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", '{"a": 1}\n{}\nx\n', "a.jsonl is not JSON Lines: line 3 is not a JSON object"),
        ("a.jsonl", '{"a": 1}\n\nx\n', "a.jsonl is not JSON Lines: line 3 is not a JSON object"),
        ("a.jsonl", '{"a": 1}\n"x"', "a.jsonl is not JSON Lines: line 2 is not a JSON object"),
        ("a.csv", "a,b\n1,2\n1,2,3\n", "a.csv is not a table: line 3 has 3 columns, not 2"),
        ("a.csv", 'a,b\n"1\n,,",2\n,,\n', "a.csv is not a table: line 4 has 3 columns"),
        ("a.tsv", "a\tb\n1,1,1\t2\n1\t2\t3\n", "a.tsv is not a table: line 3 has 3 columns"),
        (
            "a.jsonl",
            '{"a": "\\ud800"}',
            "a.jsonl is not JSON Lines: line 1 has half",
        ),
        ("a.jsonl", "{}\n" + "[" * 9999, "a.jsonl is not JSON Lines: line 2 is nested too deeply"),
        (
            "a.csv",
            'a,b\n1,2\n"1,2\n3,4\n',
            "a.csv is not a table: the quotation mark in line 3",
        ),
        ("a.csv", f"a,b\n{'x' * 200_000},2\n1,2,3\n", "a.csv is not a table: line 3 has 3 columns"),
        ("a.csv", "\n \n", "a.csv is empty"),
        ("a.parquet", "", "a.parquet is not a whole Parquet file"),
        ("a.arrow", "", "a.arrow is not a whole Arrow file"),
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


def test_what_is_gone_is_found_by_its_last_parts_but_never_where_the_run_lies(tmp_path):
    run = tmp_path / "runs" / "saved" / "1"
    run.mkdir(parents=True)
    (tmp_path / "saved").mkdir()
    around = tuple(run.resolve().parents)
    assert locate("/gone/saved", around, in_data=False) == str(tmp_path / "saved")
    assert locate("/gone/runs/saved", around, in_data=False) == str(tmp_path / "saved")
    assert locate("saved", (tmp_path / "runs" / "saved", tmp_path), in_data=False) == str(
        tmp_path / "saved"
    )


@pytest.mark.parametrize(
    ("name", "before", "after", "found"),
    [
        ("/a/test.csv", "/a/train.csv", "/b/train.csv", "/b/test.csv"),
        ("/a/x/test.csv", "/a/y/train.csv", "/b/c/y/train.csv", "/b/c/x/test.csv"),
        ("/z/test.csv", "/a/train.csv", "/b/train.csv", "/z/test.csv"),
        ("/a/test.csv", "/a/train.csv", "/a/train.csv", "/a/test.csv"),
    ],
)
def test_a_file_follows_another_that_has_moved(name, before, after, found):
    assert follow(name, before, after) == found
