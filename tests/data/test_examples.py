"""Labelled texts and pairs: the same from every kind of file, and one sentence on a bad one."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from tests.helpers.complaints import complaint
from tlite.cli import parse
from tlite.data import Example, LabelledText, Pair, ParallelText
from tlite.errors import UserError

pytestmark = pytest.mark.usefixtures("alone")

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
KINDS = [".jsonl", ".json", ".csv", ".tsv", ".txt"]
KINDS += [*(f"{kind}.gz" for kind in KINDS), ".parquet"]


def write(name: str, rows=ROWS) -> str:
    """A file of the kind that its name promises."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [{"text": text, "label": value} for text, value in rows]
    if path.suffix == ".gz":
        plain = Path(write(str(path.with_suffix("")), rows))
        path.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
        plain.unlink()
    elif path.suffix in (".jsonl", ".json"):
        path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    elif path.suffix == ".tsv":
        path.write_text("".join(f"{text}\t{value}\n" for text, value in [("text", "label"), *rows]))
    elif path.suffix == ".txt":
        path.write_text("".join(f"{value} {text}\n" for text, value in rows))
    else:
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    return name


def read(part="training", **settings) -> list[Example]:
    return list(LabelledText(**{"labels": LABELS} | settings).examples(part))


def whole(*names: str, **settings) -> list[Example]:
    """All examples of these files: none is held out where validation files are given."""
    return read(training=names, validation=names, **settings)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_examples(kind, stream):
    assert whole(write("a" + kind), stream=stream) == EXAMPLES


@pytest.mark.parametrize("kind", [".jsonl", ".csv", ".parquet"])
def test_a_text_may_have_lines_and_tabs_where_its_kind_of_file_allows_them(kind):
    rows = [("one\ntwo\r\nthree\tfour", "1"), ("five", "5")]
    assert [(e.text, e.value) for e in whole(write("a" + kind, rows))] == rows


def test_numbers_are_labels_too_and_a_text_that_is_null_is_empty():
    Path("a.jsonl").write_text('{"stars": 5, "body": "fine"}\n{"stars": 1, "body": null}\n')
    found = whole("a.jsonl", text_column="body", label_column="stars")
    assert found == [("fine", "5", 1), ("", "1", None)]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
@pytest.mark.parametrize("kind", [".jsonl", ".csv", ".tsv", ".txt"])
def test_a_text_file_is_read_in_its_encoding(kind, encoding):
    path = Path(write("a" + kind, [("Grüße", "1"), ("café", "5")]))
    path.write_bytes(path.read_text().encode(encoding))
    assert [e.text for e in whole(path.name, encoding=encoding)] == ["Grüße", "café"]


def test_each_part_is_read_from_its_own_files():
    names = {part: (write(f"{part}.txt", [(part, "1")]),) for part in ("training", "validation")}
    for part in names:
        assert read(part, **names) == [(part, "1", 0)]
    assert read("test", test=(write("t.txt", ROWS),)) == EXAMPLES


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_a_set_in_a_folder_is_read_by_its_splits(kind, stream):
    for split, rows in (("train", ROWS), ("test", ROWS[:3])):
        write(f"set/{split}{kind}", rows)
    splits = {"hub": "set", "training": ("train",), "validation": ("train",), "test": ("test",)}
    assert read("training", **splits, stream=stream) == EXAMPLES
    assert read("test", **splits, stream=stream) == EXAMPLES[:3]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fraction", "number"), [(0.1, 1), (0.25, 2), (1 / 3, 3), (0.5, 5)])
def test_the_held_out_part_and_the_rest_are_disjoint_and_complete(fraction, number, stream):
    settings = {"training": (write("a.jsonl"),), "split_by": "row"}
    settings |= {"validation_fraction": fraction, "stream": stream}
    training, held_out = (read(part, **settings) for part in ("training", "validation"))
    assert len(held_out) == number
    assert not set(training) & set(held_out)
    assert sorted([*training, *held_out], key=EXAMPLES.index) == EXAMPLES
    assert training == sorted(training, key=EXAMPLES.index)


