"""Tables of one's own: rows, columns, parts and classes are found, told, and read from anywhere."""

import dataclasses
import gzip
import itertools
import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.helpers.complaints import complaint
from tlite.config import from_dict, to_dict
from tlite.data import LabelledText, ParallelText, TextFile
from tlite.data.tables import column_of, file_rows, held_out, in_order, pair_columns

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.usefixtures("alone")


# Columns


@pytest.mark.parametrize(
    ("names", "text", "label"),
    [
        (["text", "label"], "text", "label"),
        (["id", "Review", "stars"], "Review", "stars"),
        (["review_body", "text", "label", "stars"], "text", "label"),
        (["said", "Star Rating"], "said", "Star Rating"),
        (["who", "text"], "text", "who"),
    ],
    ids=str,
)
def test_the_text_and_the_class_are_found(names, text, label):
    assert column_of(names, "t", "text") == text
    assert column_of(names, "t", "label", text) == label


@pytest.mark.parametrize(
    ("names", "option"),
    [
        (["review", "comment"], "text"),
        (["said", "meant"], "text"),
        (["text", "stars", "topic"], "label"),
        (["text", "a", "b"], "label"),
        (["text"], "label"),
        (["label"], "text"),
    ],
    ids=str,
)
def test_what_is_not_clear_is_asked_for_by_the_option(names, option):
    told = complaint(lambda: column_of(names, "t", "label", column_of(names, "t", "text")))
    asked = f"say which is the {option} by --{option}-column"
    assert told.startswith(f"t has the columns {', '.join(map(repr, names))}: {asked}")


def test_of_two_columns_the_text_is_the_one_that_is_not_the_class():
    assert column_of(["said", "who"], "t", "text", "who") == "said"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["target", "source"], ("source", "target")),
        (["tgt", "SRC", "n"], ("SRC", "tgt")),
        (["n", "en", "de_at", "note"], ("en", "de_at")),
        (["id", "en", "de"], ("en", "de")),
        (["url", "eng", "german"], None),
        (["idx", "en", "german"], None),
        (["no", "en", "translation"], None),
        (["key", "eng", "zh_hant"], ("eng", "zh_hant")),
        (["mine", "yours"], ("mine", "yours")),
        (["en", "de", "fr"], None),
        (["mine", "yours", "n"], None),
        (["en"], None),
    ],
    ids=str,
)
def test_the_two_sides_are_found_or_asked_for(names, found):
    if found:
        assert pair_columns(names, "t") == found
    else:
        assert "--source-column and --target-column" in complaint(pair_columns, names, "t")


def test_classes_that_are_numbers_are_in_their_order():
    assert in_order(["10", "9", "-1"]) == ["-1", "9", "10"]
    assert in_order(["10", "9", "b"]) == ["10", "9", "b"]


@pytest.mark.parametrize("values", [["2", "nan", "1"], ["1", "1.0", "01", "2"], ["b", "1", "a"]])
def test_class_order_does_not_depend_on_row_order(values):
    assert len({tuple(in_order(order)) for order in itertools.permutations(values)}) == 1


# Rows


