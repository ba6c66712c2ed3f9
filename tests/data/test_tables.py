"""Tables and lines: formats, columns, classes, splits and paths; errors are one line."""

import csv
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
from tlite.cli import parse
from tlite.config import from_dict, to_dict
from tlite.data import Example, LabelledText, Pair, ParallelText, TextFile
from tlite.data.tables import (
    detect_column,
    detect_pair_columns,
    file_rows,
    hash_split,
    sort_labels,
    stratified_split,
)
from tlite.errors import UserError

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.usefixtures("alone")
SPLITS = "training", "validation"

ROWS = [
    ("Good, “cheap” and quick.", "5"),
    ("null", "1"),
    ("NA", "2"),
    ("", "3"),
    ('"No", he said: it\'s "bad"', "1"),
    (" a space before, two  within, one after ", "4"),
    ("007", "5"),
    ("1e5", "3"),
    ("café ☕\u2028\x85 𝄞", "2"),
    ("True", "4"),
]
LABELS = {"1": "bad", "2": "bad", "3": "", "4": "good", "5": "good"}
EXAMPLES = [
    Example(text, value, {"1": 0, "2": 0, "3": None, "4": 1, "5": 1}[value]) for text, value in ROWS
]
FORMATS = [".jsonl", ".json", ".csv", ".tsv", ".txt"]
FORMATS += [*(f"{suffix}.gz" for suffix in FORMATS), ".parquet"]