def test_several_files_are_held_out_of_as_one():
    names = write("a.txt", ROWS[:4]), write("b.txt", ROWS[4:])
    for part in ("training", "validation"):
        one = read(part, training=(write("c.txt"),), validation_fraction=0.2)
        assert read(part, training=names, validation_fraction=0.2) == one


def test_a_stream_is_read_anew_each_time():
    examples = LabelledText(
        training=(write("a.jsonl"),), validation=("a.jsonl",), labels=LABELS, stream=True
    ).examples("training")
    assert list(examples) == EXAMPLES
    write("a.jsonl", ROWS[:2])
    assert list(examples) == EXAMPLES[:2]


BAD_FILES = [
    ("bad.jsonl", "", "bad.jsonl is empty"),
    ("bad.jsonl", '{"body": "a", "stars": 1}\n', "bad.jsonl has no column 'text': it has body, st"),
    ("bad.jsonl", '{"text": "a", "stars": 1}\n', "bad.jsonl has no column 'label': it has text, s"),
    ("bad.jsonl", '{"text": "b", "label": null}\n', "row 1 of the training part has the label ''"),
    ("bad.csv", "text,label\na,1\nb\n", "row 2 of the training part has the label ''"),
    ("bad.csv", "text,label\n", "the training part has no texts"),
    ("bad.txt", "", "no texts"),
    ("bad.txt", "1 a\n\n2 b\n", "row 2 of the training part has the label '', which is not"),
    ("bad.parquet", "text,label\na,1\n" * 9, "bad.parquet is not a whole Parquet file"),
    ("bad.parquet", "", "bad.parquet is not a whole Parquet file"),
    ("bad.xml.gz", "1 a\n", "bad.xml.gz has none of the endings that are known: .jsonl, "),
    ("bad.txt.gz", "1 a\n", "bad.txt.gz is not a whole gzip file"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("name", "content", "told"), BAD_FILES)
def test_what_is_wrong_with_a_file_is_one_sentence(name, content, told, stream):
    Path(name).write_text(content)
    assert told in complaint(whole, name, stream=stream)


@pytest.mark.parametrize("value", ["x", "01", "1.0"])
def test_a_label_without_a_class_is_refused(value):
    message = complaint(whole, write("a.csv", [("a", value)]), labels={"1": "a", "5": "b"})
    assert f"row 1 of the training part has the label {value!r}" in message


@pytest.mark.parametrize("part", ["training", "validation", "test"])
def test_a_part_that_no_file_is_named_for_is_told_by_its_option(part):
    option = "--test" if part == "test" else "--training"
    assert option in complaint(read, part)


def test_a_share_of_no_text_and_none_that_is_a_share_are_told():
    message = complaint(read, "validation", training=(write("a.txt", ROWS[:3]),))
    assert message.startswith("the validation part has no texts: of so few different ones none")
    assert "--validation-fraction" in message
    for fraction in (0.0, 1.0, -0.5):
        message = complaint(read, training=("a.txt",), validation_fraction=fraction)
        assert f"between 0 and 1, not {fraction}" in message


def test_classes_are_those_of_the_labels_and_without_them_the_option_is_named():
    assert "--labels" in complaint(whole, write("a.csv"), labels={})
    assert "--labels" in complaint(whole, write("a.csv"), labels={"3": ""})
    labels = {"b": "beta", "x": "", "a": "alpha", "c": "beta"}
    assert LabelledText(labels=labels).classes == ["beta", "alpha"]  # in their order


def test_a_split_or_column_that_a_set_does_not_have_is_told():
    write("set/train.jsonl")
    settings = {"hub": "set", "training": ("train",)}
    message = complaint(read, **settings | {"training": ("trian",)})
    assert message.startswith("can't read 'trian' of the set 'set'")
    assert "no column 'body': it has text, label" in complaint(read, **settings, text_column="body")
    assert "'no/where'" in complaint(read, hub="no/where", training=("train",))


def test_labels_are_given_on_the_command_line_as_values_and_classes_in_turn():
    given = ["--labels", "1", "bad", "2", "good", "--text-column", "body"]
    data = parse(LabelledText, given, "tlite")
    assert (data.labels, data.text_column) == ({"1": "bad", "2": "good"}, "body")
    with pytest.raises(UserError):
        parse(LabelledText, ["--labels", "1"], "tlite")


# Pairs of sentences

PAIRS = [
    ("A man sleeps.", "Ein Mann schläft."),
    ("null", "NA"),
    ('"No", he said', "„Nein“, sagte er"),
    (" a space before", "ein Zeichen\u2028mitten drin "),
]


def lines(name: str, sentences) -> str:
    content = "".join(f"{sentence}\n" for sentence in sentences).encode()
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return name


def sides(*names: str) -> tuple[str, ...]:
    """Two text files with a sentence a line."""
    return tuple(map(lines, names, zip(*PAIRS, strict=True)))


def pairs_of(*names: str, **settings) -> list[Pair]:
    """All pairs of these files: none is held out where validation files are given."""
    return ParallelText(training=names, validation=names, **settings).pairs("training")


def texts(pairs) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in pairs]