def rows_of(content: str, name: str) -> list[dict]:
    Path(name).write_text(content)
    return list(file_rows(Path(name)))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", '{"a": 1}\n\nx\n', "a.jsonl is not JSON Lines: line 3 is not JSON"),
        ("a.jsonl", '{"a": 1}\n"x"', "a.jsonl is not JSON Lines: line 2 is not a JSON object"),
        ("a.jsonl", '{"a": "\\ud800"}', "a.jsonl is not JSON Lines: line 1 is not JSON"),
        ("a.jsonl", "{}\n" + "[" * 9999, "a.jsonl is not JSON Lines: line 2 is not JSON"),
        ("a.csv", "a,b\n1,2\n1,2,3\n", "a.csv is not a table: line 3 has 3 columns, not 2"),
        ("a.csv", 'a,b\n"1\n,,",2\n,,\n', "a.csv is not a table: line 4 has 3 columns"),
        ("a.csv", 'a,b\n1,2\n"1,2\n3,4\n', "a.csv is not a table: from line 3 on, unexpected end"),
        ("a.csv", f"a,b\n{'x' * 200_000},2\n1,2,3\n", "a.csv is not a table: line 3 has 3 columns"),
        ("a.csv", "\n \n", "a.csv is empty"),
        ("a.tsv", 'text\tlabel\n"open\t1\nb\t2\t3\n', "a.tsv is not a table: line 3 has 3 columns"),
        ("a.csv", "a,b\r1,2\r", "a.csv is not a table: from line 1 on, new-line character"),
        ("a.json", '[{"a": 1},\n 2]', "a.json is not a list of JSON objects"),
        ("a.json", "[1", "a.json, a list, is not JSON"),
        ("a.csv", "text,label,text\n1,2,3\n", "a.csv has two columns named 'text'"),
    ],
)
def test_the_first_line_that_does_not_fit_is_told(name, content, reason):
    assert complaint(rows_of, content, name).startswith(reason)


def test_values_are_read_as_they_stand():
    rows = rows_of('a,b\n01,"x ""y""\nz"\n 2,true\n\n,\n3\n', "a.csv")
    assert [*map(tuple, map(dict.values, rows))] == [
        ("01", 'x "y"\nz'), (" 2", "true"), ("", ""), ("3", None)
    ]  # fmt: skip
    assert rows_of('a\tb\n"x\t"\n', "a.tsv") == [{"a": '"x', "b": '"'}]
    assert rows_of('a,b\n5" thick,4"\n', "a.csv") == [{"a": '5" thick', "b": '4"'}]
    assert rows_of(",a\n0,1\n", "a.csv") == [{"": "0", "a": "1"}]
    assert rows_of("a,,\n1,2,3\n", "a.csv")[0]["a"] == "1"  # columns without a name
    for content in ('{"a": 1}\n{"b": "x"}\n', '[{"a": 1},\n{"b": "x"}]\n'):
        assert rows_of(content, "a.json") == [{"a": 1}, {"b": "x"}]


# What is held out


@given(st.integers(0, 300), st.integers(1, 99).map(lambda percent: percent / 100))
@example(100, 0.29)  # in floating point 100 * 0.29 is below 29
def test_the_rows_held_out_and_the_others_are_all_rows_in_their_order(number, fraction):
    held, others = (list(held_out(range(number), fraction, held=h)) for h in (True, False))
    assert sorted(held + others) == list(range(number))
    assert held == sorted(held)
    assert others == sorted(others)
    assert len(held) == int(number * Fraction(str(fraction)))
    distances = {b - a for a, b in itertools.pairwise(held)}
    assert all(abs(distance - 1 / fraction) < 1 for distance in distances)


LABELS = st.lists(st.sampled_from("aaaabbc"), max_size=200) | st.just(["a", "b"] * 100)


@given(LABELS, st.integers(1, 50).map(lambda percent: percent / 100))
def test_each_label_has_its_share_in_validation(labels, fraction):
    path = table("labels.csv", [(f"text {i}", label) for i, label in enumerate(labels)])
    data = LabelledText(training=(path,), text_column="review", label_column="stars")
    data = dataclasses.replace(data, validation_fraction=fraction)
    parts = {part: [*data.rows(part)] for part in ("training", "validation")}
    assert sorted(parts["training"] + parts["validation"]) == sorted(data.all_rows("training"))
    for label, number in Counter(labels).items():
        held = sum(value == label for _, value in parts["validation"])
        assert abs(held - number * fraction) < 1


def test_small_classes_share_the_validation_rows():
    path = table("labels.csv", [(f"text {i}", i % 50) for i in range(200)])  # four of each
    data = LabelledText(training=(path,), text_column="review", label_column="stars")
    assert 15 <= len([*data.rows("validation")]) <= 25
    assert len({label for _, label in data.rows("training")}) == 50


