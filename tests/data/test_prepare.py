"""Corpora: the same tokens for all units, shards and kills; errors are one line."""

import contextlib
import gzip
import itertools
import os
import random
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import DEFAULT, Mock, patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.complaints import complaint
from tests.helpers.preparing import (
    END,
    prepare_corpus,
    read_documents,
    read_files,
    read_ids,
    write_json_lines,
)
from tests.helpers.python import python
from tests.helpers.tokenizers import beginning_with_a_space, byte_level
from tlite.data.documents import Source, list_units, sample_texts
from tlite.data.prepare import load_encoder
from tlite.data.tables import hash_split
from tlite.errors import Interrupted
from tlite.pretrained import PretrainedTokenizer, learn_bpe
from tlite.text import CharTokenizer

datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")
pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.usefixtures("alone")

TEXTS = [
    "A man sleeps.",
    "null",
    '"Nein", sagte er\nund ging.\n\n  Dann \u2028 kam er ☕ wieder.\r\n',
    " ",
    "𝄞" * 50,
    "<|endoftext|>",
    *(f"document {number} of many\n" * (number % 7 + 1) for number in range(60)),
]
LETTERS = st.characters(exclude_categories=["Cs"])
WORDS = st.lists(st.sampled_from(["a", "word", "ä", " ", "  ", "\n", "\n\n", "\r\n", "\t", "."]))


def bpe(size: int) -> tuple:
    return f"bpe:{size}", lambda texts: learn_bpe(texts(10**6), size)


# Documents


def read_units(source: Source, unit_bytes: int) -> list:
    return [chunk for unit in list_units(source, unit_bytes) for chunk in unit.read()]


@given(WORDS, st.integers(1, 40), st.sampled_from([0.0, 0.1, 0.5]))
def test_each_split_of_a_text_is_one_document_in_any_units(tmp_path_factory, words, size, fraction):
    text, path = "".join(words), tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(text.encode())
    source = Source(str(path), validation_fraction=fraction)
    if not text:
        assert "has no documents" in complaint(list_units, source, size)
        return
    chunks = read_units(source, size)
    assert "".join(chunk.text for chunk in chunks) == text.replace("\r\n", "\n")
    splits = [chunk.split for chunk in chunks]
    assert splits == sorted(splits)  # first training, then validation
    assert fraction or set(splits) == {"training"}
    ends = [chunk.ends for chunk in chunks]
    assert ends == [this != after for this, after in itertools.pairwise([*splits, None])]


@given(
    st.lists(st.text(LETTERS), max_size=20),
    st.integers(1, 60),
    st.floats(0, 0.9),
    st.sampled_from([3, 10**6]),
)
def test_json_lines_give_each_document_once(tmp_path_factory, texts, size, fraction, chunk_size):
    """A document that is longer than a chunk begins in its first chunk and ends in its last."""
    path = write_json_lines(tmp_path_factory.mktemp("json") / "a.jsonl", texts)
    if texts:
        with patch("tlite.data.documents.CHUNK_SIZE", chunk_size):
            chunks = read_units(Source(str(path), validation_fraction=fraction), size)
        ends = [number for number, chunk in enumerate(chunks, 1) if chunk.ends]
        documents = [chunks[start:end] for start, end in itertools.pairwise([0, *ends])]
        expected = [text for text in texts if text]
        assert ["".join(chunk.text for chunk in document) for document in documents] == expected
        assert [c.begins for c in chunks] == [True, *(c.ends for c in chunks)][: len(chunks)]
        for text, document in zip(expected, documents, strict=True):
            assert {chunk.split for chunk in document} == {hash_split(text, fraction)}


SOURCES = ["a.jsonl.gz", "a.parquet", "saved", "splits", "folder"]