@pytest.mark.parametrize(
    "names", [("a.en", "a.de"), ("a.txt", "b.txt"), ("a.en.gz", "a.de.gz"), ("a", "b.gz")], ids=str
)
def test_two_text_files_have_a_sentence_a_line(names):
    pairs = pairs_of(*sides(*names), *sides("more.en", "more.de"))
    assert texts(pairs) == 2 * PAIRS
    assert pairs[1].where == f"line 2 of {names[0]} and {names[1]}"


def test_rows_of_a_table_are_pairs():
    names = [lines(f"{n}.tsv", [f"{s}\t{t}" for s, t in [("en", "de"), *PAIRS]]) for n in "ab"]
    pairs = pairs_of(*names, source_column="de", target_column="en")
    assert texts(pairs) == 2 * [(target, source) for source, target in PAIRS]
    assert pairs[-1].where == "row 4 of b.tsv"
    told = complaint(pairs_of, *names, source_column="de", target_column="fr")
    assert told == "a.tsv has no column 'fr': it has en, de"


@pytest.mark.parametrize(
    ("source", "target", "first"),
    [(["a", "", "c", ""], ["a", "b", "c", "d"], 2), (["a", "b", "c"], ["a", "b", " \t"], 3)],
)
def test_pairs_with_an_empty_side_are_left_out_and_told(source, target, first, capsys):
    found = pairs_of(lines("a.en", source), lines("a.de", target))
    pairs = zip(source, target, strict=True)
    assert texts(found) == [pair for pair in pairs if all(map(str.strip, pair))]
    err = capsys.readouterr().err
    assert f"{len(source) - len(found)} of the {len(source)} training pairs are left out" in err
    assert f"the first is line {first} of a.en and a.de" in err


@pytest.mark.parametrize("names", [("a.en",), ("a.en", "a.de", "b.en"), ("a.en", "a.jsonl")])
def test_text_files_that_make_no_pairs_are_told(names):
    for name in names:
        lines(name, ["x"])
    message = complaint(pairs_of, *names)
    assert "text files by twos, a source and its target" in message
    assert message.endswith(", ".join(names))


def test_files_of_different_lengths_or_without_a_line_are_told():
    names = lines("a.en", ["x"] * 1234), lines("a.de", ["y"] * 1233)
    assert complaint(pairs_of, *names) == "a.en has 1,234 lines, but a.de has 1,233"
    names = lines("a.en", []), lines("a.de", [])
    assert "the training part has no sentences" in complaint(pairs_of, *names)