def test_one_label_is_held_out_as_rows_without_label_are():
    rows = [(f"text {i}", "a") for i in range(60)]
    names = {"text_column": "review", "label_column": "stars"}
    data = LabelledText(training=(table("labels.csv", rows),), **names)
    by_row = dataclasses.replace(data, split_by="row")
    assert [*data.rows("validation")] == [*by_row.rows("validation")] == rows[9::10]


def test_labels_that_differ_by_spaces_are_one_class():
    rows = [(f"text {i}", " pos" if i % 2 else "pos") for i in range(20)] + TEXTS
    data = LabelledText(path=table("a.csv", rows)).with_columns()
    assert data.classes == ["neg", "pos"]


def test_rows_are_held_out_as_they_come():
    held = held_out(itertools.count(1), 0.25, held=True)
    assert [next(held) for _ in range(3)] == [4, 8, 12]


# Parts and classes

TEXTS = [
    (f"number {i} is {'good' if i % 3 else 'bad'}", "pos" if i % 3 else "neg") for i in range(60)
]


def table(name: str, rows=TEXTS, header="review,stars") -> str:
    lines = ([header] if header else []) + [f"{text},{label}" for text, label in rows]
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("".join(f"{line}\n" for line in lines))
    return name


def as_set(rows=TEXTS, names=("neg", "pos")):
    """A set whose classes are numbers with names."""
    kinds = {"sentence": datasets.Value("string"), "kind": datasets.ClassLabel(names=names)}
    content = [{"sentence": text, "kind": names.index(label)} for text, label in rows]
    return datasets.Dataset.from_list(content, features=datasets.Features(kinds))


def classes(data: LabelledText, part="training") -> list[tuple[str, str]]:
    return [(e.text, data.classes[e.label]) for e in data.examples(part)]


def test_a_table_is_read_and_told(capsys):
    Path(table("a.csv")).write_bytes(b"\xef\xbb\xbf" + Path("a.csv").read_bytes())
    data = LabelledText(path="a.csv", split_by="text").with_columns()
    assert (data.text_column, data.label_column) == ("review", "stars")
    assert data.classes == ["neg", "pos"]
    parts = [classes(data, part) for part in ("training", "validation")]
    assert sorted(parts[0] + parts[1]) == sorted(TEXTS)
    assert all(parts)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "text: 'review', class: 'stars' (neg, pos)"
    negative = sum(label == "neg" for _, label in parts[0])
    assert out[1].startswith(f"training texts of each class: neg: {negative}, pos: ")
    again = from_dict(LabelledText, json.loads(json.dumps(to_dict(data))))
    assert again == data == again.with_columns()
    assert capsys.readouterr().out == ""  # it was found without looking


def test_where_so_few_texts_differ_that_none_is_held_out_it_is_said_what_to_do():
    data = LabelledText(path=table("a.csv", TEXTS[:2] * 30), split_by="text").with_columns()
    assert "--validation-fraction, or a file" in complaint(data.examples, "validation")


@pytest.mark.parametrize("second", ["train.jsonl", "training.csv", "train-00000-of-00001.csv"])
def test_two_tables_for_one_split_are_refused(second):
    table("data/train.csv")
    (Path("data") / second).write_text("text,label\na,1\n")
    told = complaint(LabelledText(path="data").with_columns)
    assert "train.csv" in told
    assert second in told


def test_all_shards_of_a_split_are_read():
    for number in range(2):
        table(f"data/train-0000{number}-of-00002.csv", TEXTS[number::2])
    table("data/TEST.CSV", TEXTS[:5])
    data = LabelledText(path="data").with_columns()
    rows = [*classes(data), *classes(data, "validation")]
    assert sorted(rows) == sorted(TEXTS)
    assert classes(data, "test") == TEXTS[:5]


