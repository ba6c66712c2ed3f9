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
    data = LabelledText(path=table("a.csv"), split_by="text").found()
    assert (data.text_column, data.label_column, data.classes) == (
        "review",
        "stars",
        ["neg", "pos"],
    )
    parts = [classes(data, part) for part in ("training", "validation")]
    assert sorted(parts[0] + parts[1]) == sorted(TEXTS)
    assert all(parts)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "text: 'review', class: 'stars' (neg, pos)"
    negative = sum(label == "neg" for _, label in parts[0])
    assert out[1].startswith(f"training texts of each class: neg: {negative}, pos: ")


def test_where_so_few_texts_differ_that_none_is_held_out_it_is_said_what_to_do():
    data = LabelledText(path=table("a.csv", TEXTS[:2] * 30), split_by="text").found()
    assert "--validation-fraction, or a file of its own" in complaint(data.examples, "validation")


def test_what_was_found_is_kept_and_found_again_without_looking(capsys):
    data = LabelledText(path=table("a.csv")).found()
    capsys.readouterr()
    again = from_dict(LabelledText, json.loads(json.dumps(to_dict(data))))
    assert again == data == again.found()
    assert capsys.readouterr().out == ""


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


@pytest.mark.parametrize("first", ["so fine\tgood", "this is 1, and long\tgood"])
def test_a_table_without_a_known_name_asks_and_the_names_that_it_prints_work(first, capsys):
    rows = [first, *(f"{text}\t{label}" for text, label in TEXTS)]
    Path("a.tsv").write_text("".join(f"{row}\n" for row in rows))
    told = complaint(LabelledText(path="a.tsv").found)
    assert "only 'column 1', 'column 2': say --text-column" in told
    text, label = first.split("\t")
    assert f"is a row: column 1 {text!r}, column 2 {label!r}" in capsys.readouterr().out
    named = {"text_column": "column 1", "label_column": "column 2"}
    data = LabelledText(path="a.tsv", **named).found()
    assert len([*classes(data), *classes(data, "validation")]) == len(rows)
    assert LabelledText(path="a.tsv", text_column="column 1").found().labels == data.labels
    data = LabelledText(path="a.tsv", text_column=text, label_column=label).found()  # no row
    assert len([*classes(data), *classes(data, "validation")]) == len(rows) - 1
    texts = TextFile("a.tsv", text_column="column 1")
    assert texts.load() == texts.found().load() == "\n".join(row.split("\t")[0] for row in rows)


@pytest.mark.parametrize("given", [{}, {"source_column": "column 1", "target_column": "column 2"}])
@pytest.mark.parametrize("first", ["hello\tbonjour", "A man sleeps.\tUn homme dort."])
def test_of_two_columns_without_known_names_the_first_is_the_source(first, given, capsys):
    Path("a.tsv").write_text(f"{first}\n" + "one day\tun jour\n" * 9)
    data = ParallelText(path="a.tsv", validation_fraction=0.5, **given).found()
    pairs = [*data.pairs("training"), *data.pairs("validation")]
    assert len(pairs) == 10
    assert pairs[0][:2] == tuple(first.split("\t"))
    told = capsys.readouterr().out
    how = "source: 'column 1', target: 'column 2', as of two columns the first is the source\n"
    assert told.endswith(how) != bool(given)


def test_a_column_that_a_first_line_without_known_names_has_not_is_told():
    Path("a.tsv").write_text("hello\tbonjour\n")
    told = complaint(ParallelText(path="a.tsv", source_column="en").found)
    assert "no column 'en': it has hello, bonjour, column 1, column 2" in told


def test_rows_without_a_text_or_a_class_are_left_out_and_told(capsys):
    rows = [*TEXTS, ("lost", ""), ("", "pos"), ("  ", "neg")]
    data = LabelledText(path=table("a.csv", rows), validation=(table("b.csv"),)).found()
    assert "texts left out: 1, without a class\n" in capsys.readouterr().out
    examples = data.examples("training")
    assert [e.text for e in examples if e.label is None] == ["lost", "", "  "]


