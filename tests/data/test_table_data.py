"""Tables of one's own: parts, columns and classes are found, told, and read from anywhere."""

import json
from pathlib import Path

import pytest

from tests.helpers.complaints import complaint
from tlite.config import from_dict, to_dict
from tlite.data import LabelledText, ParallelText, TextFile

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.usefixtures("alone")

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
    data = LabelledText(path="a.csv", split_by="text").found()
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
    assert again == data == again.found()
    assert capsys.readouterr().out == ""  # it was found without looking


def test_where_so_few_texts_differ_that_none_is_held_out_it_is_said_what_to_do():
    data = LabelledText(path=table("a.csv", TEXTS[:2] * 30), split_by="text").found()
    assert "--validation-fraction, or a file" in complaint(data.examples, "validation")


def test_a_run_of_before_has_its_columns():
    old = {"kind": "LabelledText", "training": ["a"], "text": "body", "label": "stars"}
    data = from_dict(LabelledText, old)
    assert (data.text_column, data.label_column) == ("body", "stars")
    data = from_dict(ParallelText, {"kind": "ParallelText", "source": "en", "target": "de"})
    assert (data.source_column, data.target_column) == ("en", "de")


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
    data = LabelledText(path="a.parquet" if kind == "parquet" else "a").found()
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
        LabelledText(path="a.csv").found
    )
    named = LabelledText(path="a.csv", columns=("text", "label")).found()
    assert len([*classes(named), *classes(named, "validation")]) == len(TEXTS)
    data = ParallelText(path="a.csv", validation_fraction=0.5).found()
    told = capsys.readouterr().out.splitlines()[-1]
    assert told.startswith(f"source: {TEXTS[0][0]!r}, target: {TEXTS[0][1]!r} (--columns, if")
    assert len(data.pairs("training")) == 30


def test_rows_without_a_text_or_a_known_class_are_left_out_and_told(capsys):
    rows = [*TEXTS, ("lost", ""), ("", "pos"), ("  ", "neg")]
    others = table("b.csv", [*TEXTS, ("x", "odd")])
    data = LabelledText(path=table("a.csv", rows), validation=(others,)).found()
    told = "texts left out: 2, without a class, or one that no training text has (odd)\n"
    assert capsys.readouterr().out.endswith(told)
    assert data.classes == ["neg", "pos"]
    assert [e.text for e in data.examples("training") if e.label is None] == ["lost", "", "  "]
    assert data.examples("validation")[-1].label is None


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([(f"text {i}", i) for i in range(40)], {}, "'stars' has 36 different values"),
        ([], {}, "the training part has no rows"),
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
    assert message in complaint(LabelledText(**{"path": "a.csv"} | settings).found)


def test_copies_of_a_text_are_on_one_side_wherever_they_stand():
    rows = [(f"text {i % 20}", "ab"[i % 2]) for i in range(100)]
    data = LabelledText(
        path=table("a.csv", rows, "text,label"), split_by="text", validation_fraction=0.3
    )
    training, validation = (
        {e.text for e in data.found().examples(p)} for p in ("training", "validation")
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
        data = ParallelText(path=path).found()
        assert "source: 'en', target: 'de'" in capsys.readouterr().out
        parts = [data.pairs(part) for part in ("training", "validation")]
        assert sorted((p.source, p.target) for part in parts for p in part) == sorted(pairs)
    assert "together" in complaint(ParallelText(path="a.jsonl", source_column="de").found)


@pytest.mark.parametrize("kind", ["csv", "saved"])
def test_the_texts_of_a_table_are_one_text(kind):
    as_set().save_to_disk("saved")
    data = TextFile(table("a.csv") if kind == "csv" else "saved").found()
    assert data.text_column == ("review" if kind == "csv" else "sentence")
    assert data.load() == "\n".join(text for text, _ in TEXTS)


@pytest.mark.parametrize("name", ["a.csv", "data/a.csv"])
def test_what_was_found_here_is_found_from_elsewhere(name, tmp_path, monkeypatch):
    table(name)
    here = LabelledText(path="a.csv").located().found()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert here.located() == here
    assert len(here.examples("training")) == 54
    (tmp_path / name).rename(tmp_path / "other" / "a.csv")
    told = complaint(here.located().examples, "training")
    assert told.startswith(f"there is no file {tmp_path / name}: if it has moved, ")
    monkeypatch.setenv("TLITE_DATA", str(tmp_path / "other"))
    assert here.located().training == (str(tmp_path / "other" / "a.csv"),)


@pytest.mark.parametrize("labels", [{}, {"pos": "good", "neg": "bad"}], ids=["found", "given"])
def test_lines_of_a_class_and_a_text_have_no_columns(labels, capsys):
    Path("a.txt").write_text("".join(f"{label} {text}\n" for text, label in TEXTS))
    data = LabelledText(path="a.txt", labels=labels).found()
    assert (data.text_column, data.label_column) == ("", "")
    assert data.classes == (["good", "bad"] if labels else ["neg", "pos"])
    told = "" if labels else "class: the first word of a line (neg, pos)"
    assert capsys.readouterr().out.split("\n")[0] == told


def test_a_test_file_that_is_gone_is_not_another_of_its_name(tmp_path, monkeypatch):
    for name in ("train.csv", "elsewhere/test.csv", "test.csv"):
        table(name)
    data = LabelledText(path="train.csv", test=("elsewhere/test.csv",)).located().found()
    Path("elsewhere/test.csv").unlink()
    monkeypatch.setenv("TLITE_DATA", str(tmp_path))
    assert "no file" in complaint(lambda: list(data.located().examples("test")))
    again = LabelledText(training=data.training, test=("test.csv",)).located()
    assert again.test == (str(tmp_path / "test.csv"),)