@pytest.mark.parametrize("name", ["A.CSV", "A.Csv.GZ"])
def test_the_ending_of_a_table_may_be_upper_case(name):
    content = Path(table("a.csv")).read_bytes()
    Path(name).write_bytes(gzip.compress(content) if name.endswith("GZ") else content)
    assert TextFile(name).with_columns().load() == "\n".join(text for text, _ in TEXTS)


@pytest.mark.parametrize("kind", ["parquet", "saved", "splits", "files"])
def test_names_of_classes_and_splits_are_those_of_the_set(kind):
    one, other = as_set(TEXTS[:40]), as_set(TEXTS[40:])
    if kind == "parquet":
        one.to_parquet("a.parquet")
    elif kind == "saved":
        one.save_to_disk("a")
    elif kind == "splits":
        datasets.DatasetDict({"train": one, "dev": other, "test": other}).save_to_disk("a")
    else:
        Path("a").mkdir()
        one.to_parquet("a/train.parquet")
        other.to_parquet("a/test.parquet")
    data = LabelledText(path="a.parquet" if kind == "parquet" else "a").with_columns()
    assert data.classes == ["neg", "pos"]
    if kind == "splits":
        assert classes(data) == TEXTS[:40]
        assert classes(data, "validation") == TEXTS[40:]
    else:
        assert len(classes(data)) == 36
        assert len(classes(data, "validation")) == 4
    if kind in ("splits", "files"):
        assert classes(data, "test") == TEXTS[40:]
    else:
        assert "--test" in complaint(data.examples, "test")


def test_columns_of_a_table_without_names_are_named(capsys):
    table("a.csv", header="")
    assert "names by --columns, if these are its first row" in complaint(
        LabelledText(path="a.csv").with_columns
    )
    named = LabelledText(path="a.csv", columns=("text", "label")).with_columns()
    assert len([*classes(named), *classes(named, "validation")]) == len(TEXTS)
    data = ParallelText(path="a.csv", validation_fraction=0.5).with_columns()
    told = capsys.readouterr().out.splitlines()[-1]
    assert told.startswith(f"source: {TEXTS[0][0]!r}, target: {TEXTS[0][1]!r} (--columns, if")
    assert len(data.pairs("training")) == 30


def test_rows_without_a_text_or_a_known_class_are_left_out_and_told(capsys):
    rows = [*TEXTS, ("lost", ""), ("", "pos"), ("  ", "neg")]
    others = table("b.csv", [*TEXTS, ("x", "odd")])
    data = LabelledText(path=table("a.csv", rows), validation=(others,)).with_columns()
    told = "texts left out: 2, without a class, or one that no training text has (odd)\n"
    assert capsys.readouterr().out.endswith(told)
    assert data.classes == ["neg", "pos"]
    assert [e.text for e in data.examples("training") if e.label is None] == ["lost", "", "  "]
    assert data.examples("validation")[-1].label is None


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([(f"text {i}", i) for i in range(40)], {}, "'stars' has 40 different values"),
        ([], {}, "a.csv has no rows"),
        (TEXTS, {"text_column": "body"}, "a.csv has no column 'body': it has review, stars"),
        (TEXTS, {"training": ("b.csv",)}, "not both"),
        (TEXTS, {"path": "empty"}, "empty has no table to train on (train.csv, say)"),
        (TEXTS, {"path": "odd"}, "say --hub odd --training SPLIT"),
        ([("é", 1)], {"encoding": "ascii"}, "--encoding names another"),
    ],
)
def test_a_table_that_cannot_be_is_refused(rows, settings, message):
    Path("empty").mkdir()
    datasets.DatasetDict({"one": as_set(), "two": as_set()}).save_to_disk("odd")
    table("a.csv", rows)
    assert message in complaint(LabelledText(**{"path": "a.csv"} | settings).with_columns)