def test_a_class_that_only_the_validation_part_has_is_left_out_and_told(capsys):
    data = LabelledText(path=table("a.csv"), validation=(table("b.csv", [*TEXTS, ("x", "odd")]),))
    data = data.found()
    assert data.classes == ["neg", "pos"]
    assert "or one that no training text has (odd)" in capsys.readouterr().out
    assert data.examples("validation")[-1].label is None


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (
            [(f"text {i}", f"id{i}") for i in range(40)],
            "text,label",
            "'label' has 36 different values",
        ),
        (
            [(f"text {i}", f"id{i}") for i in range(40)],
            "text,name",
            "'name' has 36 different values",
        ),
        ([], "text,label", "the training part has no rows"),
    ],
)
def test_a_table_that_cannot_be_is_refused(rows, header, message):
    data = LabelledText(path=table("a.csv", rows, header))
    assert message in complaint(data.found)


def test_a_mark_of_the_byte_order_is_no_part_of_a_name():
    name = table("a.csv")
    Path(name).write_bytes(b"\xef\xbb\xbf" + Path(name).read_bytes())
    assert LabelledText(path=name).found().text_column == "review"


def test_another_encoding_is_told_and_can_be_named():
    Path("a.csv").write_bytes(
        "".join(f"{t} é,{v}\n" for t, v in [("text", "label"), *TEXTS]).encode("latin-1")
    )
    assert "--encoding" in complaint(LabelledText(path="a.csv").found)
    assert LabelledText(path="a.csv", encoding="latin-1").found().classes == ["neg", "pos"]


def test_columns_that_are_named_are_needed():
    data = LabelledText(path=table("a.csv"), text_column="body")
    assert complaint(data.found).endswith("a.csv has no column 'body': it has review, stars")


def test_a_path_and_files_are_not_both_given():
    assert "not both" in complaint(LabelledText(path="a.csv", training=("b.csv",)).found)


def test_a_folder_of_no_tables_and_splits_without_training_are_told():
    Path("empty").mkdir()
    assert "neither a folder of save_to_disk nor of tables" in complaint(
        LabelledText(path="empty").found
    )
    datasets.DatasetDict({"one": as_set(), "two": as_set()}).save_to_disk("odd")
    assert "has the splits one, two" in complaint(LabelledText(path="odd").found)


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


PAIRS = [(f"Number {i} sleeps.", f"Nummer {i} schläft.") for i in range(40)]


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "nested"])
def test_pairs_are_found_and_told(kind, capsys):
    if kind == "tsv":
        Path("a.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    elif kind == "jsonl":
        Path("a.jsonl").write_text("".join(json.dumps({"en": a, "de": b}) + "\n" for a, b in PAIRS))
    else:
        rows = [{"translation": {"en": a, "de": b}} for a, b in PAIRS]
        datasets.Dataset.from_list(rows).save_to_disk("a.nested")
    data = ParallelText(path=f"a.{kind}").found()
    names = "'column 1', target: 'column 2'" if kind == "tsv" else "'en', target: 'de'\n"
    assert f"source: {names}" in capsys.readouterr().out
    found = [(p.source, p.target) for part in ("training", "validation") for p in data.pairs(part)]
    assert sorted(found) == sorted(PAIRS)


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
    assert told.startswith(f"there is no file {tmp_path / name}: if it has moved, name the folder")
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
        Path(name).parent.mkdir(exist_ok=True)
        table(name)
    data = LabelledText(path="train.csv", test=("elsewhere/test.csv",)).located().found()
    Path("elsewhere/test.csv").unlink()
    monkeypatch.setenv("TLITE_DATA", str(tmp_path))
    assert "no file" in complaint(lambda: list(data.located().examples("test")))
    again = LabelledText(training=data.training, test=("test.csv",)).located()
    assert again.test == (str(tmp_path / "test.csv"),)


def test_a_folder_of_tables_is_read_as_its_tables(tmp_path):
    rows = [f"{chr(34) if n % 6 == 0 else ''}text {n}\t{('NA', 'no')[n % 2]}" for n in range(60)]
    content = "\n".join(["review\tstars", *rows]) + "\n"
    (tmp_path / "folder").mkdir()
    for name in ("alone.tsv", "folder/train.tsv"):
        Path(name).write_text(content)
    alone, inside = (LabelledText(path=p).located().found() for p in ("alone.tsv", "folder"))
    assert classes(inside) == classes(alone)
    assert {label for _, label in classes(inside)} == {"NA", "no"}


def test_an_old_run_of_a_table_read_as_text_reads_it_so():
    table("notes.csv")
    assert TextFile("notes.csv").load() == Path("notes.csv").read_text()