def make_source(name: str, folder: Path, rows: int = 7) -> Path:
    """Write TEXTS in a format that `prepare` reads; one folder has a file that it skips."""
    path, dataset = folder / name, datasets.Dataset.from_dict({"text": TEXTS})
    if name == "a.jsonl.gz":
        plain = write_json_lines(folder / "a.jsonl", TEXTS)
        path.write_bytes(gzip.compress(plain.read_bytes()))
    elif name == "a.parquet":
        table = pyarrow.table({"n": list(range(len(TEXTS))), "text": TEXTS})
        pyarrow.parquet.write_table(table, path, row_group_size=rows)
    elif name == "folder":
        (path / "inner").mkdir(parents=True)
        write_json_lines(path / "a.jsonl", TEXTS[:9])
        write_json_lines(path / "inner/b.json", TEXTS[9:])
        (path / "README.md").write_text("no document")
    else:
        other = datasets.Dataset.from_dict({"text": ["another"]})
        splits = datasets.DatasetDict({"train": dataset, "test": other})
        (dataset if name == "saved" else splits).save_to_disk(path)
    return path


@pytest.mark.parametrize("name", SOURCES)
def test_all_formats_give_the_same_documents(tmp_path, capsys, name):
    corpus = prepare_corpus(make_source(name, tmp_path), "out")
    assert sorted(read_documents(corpus)) == sorted(TEXTS)
    expected = [text for text in TEXTS if hash_split(text, 0.2) == "validation"]
    assert read_documents(corpus, "validation") == expected
    assert ("README.md" in capsys.readouterr().err) == (name == "folder")


def test_hub_dataset_is_streamed_by_shards(monkeypatch):
    rows = datasets.Dataset.from_dict({"text": TEXTS}).to_iterable_dataset(num_shards=3)
    calls = {("some/set", "small", "train", True): rows}
    load = lambda name, subset, split, streaming: calls[name, subset, split, streaming]  # noqa: E731
    monkeypatch.setattr(datasets, "load_dataset", load)
    info = SimpleNamespace(sha="a")
    monkeypatch.setattr("huggingface_hub.dataset_info", lambda _: info)
    assert len(list_units(Source("some/set", subset="small"))) == 3
    prepare_small = partial(prepare_corpus, "some/set", subset="small")
    assert sorted(read_documents(prepare_small("out"))) == sorted(TEXTS)
    assert "['body']" in complaint(prepare_small, "new", field="body")
    with pytest.raises(Interrupted), error_at_batch(monkeypatch, 2, KeyboardInterrupt()):
        prepare_small("again")
    info.sha = "b"
    assert "its source has changed" in complaint(prepare_small, "again")