def write(name: str, rows=ROWS, columns=("text", "label")) -> str:
    """Write texts and labels in the format of the name's suffix."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    if path.suffix == ".gz":
        plain = Path(write(str(path.with_suffix("")), rows))
        path.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
        plain.unlink()
    elif path.suffix in (".jsonl", ".json"):
        path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))
    elif path.suffix.lower() == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
    elif path.suffix == ".tsv":
        path.write_text("".join(f"{text}\t{value}\n" for text, value in [columns, *rows]))
    elif path.suffix == ".txt":
        path.write_text("".join(f"{value} {text}\n" for text, value in rows))
    else:
        datasets.Dataset.from_list(records).to_parquet(name)
    return name


def read(split="training", **settings) -> list[Example]:
    return list(LabelledText(**{"labels": LABELS} | settings).examples(split))


def read_all(*names: str, **settings) -> list[Example]:
    """Return all examples of files: given validation files, none is split off."""
    return read(training=names, validation=names, **settings)


# Formats


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("suffix", FORMATS)
def test_all_formats_give_the_same_examples(suffix, stream):
    """Formats with quotes or escapes can hold texts of several lines."""
    has_line_ends = not suffix.startswith((".tsv", ".txt"))
    rows = ROWS + [("one\ntwo\r\nthree\tfour", "5")] * has_line_ends
    examples = read_all(write("a" + suffix, rows), stream=stream)
    assert examples[: len(ROWS)] == EXAMPLES
    assert [(e.text, e.value) for e in examples] == rows


def test_numbers_are_labels_and_null_texts_are_empty():
    Path("a.jsonl").write_text('{"stars": 5, "body": "fine"}\n{"stars": 1, "body": null}\n')
    examples = read_all("a.jsonl", text_column="body", label_column="stars")
    assert examples == [("fine", "5", 1), ("", "1", None)]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".txt"])
def test_files_are_read_in_their_encoding(suffix, encoding):
    path = Path(write("a" + suffix, [("Grüße", "1"), ("café", "5")]))
    path.write_bytes(path.read_text().encode(encoding))
    assert [e.text for e in read_all(path.name, encoding=encoding)] == ["Grüße", "café"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_folder_of_a_dataset_is_read_by_its_splits(suffix, stream):
    for split, rows in (("train", ROWS), ("test", ROWS[:3])):
        write(f"set/{split}{suffix}", rows)
    splits = {"hub": "set", "training": ("train",), "validation": ("train",), "test": ("test",)}
    assert read("training", **splits, stream=stream) == EXAMPLES
    assert read("test", **splits, stream=stream) == EXAMPLES[:3]


def test_subset_of_a_hub_dataset_is_read(monkeypatch):
    rows = datasets.Dataset.from_list([{"text": t, "label": v} for t, v in ROWS])
    calls = {("glue", "sst2", "train"): rows}
    load = lambda name, subset, split, streaming: calls[name, subset, split]  # noqa: E731
    monkeypatch.setattr(datasets, "load_dataset", load)
    settings = {"training": ("train",), "validation": ("train",)}
    assert read(hub="glue", subset="sst2", **settings) == EXAMPLES


def rows_of(content: str, name: str) -> list[dict]:
    Path(name).write_text(content)
    return list(file_rows(Path(name)))


def test_cells_are_read_literally():
    rows = rows_of('a,b\n01,"x ""y""\nz"\n 2,true\n\n,\n3\n', "a.csv")
    assert [*map(tuple, map(dict.values, rows))] == [
        ("01", 'x "y"\nz'), (" 2", "true"), ("", ""), ("3", None)
    ]  # fmt: skip
    assert rows_of('a\tb\n"x\t"\n', "a.tsv") == [{"a": '"x', "b": '"'}]
    assert rows_of('a,b\n5" thick,4"\n', "a.csv") == [{"a": '5" thick', "b": '4"'}]
    assert rows_of(",a\n0,1\n", "a.csv") == [{"": "0", "a": "1"}]
    assert rows_of("a,,\n1,2,3\n", "a.csv")[0]["a"] == "1"  # columns without a name
    for mark in ";\t":  # the delimiter
        content = f'a{mark}b\n"x{mark}y"{mark}2,3\n'
        assert rows_of(content, "a.csv") == [{"a": f"x{mark}y", "b": "2,3"}]
    for content in ('{"a": 1}\n{"b": "x"}\n', '[{"a": 1},\n{"b": "x"}]\n'):
        assert rows_of(content, "a.json") == [{"a": 1}, {"b": "x"}]


BAD_FILES = [
    ("a.jsonl", "", "a.jsonl is empty"),
    ("a.jsonl", '{"text": "a", "label": 1}\n\nx\n', "not JSON Lines: line 3 is not JSON"),
    ("a.json", '[{"text": "a", "label": 1},\n 2]', "a.json is not a list of JSON objects"),
    ("a.jsonl", '{"text": "\\ud800", "label": 1}\n', "not JSON Lines: line 1 is not JSON"),
    ("a.json", "[" * 99_999, "a.json, a list, is not JSON"),
    ("a.jsonl", '{"body": "a", "stars": 1}\n', "a.jsonl has no column 'text': it has body, stars"),
    ("a.jsonl", '{"text": "b", "label": null}\n', "row 1 of the training split has the label ''"),
    ("a.csv", "text,label\na,1\n1,2,3\n", "a.csv is not a table: line 3 has 3 columns, not 2"),
    ("a.csv", 'text,label\n"1\n,,",2\n,,\n', "a.csv is not a table: line 4 has 3 columns"),
    ("a.csv", 'text,label\na,2\n"1,2\n3,4\n', "not a table: from line 3 on, unexpected end"),
    ("a.csv", f"text,label\n{'x' * 200_000},2\n1,2,3\n", "not a table: line 3 has 3 columns"),
    ("a.csv", "text,label\r1,2\r", "not a table: from line 1 on, new-line character"),
    ("a.csv", "\n \n", "a.csv has no columns in its first line"),
    ("a.csv", "", "a.csv is empty"),
    ("a.csv", "text,label,text\n1,2,3\n", "a.csv has two columns named 'text'"),
    ("a.csv", "text,label\na,01\n", "row 1 of the training split has the label '01'"),
    ("a.csv", "text,label\n", "the training split has no texts"),
    ("a.tsv", 'text\tlabel\n"open\t1\nb\t2\t3\n', "not a table: line 3 has 3 columns"),
    ("a.txt", "", "no texts"),
    ("a.txt", "1 a\nx c\n2 b\n", "row 2 of the training split has the label 'x', which is not"),
    ("a.parquet", "text,label\na,1\n" * 9, "a.parquet is not a complete Parquet file"),
    ("a.xml.gz", "1 a\n", "a.xml.gz has none of the endings that are known: .jsonl, "),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES, ids=itertools.count())
def test_first_fault_of_a_file_is_named(name, content, message, stream):
    Path(name).write_text(content)
    assert message in complaint(read_all, name, stream=stream)


# Columns and classes


@pytest.mark.parametrize(
    ("names", "expected"),  # columns of texts and labels, or the option that is needed
    [
        (["text", "label"], ("text", "label")),
        (["id", "Review", "stars"], ("Review", "stars")),
        (["review_body", "text", "label", "stars"], ("text", "label")),
        (["said", "Star Rating"], ("said", "Star Rating")),
        (["who", "text"], ("text", "who")),
        (["review", "comment"], "text"),
        (["said", "meant"], "text"),
        (["text", "stars", "topic"], "label"),
        (["text", "a", "b"], "label"),
        (["text"], "label"),
        (["label"], "text"),
    ],
    ids=str,
)
def test_columns_are_detected_or_an_error_with_the_option(names, expected):
    def detect():
        text = detect_column(names, "t", "text")
        return text, detect_column(names, "t", "label", text)

    if isinstance(expected, tuple):
        assert detect() == expected
        assert detect_column(names, "t", "text", expected[1]) == expected[0]
        return
    message, columns = complaint(detect), ", ".join(map(repr, names))
    assert f"t has the columns {columns}: name that of the {expected}" in message
    assert f"--{expected}-column" in message


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["target", "source"], ("source", "target")),
        (["tgt", "SRC", "n"], ("SRC", "tgt")),
        (["n", "en", "de_at", "note"], ("en", "de_at")),
        (["id", "en", "de"], ("en", "de")),
        (["url", "eng", "german"], None),
        (["no", "en", "translation"], None),
        (["key", "eng", "zh_hant"], ("eng", "zh_hant")),
        (["mine", "yours"], ("mine", "yours")),
        (["en", "de", "fr"], None),
        (["en"], None),
    ],
    ids=str,
)
def test_columns_of_pairs_are_detected_or_an_error(names, expected):
    if expected:
        assert detect_pair_columns(names, "t") == expected
    else:
        assert "--source-column and --target" in complaint(detect_pair_columns, names, "t")


TEXTS = [
    (f"number {i} is {'good' if i % 3 else 'bad'}", "pos" if i % 3 else "neg") for i in range(60)
]


def table(name: str, rows=TEXTS) -> str:
    return write(name, rows, ("review", "stars"))


def as_dataset(rows=TEXTS, names=("neg", "pos")):
    """Return a data set whose classes are numbers with names."""
    types = {"sentence": datasets.Value("string"), "kind": datasets.ClassLabel(names=names)}
    content = [{"sentence": text, "kind": names.index(label)} for text, label in rows]
    return datasets.Dataset.from_list(content, features=datasets.Features(types))


def classes(data: LabelledText, split="training") -> list[tuple[str, str]]:
    return [(e.text, data.classes[e.label]) for e in data.examples(split)]


def test_detected_columns_and_classes_are_printed_once(capsys):
    Path(table("a.csv")).write_bytes(b"\xef\xbb\xbf" + Path("a.csv").read_bytes())
    data = LabelledText(path="a.csv", split_by="text").with_columns()
    assert (data.text_column, data.label_column) == ("review", "stars")
    assert data.classes == ["neg", "pos"]
    splits = [classes(data, split) for split in SPLITS]
    assert sorted(splits[0] + splits[1]) == sorted(TEXTS)
    assert all(splits)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "text: 'review', class: 'stars' (neg, pos)"
    negative = sum(label == "neg" for _, label in splits[0])
    assert out[1].startswith(f"training texts of each class: neg: {negative}, pos: ")
    again = from_dict(LabelledText, json.loads(json.dumps(to_dict(data))))
    assert again == data == again.with_columns()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("labels", [{}, {"pos": "good", "neg": "bad"}], ids=["detected", "given"])
def test_lines_have_a_class_and_a_text(labels, capsys):
    Path("a.txt").write_text("".join(f"{label} {text}\n" for text, label in TEXTS))
    data = LabelledText(path="a.txt", labels=labels).with_columns()
    assert (data.text_column, data.label_column) == ("", "")
    assert data.classes == (["good", "bad"] if labels else ["neg", "pos"])
    message = "" if labels else "class: the first word of a line (neg, pos)"
    assert capsys.readouterr().out.split("\n")[0] == message


def test_columns_without_names_are_named(capsys):
    write("a.csv", TEXTS[1:], columns=TEXTS[0])
    message = complaint(LabelledText(path="a.csv").with_columns)
    assert "all with --columns, if these are its first row" in message
    named = LabelledText(path="a.csv", columns=("text", "label")).with_columns()
    assert len([*classes(named), *classes(named, "validation")]) == len(TEXTS)
    data = ParallelText(path="a.csv", validation_fraction=0.5).with_columns()
    out = capsys.readouterr().out.splitlines()[-1]
    assert out.startswith(f"source: {TEXTS[0][0]!r}, target: {TEXTS[0][1]!r}")
    assert "--columns" in out
    assert len(data.pairs("training")) == 30


def test_spaces_are_no_class_and_odd_rows_are_left_out(capsys):
    rows = [*TEXTS, ("spaced", " pos"), ("lost", ""), ("", "pos"), ("  ", "neg")]
    others = table("b.csv", [*TEXTS, ("x", "odd")])
    data = LabelledText(path=table("a.csv", rows), validation=(others,)).with_columns()
    warning = capsys.readouterr().err
    assert warning.startswith("warning: 2 texts are left out")
    assert warning.endswith("(odd)\n")
    assert data.classes == ["neg", "pos"]
    assert [e.text for e in data.examples("training") if e.label is None] == ["lost", "", "  "]
    assert data.examples("validation")[-1].label is None


@pytest.mark.parametrize("values", [["2", "nan", "1"], ["1", "1.0", "01", "2"], ["b", "1", "a"]])
def test_class_order_does_not_depend_on_row_order(values):
    assert len({tuple(sort_labels(order)) for order in itertools.permutations(values)}) == 1
    assert sort_labels(["10", "9", "-1"]) == ["-1", "9", "10"]


def test_labels_option_takes_values_and_classes_in_turn():
    words = ["--labels", "1", "bad", "2", "good", "4", "bad", "--text-column", "body"]
    data = parse(LabelledText, words, "tlite")
    assert (data.labels, data.text_column) == ({"1": "bad", "2": "good", "4": "bad"}, "body")
    assert data.classes == ["bad", "good"]
    with pytest.raises(UserError):
        parse(LabelledText, ["--labels", "1"], "tlite")
    assert "--labels" in complaint(read_all, write("a.csv"), labels={"3": ""})


SECOND_TABLES = [  # folder and two names of tables for training
    ("two", "train.csv", "train.jsonl"),
    ("other", "train.csv", "training.csv"),
    ("shard", "train-00000-of-00001.csv", "train.csv"),
]


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([(f"text {i}", i) for i in range(40)], {}, "'stars' has 40 different values"),
        ([], {}, "a.csv has no rows"),
        (TEXTS, {"text_column": "body"}, "a.csv has no column 'body': it has review, stars"),
        (TEXTS, {"training": ("b.csv",)}, "--path excludes --training"),
        (TEXTS, {"path": "empty"}, "empty has no table to train on, such as train.csv"),
        (TEXTS, {"path": "odd"}, "set --hub odd --training SPLIT"),
        (TEXTS, {"hub": "odd", "path": "", "training": ("tow",)}, "can't read 'tow' of the set"),
        *(
            (TEXTS, {"path": name}, f"several training splits, {first}, {second}")
            for name, first, second in SECOND_TABLES
        ),
    ],
)
def test_invalid_tables_are_errors(rows, settings, message):
    Path("empty").mkdir()
    datasets.DatasetDict({"one": as_dataset(), "two": as_dataset()}).save_to_disk("odd")
    table("a.csv", rows)
    for folder, *names in SECOND_TABLES:
        for name in names:
            table(f"{folder}/{name}")
    assert message in complaint(LabelledText(**{"path": "a.csv"} | settings).with_columns)


# Splits


@given(st.integers(0, 300), st.integers(1, 99).map(lambda percent: percent / 100))
@example(100, 0.29)  # in floating point 100 * 0.29 is below 29
def test_splits_are_all_rows_in_order_at_even_distances(number, fraction):
    training, validation = (list(stratified_split(range(number), fraction, s)) for s in SPLITS)
    assert sorted(training + validation) == list(range(number))
    assert (training, validation) == (sorted(training), sorted(validation))
    assert len(validation) == int(number * Fraction(str(fraction)))
    distances = {b - a for a, b in itertools.pairwise(validation)}
    assert all(abs(distance - 1 / fraction) < 1 for distance in distances)


LABEL_LISTS = st.lists(st.sampled_from("aaaabbc"), max_size=200) | st.just(["a", "b"] * 100)


@given(LABEL_LISTS, st.integers(1, 50).map(lambda percent: percent / 100))
def test_each_label_has_its_share_in_validation(labels, fraction):
    path = table("labels.csv", [(f"text {i}", label) for i, label in enumerate(labels)])
    columns = {"text_column": "review", "label_column": "stars"}
    data = LabelledText(training=(path,), validation_fraction=fraction, **columns)
    training, validation = ([*data.rows(split)] for split in SPLITS)
    assert sorted(training + validation) == sorted(data.split_rows("training"))
    for label, number in Counter(labels).items():
        share = sum(value == label for _, value in validation)
        assert abs(share - number * fraction) < 1


def test_small_classes_share_the_validation_rows():
    rows = [(f"text {i}", i % 50) for i in range(200)]  # four of each
    data = LabelledText(path=table("labels.csv", rows)).with_columns()
    assert 15 <= len([*data.rows("validation")]) <= 25
    assert len({label for _, label in data.rows("training")}) == 50


def test_a_label_beside_an_empty_text_alone_is_no_class():
    write("a.csv", [*[("good", "pos"), ("bad", "neg")] * 20, ("", "mixed")])
    write("test.csv", [("good", "pos"), ("", "another")])
    data = LabelledText(training=("a.csv",), test=("test.csv",)).with_columns()
    assert data.classes == ["neg", "pos"]
    assert sum(len(data.examples(split)) for split in SPLITS) == 41
    assert [example.label for example in data.examples("test")] == [1, None]


def test_a_damaged_saved_dataset_is_an_error():
    datasets.DatasetDict({"train": as_dataset()}).save_to_disk("saved")
    Path("saved/dataset_dict.json").write_text("")
    assert "saved" in complaint(LabelledText(path="saved").with_columns)


def test_large_lines_are_streamed(monkeypatch):
    monkeypatch.setattr("tlite.data.reading.MAX_MEGABYTES", 1)
    Path("a.txt").write_text("pos good\nneg bad\n" * 150_000)
    files = {"training": ("a.txt",), "validation": ("a.txt",), "labels": {"pos": "p", "neg": "n"}}
    assert "is larger than 1" in complaint(LabelledText(**files).examples, "training")
    examples = LabelledText(**files, stream=True).examples("training")
    assert sum(example.text == "bad" for example in examples) == 150_000


def test_cells_that_are_no_text_are_errors():
    for cells in ([b"good"] * 9, [["good", "bad"]] * 9):
        rows = datasets.Dataset.from_dict({"text": cells, "label": ["a", "b", "a"] * 3})
        rows.to_parquet("a.parquet")
        for data in (LabelledText(path="a.parquet").with_columns, TextFile("a.parquet").load):
            assert "column 'text' has values of type" in complaint(data)


def test_a_column_of_another_type_may_stand_beside():
    pa = pytest.importorskip("pyarrow")
    maps = pa.array([[("a", "b")]] * 40, pa.map_(pa.string(), pa.string()))
    columns = {"text": ["good", "bad"] * 20, "label": ["pos", "neg"] * 20, "map": maps}
    pa.parquet.write_table(pa.table(columns), "a.parquet")
    assert LabelledText(path="a.parquet").with_columns().classes == ["neg", "pos"]


def test_several_files_are_split_as_one():
    names = write("a.txt", ROWS[:4]), write("b.txt", ROWS[4:])
    for split in SPLITS:
        one = read(split, training=(write("c.txt"),), validation_fraction=0.2)
        assert read(split, training=names, validation_fraction=0.2) == one


def test_copies_of_a_text_are_in_one_split():
    rows = [(f"text {i % 20}", "ab"[i % 2]) for i in range(100)]
    settings = {"split_by": "text", "validation_fraction": 0.3}
    data = LabelledText(path=write("a.csv", rows), **settings).with_columns()
    training, validation = ({e.text for e in data.examples(split)} for split in SPLITS)
    assert training
    assert validation == {text for text, _ in rows} - training != set()


def test_hashes_give_validation_its_share_of_texts():
    for fraction in (0.0, 0.05, 0.4, 1.0):
        number = sum(hash_split(str(i), fraction) == "validation" for i in range(4000))
        assert abs(number - 4000 * fraction) <= 4 * (4000 * fraction * (1 - fraction)) ** 0.5


def test_rows_are_read_lazily_and_streams_again():
    validation = stratified_split(itertools.count(1), 0.25, "validation")
    assert [next(validation) for _ in range(3)] == [4, 8, 12]
    names = (write("a.jsonl"),)
    data = LabelledText(training=names, validation=names, labels=LABELS, stream=True)
    examples = data.examples("training")
    assert list(examples) == EXAMPLES
    write("a.jsonl", ROWS[:2])
    assert list(examples) == EXAMPLES[:2]


@pytest.mark.parametrize("split", ["training", "validation", "test"])
def test_split_without_files_or_rows_is_an_error(split):
    assert f"--{'test' if split == 'test' else 'training'}" in complaint(read, split)
    message = complaint(read, "validation", training=(write("a.txt", ROWS[:3]),))
    assert message.startswith("the validation split has no texts")
    for fraction in (0.0, 1.0, -0.5):
        message = complaint(read, training=("a.txt",), validation_fraction=fraction)
        assert f"between 0 and 1, not {fraction}" in message


def test_all_shards_of_a_split_are_read():
    for number in range(2):
        table(f"data/train-0000{number}-of-00002.csv", TEXTS[number::2])
    table("data/TEST.CSV", TEXTS[:5])
    data = LabelledText(path="data").with_columns()
    assert sorted([*classes(data), *classes(data, "validation")]) == sorted(TEXTS)
    assert classes(data, "test") == TEXTS[:5]


@pytest.mark.parametrize("format", ["a.parquet", "saved", "splits", "files"])
def test_class_and_split_names_of_a_dataset_are_used(format):
    one, other = as_dataset(TEXTS[:40]), as_dataset(TEXTS[40:])
    if format == "saved":
        one.save_to_disk("saved")
    elif format == "splits":
        datasets.DatasetDict({"train": one, "dev": other, "test": other}).save_to_disk("splits")
    else:
        Path("files").mkdir()
        for name, dataset in {"a": one, "files/train": one, "files/test": other}.items():
            dataset.to_parquet(f"{name}.parquet")
    data = LabelledText(path=format).with_columns()
    assert data.classes == ["neg", "pos"]
    if format == "splits":
        assert (classes(data), classes(data, "validation")) == (TEXTS[:40], TEXTS[40:])
    else:
        assert (len(classes(data)), len(classes(data, "validation"))) == (36, 4)
    if format in ("splits", "files"):
        assert classes(data, "test") == TEXTS[40:]
    else:
        assert "--test" in complaint(data.examples, "test")


# Paths


def test_texts_of_a_table_or_saved_dataset_are_one_text():
    as_dataset().save_to_disk("saved")
    for name, column in ((table("A.CSV"), "review"), ("saved", "sentence")):
        data = TextFile(name).with_columns()
        assert data.text_column == column
        assert data.load() == "\n".join(text for text, _ in TEXTS)


def test_rows_without_text_are_counted_on_stderr(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": null}\n{"other": 1}\n')
    assert TextFile("a.jsonl", text_column="text").load() == "one"
    assert capsys.readouterr().err == "warning: 2 of 3 rows have no text\n"


@pytest.mark.parametrize("name", ["a.csv", "data/a.csv"])
def test_absolute_data_is_read_from_any_folder(name, tmp_path, monkeypatch):
    table(name)
    here = LabelledText(path="a.csv").with_absolute_paths().with_columns()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert here.with_absolute_paths() == here
    assert len([*here.examples("training"), *here.examples("validation")]) == len(TEXTS)
    (tmp_path / name).rename(tmp_path / "other" / "a.csv")
    message = complaint(here.with_absolute_paths().examples, "training")
    assert message.startswith(f"there is no file {tmp_path / name}: check the path; if ")


def test_absolute_paths_are_not_replaced_by_namesakes(tmp_path, monkeypatch):
    """Nor is a test file that has moved since a run began: no fingerprint covers it."""
    for name in ("train.csv", "elsewhere/test.csv", "test.csv"):
        table(name)
    data = LabelledText(path="train.csv", test=("elsewhere/test.csv",))
    data = data.with_absolute_paths().with_columns()
    Path("elsewhere/test.csv").unlink()
    monkeypatch.setenv("TLITE_DATA", str(tmp_path))
    for moved in (False, True):
        assert "no file" in complaint(data.with_absolute_paths(moved).examples, "test")
    path = "/home/me/my_reviews/train.csv"
    for kind in (LabelledText, ParallelText, TextFile):
        assert kind(path=path).with_absolute_paths().path == path


# Pairs of sentences

PAIRS = [
    ("A man sleeps.", "Ein Mann schläft."),
    ("null", "NA"),
    ('"No", he said', "„Nein“, sagte er"),
    (" a space before", "ein Zeichen\u2028mitten drin "),
]


def write_lines(name: str, sentences) -> str:
    content = "".join(f"{sentence}\n" for sentence in sentences).encode()
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return name


def read_pairs(*names: str, **settings) -> list[Pair]:
    """Return all pairs of files: given validation files, none is split off."""
    return ParallelText(training=names, validation=names, **settings).pairs("training")


def texts_of(pairs) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in pairs]


@pytest.mark.parametrize(
    "names", [("a.en", "a.de"), ("a.txt", "b.txt"), ("a.en.gz", "a.de.gz"), ("a", "b.gz")], ids=str
)
def test_two_text_files_have_a_sentence_per_line(names):
    sides = 2 * [*zip(*PAIRS, strict=True)]
    pairs = read_pairs(*map(write_lines, [*names, "more.en", "more.de"], sides))
    assert texts_of(pairs) == 2 * PAIRS
    assert pairs[1].where == f"line 2 of {names[0]} and {names[1]}"


def test_rows_of_tables_are_pairs(capsys):
    rows = [("en", "de"), *PAIRS]
    names = [write_lines(f"{n}.tsv", [f"{s}\t{t}" for s, t in rows]) for n in "ab"]
    pairs = read_pairs(*names, source_column="de", target_column="en")
    assert texts_of(pairs) == 2 * [(target, source) for source, target in PAIRS]
    assert pairs[-1].where == "row 4 of b.tsv"
    message = complaint(read_pairs, *names, source_column="de", target_column="fr")
    assert message == "a.tsv has no column 'fr': it has en, de"
    rows = [{"translation": {"en": a, "de": b}} for a, b in PAIRS * 9]
    datasets.Dataset.from_list(rows).save_to_disk("nested")
    data = ParallelText(path="nested").with_columns()
    assert "source: 'en', target: 'de'" in capsys.readouterr().out
    splits = [texts_of(data.pairs(split)) for split in SPLITS]
    assert sorted(splits[0] + splits[1]) == sorted(PAIRS * 9)
    message = complaint(ParallelText(path="a.tsv", source_column="de").with_columns)
    assert "--source-column and --target-column need each other" in message


def test_a_comma_in_a_table_without_a_header_is_text():
    Path("a.csv").write_text("Yes, sir;Jawohl\nGood;Gut\n \nNo, thanks;Nein danke\n")
    pairs = read_pairs("a.csv", columns=("en", "de"), source_column="en", target_column="de")
    assert texts_of(pairs) == [
        ("Yes, sir", "Jawohl"),
        ("Good", "Gut"),
        ("No, thanks", "Nein danke"),
    ]


def test_a_delimiter_is_not_counted_by_empty_lines_in_a_cell():
    Path("a.csv").write_text('label;kind,text\n1,"a\n\nb"\n')
    assert [*file_rows(Path("a.csv"))] == [{"label;kind": "1", "text": "a\n\nb"}]


def test_a_split_of_a_folder_is_named_by_its_file():
    Path("several").mkdir()
    for name in ("train.csv", "dev.csv", "val.csv"):
        Path("several", name).write_text("text,label\na,1\nb,0\n")
    data = LabelledText(path="several", validation=("dev.csv",)).with_splits()
    assert [*map(Path, data.validation)] == [Path("several", "dev.csv")]


def test_unlabelled_lines_beside_a_labelled_table_are_complete():
    """Beside lines with labels they have labels, too."""
    Path("a.csv").write_text("text,label\ngood,1\nbad,0\n")
    Path("more.txt").write_text("Superb sound\nHandle\n")
    table = LabelledText(training=("a.csv",), text_column="text", label_column="label")
    assert [*table.texts("more.txt")] == ["Superb sound", "Handle"]
    lines = LabelledText(training=("more.txt",))
    assert [*lines.texts("more.txt")] == ["sound", ""]


@pytest.mark.parametrize(
    ("source", "target", "first"),
    [(["a", "", "c", ""], ["a", "b", "c", "d"], 2), (["a", "b", "c"], ["a", "b", " \t"], 3)],
)
def test_pairs_with_an_empty_side_are_left_out(source, target, first, capsys):
    pairs = read_pairs(write_lines("a.en", source), write_lines("a.de", target))
    rows = zip(source, target, strict=True)
    assert texts_of(pairs) == [row for row in rows if all(map(str.strip, row))]
    err = capsys.readouterr().err
    assert f"{len(source) - len(pairs)} of the {len(source)} training pairs are left out" in err
    assert f"the first is line {first} of a.en and a.de" in err


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.en": 1}, "tables, or text files in pairs of source and target, not a.en"),
        ({"a.en": 1, "a.de": 1, "b.en": 1}, "not a.en, a.de, b.en"),
        ({"a.en": 1, "a.jsonl": 1}, "not a.en, a.jsonl"),
        ({"a.en": 1234, "a.de": 1233}, "a.en has 1,234 lines, but a.de has 1,233"),
        ({"a.en": 0, "a.de": 0}, "the training split has no sentences"),
    ],
    ids=str,
)
def test_text_files_that_are_not_parallel_are_errors(files, message):
    names = [write_lines(name, ["x"] * number) for name, number in files.items()]
    assert message in complaint(read_pairs, *names)