def test_copies_of_a_text_are_on_one_side_wherever_they_stand():
    rows = [(f"text {i % 20}", "ab"[i % 2]) for i in range(100)]
    data = LabelledText(
        path=table("a.csv", rows, "text,label"), split_by="text", validation_fraction=0.3
    )
    training, validation = (
        {e.text for e in data.with_columns().examples(p)} for p in ("training", "validation")
    )
    assert training
    assert validation
    assert not training & validation


def test_pairs_are_found_and_told(capsys):
    pairs = [(f"Number {i} sleeps.", f"Nummer {i} schläft.") for i in range(40)]
    Path("a.jsonl").write_text("".join(json.dumps({"en": a, "de": b}) + "\n" for a, b in pairs))
    rows = [{"translation": {"en": a, "de": b}} for a, b in pairs]
    datasets.Dataset.from_list(rows).save_to_disk("nested")
    for path in ("a.jsonl", "nested"):
        data = ParallelText(path=path).with_columns()
        assert "source: 'en', target: 'de'" in capsys.readouterr().out
        parts = [data.pairs(part) for part in ("training", "validation")]
        assert sorted((p.source, p.target) for part in parts for p in part) == sorted(pairs)
    assert "together" in complaint(ParallelText(path="a.jsonl", source_column="de").with_columns)


@pytest.mark.parametrize("kind", ["csv", "saved"])
def test_the_texts_of_a_table_are_one_text(kind):
    as_set().save_to_disk("saved")
    data = TextFile(table("a.csv") if kind == "csv" else "saved").with_columns()
    assert data.text_column == ("review" if kind == "csv" else "sentence")
    assert data.load() == "\n".join(text for text, _ in TEXTS)


@pytest.mark.parametrize("name", ["a.csv", "data/a.csv"])
def test_located_data_is_read_from_any_folder(name, tmp_path, monkeypatch):
    table(name)
    here = LabelledText(path="a.csv").with_absolute_paths().with_columns()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert here.with_absolute_paths() == here
    assert len([*here.examples("training"), *here.examples("validation")]) == len(TEXTS)
    (tmp_path / name).rename(tmp_path / "other" / "a.csv")
    told = complaint(here.with_absolute_paths().examples, "training")
    assert told.startswith(f"there is no file {tmp_path / name}: if it has moved, ")


@pytest.mark.parametrize("kind", [LabelledText, ParallelText, TextFile])
def test_an_absolute_path_is_never_replaced_by_a_namesake(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("TLITE_DATA", str(tmp_path))
    table("train.csv")
    assert kind(path="/home/me/my_reviews/train.csv").with_absolute_paths().path == (
        "/home/me/my_reviews/train.csv"
    )


@pytest.mark.parametrize("labels", [{}, {"pos": "good", "neg": "bad"}], ids=["found", "given"])
def test_lines_of_a_class_and_a_text_have_no_columns(labels, capsys):
    Path("a.txt").write_text("".join(f"{label} {text}\n" for text, label in TEXTS))
    data = LabelledText(path="a.txt", labels=labels).with_columns()
    assert (data.text_column, data.label_column) == ("", "")
    assert data.classes == (["good", "bad"] if labels else ["neg", "pos"])
    told = "" if labels else "class: the first word of a line (neg, pos)"
    assert capsys.readouterr().out.split("\n")[0] == told


def test_a_test_file_that_is_gone_is_not_another_of_its_name(tmp_path, monkeypatch):
    for name in ("train.csv", "elsewhere/test.csv", "test.csv"):
        table(name)
    data = (
        LabelledText(path="train.csv", test=("elsewhere/test.csv",))
        .with_absolute_paths()
        .with_columns()
    )
    Path("elsewhere/test.csv").unlink()
    monkeypatch.setenv("TLITE_DATA", str(tmp_path))
    for moved in (False, True):
        assert "no file" in complaint(
            lambda m=moved: list(data.with_absolute_paths(m).examples("test"))
        )