@pytest.mark.parametrize("lines", [20, 1])
def test_end_of_each_text_of_a_folder_is_for_validation(tmp_path, lines):
    text = "".join(f"line {number:02d}\n" for number in range(lines))
    (source := tmp_path / "texts").mkdir()
    for name in "hgfedcba":
        mark = "\ufeff" if name == "c" else ""
        content = (mark + text.replace("line", f"{name} line")).encode()
        path = source / (f"{name}.txt" if name < "g" else f"{name}.txt.gz")
        path.write_bytes(content if name < "g" else gzip.compress(content))
    corpus = prepare_corpus(source, "out", validation_fraction=0.25, unit_bytes=70)
    training, validation = (
        bytes(t for t in read_ids(corpus, split).tolist() if t != END).decode().splitlines()
        for split in ("training", "validation")
    )
    first, ends = text.splitlines()[: lines * 3 // 4], text.splitlines()[lines * 3 // 4 :]
    if lines == 1:  # whole files are split: two of eight are for validation
        assert (len(training), len(validation)) == (6, 2)
        assert sorted(training + validation) == [f"{name} line 00" for name in "abcdefgh"]
        return
    assert training == [f"{name} {line}" for name in "abcdefgh" for line in first]
    assert validation == [f"{name} {line}" for name in "abcdefgh" for line in ends]
    ids = read_ids(corpus), read_ids(corpus, "validation")
    assert [(row == END).sum() for row in ids] == [8, 8]


def test_null_and_empty_lines_are_left_out(tmp_path):
    (tmp_path / "a.jsonl").write_text('\n{"text": null}\n \n{"text": ""}\n{"text": "a"}')
    corpus = prepare_corpus("a.jsonl", "out", validation_fraction=0.0)
    assert read_documents(corpus) == ["a"]
    assert corpus.manifest().splits.keys() == {"training"}


# Tokens


LINES = "".join(f"line {n} of a text,{n % 3 * '  '}" + "\n" * (1 + n % 4) for n in range(200))


@pytest.mark.parametrize("unit_bytes", [300, 2**23])
@pytest.mark.parametrize("family", ["GPT-2", "Llama", "T5"])
def test_tokens_are_those_of_the_whole_text(tmp_path, monkeypatch, family, unit_bytes):
    content = byte_level(LINES) if family == "GPT-2" else beginning_with_a_space(LINES)
    if family == "T5":
        content.normalizer = tokenizers.normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
        content.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    (tmp_path / "a.txt").write_text(LINES)
    write_json_lines(tmp_path / "a.jsonl", [LINES])
    monkeypatch.setattr("tlite.data.documents.CHUNK_SIZE", 200)
    tokenizer = (family, lambda _: PretrainedTokenizer(content, {}))
    expected = content.encode(LINES, add_special_tokens=False).ids
    for source in ("a.txt", "a.jsonl"):
        settings = {"unit_bytes": unit_bytes, "validation_fraction": 0.0}
        corpus = prepare_corpus(source, f"of {source}", tokenizer=tokenizer, **settings)
        assert read_ids(corpus).tolist() == expected


@pytest.mark.parametrize("unit_bytes", [50, 700, 10**6])
def test_units_do_not_change_the_tokens(tmp_path, unit_bytes):
    compressed = make_source("a.jsonl.gz", tmp_path)
    prepare_corpus("a.jsonl", "whole")
    prepare_corpus("a.jsonl", "other", unit_bytes=unit_bytes)
    prepare_corpus(compressed, "compressed", unit_bytes=unit_bytes)
    files = read_files("whole")
    assert files.keys() == {"corpus.json", "tokenizer.json", "train.bin", "val.bin"}
    assert read_files("other") == files
    for name in ("train.bin", "val.bin"):
        assert read_files("compressed")[name] == files[name]


def test_manifest_counts_tokens_documents_and_bytes(tmp_path):
    corpus = prepare_corpus(write_json_lines(tmp_path / "a.jsonl", TEXTS), "out")
    manifest = corpus.manifest()
    assert (manifest.dtype, manifest.vocabulary_size, manifest.end_id) == ("uint16", 257, END)
    for name, split in manifest.splits.items():
        documents = read_documents(corpus, name)
        size = sum(len(text.encode()) for text in documents)
        assert (split.documents, split.bytes) == (len(documents), size)
        assert split.tokens == split.bytes + split.documents
    assert manifest.source["name"] == str(tmp_path / "a.jsonl")


def test_learned_tokenizer_sees_the_training_split_only(tmp_path):
    source = Source(str(write_json_lines(tmp_path / "a.jsonl", TEXTS)), validation_fraction=0.3)
    units = list_units(source, 300)
    training = [text for text in TEXTS if hash_split(text, 0.3) == "training"]
    assert set(sample_texts(units, 10**9)) <= set(training)
    sample = list(sample_texts(units, 500))
    assert 300 < sum(len(text.encode()) for text in sample) < 4000
    assert set(sample) <= set(training)
    ended = [text if text.endswith("\n") else f"{text}\n" for text in TEXTS]
    assert list(sample_texts(units, None)) == ended


def test_rows_are_separated_by_newlines_without_an_end_token(tmp_path):
    path = write_json_lines(tmp_path / "a.jsonl", ["one", "two\n", "three"])
    characters = "characters", lambda texts: CharTokenizer("".join(texts(None)))
    corpus = prepare_corpus(path, "out", tokenizer=characters, validation_fraction=0.0)
    tokenizer = CharTokenizer.load(corpus.manifest().tokenizer.path)
    assert tokenizer.decode(read_ids(corpus)) == "one\ntwo\nthree\n"
    assert corpus.manifest().splits["training"].bytes == 14


@pytest.mark.parametrize("rows", [1, 3, 7])  # of a unit: 66 units, 22, 10
def test_tokenizer_is_learned_from_at_most_16_units(tmp_path, rows):
    path = make_source("a.parquet", tmp_path, rows)
    units = list_units(Source(str(path), validation_fraction=0.0))
    assert len(list(sample_texts(units, 16))) == min(len(units), 16)


def test_subwords_are_those_of_each_text(tmp_path):
    path = write_json_lines(tmp_path / "a.jsonl", TEXTS)
    settings = {"validation_fraction": 0.0, "unit_bytes": 500}
    corpus = prepare_corpus(path, "out", tokenizer=bpe(400), **settings)
    tokenizer = PretrainedTokenizer.load(corpus.manifest().tokenizer.path)
    ids, end = read_ids(corpus), corpus.manifest().end_id
    *rows, rest = np.split(ids, np.flatnonzero(ids == end) + 1)
    assert (len(rows), len(rest)) == (len(TEXTS), 0)  # "<|endoftext|>" typed in a text is text
    for text, row in zip(TEXTS, rows, strict=True):
        if "<|" not in text:
            assert row[:-1].tolist() == tokenizer.encode(text, add_special_tokens=False).tolist()


def test_nothing_is_kept_of_an_earlier_preparation(tmp_path):
    """A second corpus in a folder has its own tokens, and a saved set is read again."""
    path, tokens = make_source("saved", tmp_path), {}
    for folder, size in (("out", 258), ("out", 300), ("other", 300)):
        shutil.rmtree(folder, ignore_errors=True)
        tokens[folder] = read_ids(prepare_corpus(path, folder, tokenizer=bpe(size)))
    np.testing.assert_array_equal(tokens["out"], tokens["other"])
    shutil.rmtree(path)
    datasets.Dataset.from_dict({"text": ["new", "texts"]}).save_to_disk(path)
    corpus = prepare_corpus(path, "new", validation_fraction=0.0)
    assert read_documents(corpus) == ["new", "texts"]


def test_more_than_65535_tokens_are_uint32(tmp_path):
    words = {f"w{number}": number for number in range(70_000)} | {"?": 70_000}
    content = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    content.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = ("words", lambda _: PretrainedTokenizer(content, {"eos": "w5"}))
    path = write_json_lines(tmp_path / "a.jsonl", ["w69999 w3", "w65536"])
    corpus = prepare_corpus(path, "out", tokenizer=tokenizer, validation_fraction=0.0)
    assert corpus.manifest().dtype == "uint32"
    assert read_ids(corpus).tolist() == [69_999, 3, 5, 65_536, 5]


# Interruptions


@pytest.fixture
def long_source(tmp_path) -> Path:
    numbers = random.Random(0)
    texts = (f"{number} {numbers.random()}\n" * numbers.randrange(9) for number in range(1500))
    return write_json_lines(tmp_path / "long.jsonl", texts)


def test_killed_preparations_end_with_the_same_bytes(long_source):
    folder = os.path.abspath("killed")
    code, out, err = python("-m", "tests.helpers.preparing", long_source, folder)
    assert (code, err) == (0, "")
    assert int(out.splitlines()[-1]) > 5
    prepare_corpus(long_source, "whole", unit_bytes=2000)
    assert read_files("killed") == read_files("whole")
    assert not Path("killed.preparing").exists()


@contextlib.contextmanager
def error_at_batch(monkeypatch, number: int, error: BaseException):
    """Raise an error when the batch of that number would be encoded."""

    def load(reference):
        return Mock(wraps=load_encoder(reference), side_effect=[DEFAULT] * number + [error])

    with monkeypatch.context() as patch:
        patch.setattr("tlite.data.prepare.load_encoder", load)
        yield


@pytest.fixture
def interrupted(long_source, monkeypatch) -> Path:
    """Interrupt a preparation in out.preparing in its sixth unit; return its source."""
    message = r"interrupted after 5 of \d+ units: the same command resumes"
    with (
        pytest.raises(Interrupted, match=message),
        error_at_batch(monkeypatch, 5, KeyboardInterrupt()),
    ):
        prepare_corpus(long_source, "out", unit_bytes=2000)
    return long_source


def test_interrupted_preparation_resumes(interrupted):
    with open("out.preparing/train.bin", "ab") as file:
        file.write(b"half a unit")
    prepare_corpus(interrupted, "out", unit_bytes=2000)
    prepare_corpus(interrupted, "whole", unit_bytes=2000)
    assert read_files("out") == read_files("whole")


def test_other_commands_sources_and_processes_do_not_resume(interrupted):
    import fcntl

    descriptor = os.open("out.preparing", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    message = complaint(prepare_corpus, interrupted, "out", unit_bytes=2000)
    assert "another process is writing out.preparing" in message
    os.close(descriptor)
    for change in ({"unit_bytes": 1000}, {"validation_fraction": 0.5}, {"field": "n"}):
        message = complaint(prepare_corpus, interrupted, "out", **{"unit_bytes": 2000} | change)
        assert message.startswith("out.preparing was begun by another command")
    with interrupted.open("a") as file:
        file.write('{"text": "more"}\n')
    message = complaint(prepare_corpus, interrupted, "out", unit_bytes=2000)
    assert "its source has changed" in message


def test_command_that_failed_at_once_can_be_repeated(tmp_path, monkeypatch):
    path = write_json_lines(tmp_path / "a.jsonl", TEXTS)
    with error_at_batch(monkeypatch, 0, OSError(28, os.strerror(28))):
        assert os.strerror(28) in complaint(prepare_corpus, path, "out")
    assert "has no column 'body'" in complaint(prepare_corpus, path, "out", field="body")
    assert sorted(read_documents(prepare_corpus(path, "out"))) == sorted(TEXTS)


# Errors


def test_folders_that_exist_are_errors(tmp_path):
    path = write_json_lines(tmp_path / "a.jsonl", TEXTS)
    (tmp_path / "out").mkdir()
    assert "out exists already" in complaint(prepare_corpus, path, "out")
    (tmp_path / "new.preparing").mkdir()
    (tmp_path / "new.preparing/mine").touch()
    assert "is in the way" in complaint(prepare_corpus, path, "new")
    assert os.listdir("new.preparing") == ["mine"]


LINE, PLACE = b'{"text": "a"}\n', "the line at byte 14 of a.jsonl"
FAULTS = [  # a file with a content, or a source with settings, and a part of the error
    ("a.jsonl", LINE + b'{"text": 3}\n', f"{PLACE}: the column 'text' has a value of type int"),
    ("a.jsonl", LINE + b'{"body": "a"}\n', f"{PLACE} has no column 'text': it has body"),
    ("a.jsonl", LINE + b"[1]\n", f"{PLACE} is not a JSON object"),
    ("a.jsonl", LINE + b"\xff\n", f"{PLACE} is not JSON"),
    ("a.txt", b"fine\nbad \xff\n", "is not UTF-8 text: 0xff at byte 9"),
    ("a.txt", b"cut \xc3", "is not UTF-8 text: 0xc3 at byte 4"),
    ("a.txt", b"", "has no documents"),
    ("a.jsonl", b"", "has no documents"),
    ("a.jsonl.gz", b"plain", "is not a complete gzip file"),
    ("a.csv", b"text\nx", "has none of the endings .txt, .jsonl"),
    ("empty", {}, "has none of the endings"),
    ("missing.txt", {}, "there is no file missing.txt"),
    ("no/such", {}, "can't read 'train' of the set 'no/such'"),
    ("pipe.txt", {}, "it is a pipe"),
    ("a.parquet", {"field": "body"}, "has no column 'body': it has n, text"),
    ("saved", {"field": "body"}, "['body']"),
    ("splits", {"split": "dev"}, "can't read 'dev'"),
    ("a.jsonl.gz", {"validation_fraction": 1.0}, "below 1, not 1.0"),
    ("a.jsonl.gz", {"validation_fraction": 1e-9}, "no document is in the validation split: raise"),
]


@pytest.mark.parametrize(("name", "given", "message"), FAULTS)
def test_invalid_source_is_an_error(tmp_path, name, given, message):
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    if isinstance(given, bytes):
        (tmp_path / name).write_bytes(given)
    elif name in SOURCES:
        make_source(name, tmp_path)
    settings = given if isinstance(given, dict) else {}
    for unit_bytes in (10, 2**23):
        folder = f"out{unit_bytes}"
        assert message in complaint(prepare_corpus, name, folder, unit_bytes=unit_bytes, **settings)
        assert not Path(folder).exists()
