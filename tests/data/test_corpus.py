"""Token files: the same windows however they are cut up, far beyond 2^32, and what is refused."""

import dataclasses
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.complaints import complaint
from tlite.data import Corpus, sample_positions
from tlite.data.corpus import (
    DTYPES,
    MANIFEST,
    CorpusTokenizer,
    Manifest,
    SplitFiles,
    TokenFile,
    Tokens,
    read_manifest,
    write_manifest,
)

EXAMPLE = Manifest(
    "uint16",
    300,
    {
        "training": SplitFiles((TokenFile("a.bin", 5), TokenFile("b.bin", 3)), 2, 30),
        "validation": SplitFiles((TokenFile("val.bin", 4),), 1, 9),
    },
    CorpusTokenizer("bytes", "tokenizer.json", "00"),
    256,
    {"name": "made up"},
)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A corpus with a part of two files, of the tokens 0..7, and one of 8..11."""
    np.arange(5, dtype="<u2").tofile(tmp_path / "a.bin")
    np.arange(5, 8, dtype="<u2").tofile(tmp_path / "b.bin")
    np.arange(8, 12, dtype="<u2").tofile(tmp_path / "val.bin")
    write_manifest(tmp_path, EXAMPLE)
    return tmp_path


def rewrite(folder: Path, change) -> None:
    content = json.loads((folder / MANIFEST).read_text())
    change(content)
    (folder / MANIFEST).write_text(json.dumps(content))


# What is read


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.sampled_from(["uint16", "uint32"]),
    st.randoms(use_true_random=False),
)
def test_files_are_one_sequence_wherever_they_are_cut(tmp_path_factory, sizes, dtype, random):
    folder = tmp_path_factory.mktemp("cut")
    whole = np.array([random.randrange(60_000) for _ in range(sum(sizes))], dtype)
    files = []
    for number, end in enumerate(np.cumsum(sizes)):
        files.append(TokenFile(f"{number}.bin", sizes[number]))
        whole[end - sizes[number] : end].astype(DTYPES[dtype]).tofile(folder / files[-1].name)
    tokens = Tokens(folder, files, dtype)
    assert len(tokens) == len(whole)
    for _ in range(5):
        start = random.randint(0, len(whole))
        stop = random.randint(start, len(whole))
        np.testing.assert_array_equal(tokens.read(start, stop), whole[start:stop])
        starts = np.array([random.randint(0, len(whole) - (stop - start)) for _ in range(3)])
        windows = tokens.read_windows(starts, stop - start)
        expected = [whole[s : s + stop - start] for s in starts]
        np.testing.assert_array_equal(windows, np.array(expected).reshape(windows.shape))
        assert windows.dtype == np.dtype(dtype)


def test_more_shards_than_open_files_are_read(tmp_path):
    resource = pytest.importorskip("resource")
    for number in range(150):
        np.arange(2 * number, 2 * number + 2, dtype="<u2").tofile(
            tmp_path / f"train-{number:05d}.bin"
        )
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 100, limits[1]))
    try:
        tokens = Corpus(str(tmp_path), corpus_vocabulary=300).open("training")
        for _ in range(2):
            np.testing.assert_array_equal(tokens.read(0, 300), np.arange(300))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_places_outside_are_mistakes(folder):
    tokens = Corpus(str(folder)).open("training")
    for start, stop in ((-1, 2), (0, 9), (3, 2)):
        with pytest.raises(IndexError):
            tokens.read(start, stop)
    for start in (-1, 7):
        with pytest.raises(IndexError):
            tokens.read_windows(np.array([0, start]), 2)


def test_five_billion_tokens_take_next_to_no_memory(tmp_path):
    """A sparse file: what lies behind 2^32 is found, and the process does not grow."""
    psutil = pytest.importorskip("psutil")
    number, path = 5 * 10**9, tmp_path / "train.bin"
    with path.open("wb") as file:
        try:
            os.truncate(path, 2 * number)
        except OSError:
            pytest.skip("no sparse files here")
        for place in (2**32 + 7, number - 3):
            file.seek(2 * place)
            file.write(np.array([11, 12, 13], "<u2").tobytes())
    tokens = Corpus(str(tmp_path), corpus_vocabulary=100).open("training")
    assert len(tokens) == number
    before = psutil.Process().memory_info().rss
    found = tokens.read_windows(np.array([2**32 + 7, 0, number - 3]), 3)
    np.testing.assert_array_equal(found, [[11, 12, 13], [0, 0, 0], [11, 12, 13]])
    starts = np.concatenate([sample_positions(0, step, 20, number - 1025) for step in range(50)])
    assert (starts > 2**32).sum() > 80
    for some in starts.reshape(50, 20):
        tokens.read_windows(some, 1025)
    assert psutil.Process().memory_info().rss - before < 50 * 2**20


# What is said of it


def test_a_manifest_comes_back_as_it_was(folder):
    path = str(folder / "tokenizer.json")
    tokenizer = dataclasses.replace(EXAMPLE.tokenizer, path=path)
    assert read_manifest(folder) == dataclasses.replace(EXAMPLE, tokenizer=tokenizer)


def test_it_says_where_it_reads(folder):
    corpus = Corpus(str(folder))
    assert corpus.input_paths("training") == [str(folder / "a.bin"), str(folder / "b.bin")]
    assert corpus.input_paths("validation") == [str(folder / "val.bin")]
    assert corpus.input_paths("test") == []
    assert "has no test split" in complaint(corpus.open, "test")


def test_the_record_knows_the_data_again(folder):
    corpus = Corpus(str(folder))
    record = corpus.fingerprint()
    assert json.loads(json.dumps(record)) == record == corpus.fingerprint()
    assert record["splits"]["training"]["tokens"] == 8
    (folder / "b.bin").write_bytes(bytes(6))
    assert corpus.fingerprint() != record


@pytest.mark.parametrize("place", [0, -1])
def test_fingerprint_sees_both_ends_of_a_large_file(tmp_path, place):
    tokens = np.arange(2 * 10**6, dtype=np.uint16)
    tokens.tofile(tmp_path / "train.bin")
    corpus = Corpus(str(tmp_path), corpus_vocabulary=60_000)
    before = corpus.fingerprint()
    tokens[place] += 1
    tokens.tofile(tmp_path / "train.bin")
    assert corpus.fingerprint() != before


# nanoGPT's own files


@pytest.fixture
def theirs(tmp_path) -> Path:
    """As data/*/prepare.py leaves them; whoever opens the pickle waits for ever."""
    np.arange(50, dtype=np.uint16).tofile(tmp_path / "train.bin")
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "val.bin")
    os.mkfifo(tmp_path / "meta.pkl")
    return tmp_path


def test_nanogpt_s_files_are_read_as_they_are(theirs):
    corpus = Corpus(str(theirs), corpus_vocabulary=50)
    np.testing.assert_array_equal(corpus.open("training").read(0, 50), np.arange(50))
    np.testing.assert_array_equal(corpus.open("validation").read(0, 9), np.arange(9))
    manifest = corpus.manifest()
    assert (manifest.dtype, manifest.vocabulary_size) == ("uint16", 50)
    assert manifest.tokenizer is manifest.end_id is manifest.splits["training"].bytes is None
    assert corpus.fingerprint()["splits"]["validation"]["tokens"] == 9
    manifest = Corpus(str(theirs), corpus_tokenizer="gpt2").manifest()
    assert manifest.tokenizer == CorpusTokenizer("pretrained", "gpt2")
    assert manifest.vocabulary_size == 0
    assert "--corpus-tokenizer (gpt2, or" in complaint(Corpus(str(theirs)).manifest)


def test_their_shards_follow_by_name(theirs):
    os.rename(theirs / "train.bin", theirs / "train_000001.bin")
    np.arange(50, 60, dtype=np.uint16).tofile(theirs / "train_000002.bin")
    tokens = Corpus(str(theirs), corpus_vocabulary=60).open("training")
    np.testing.assert_array_equal(tokens.read(0, 60), np.arange(60))


def test_files_with_a_header_and_of_an_odd_size_are_told(theirs):
    manifest = Corpus(str(theirs), corpus_vocabulary=50).manifest
    for magic in (20240520, 20240801):
        header = np.zeros(256, "<i4")
        header[:3] = magic, 1, 50
        (theirs / "train.bin").write_bytes(header.tobytes() + bytes(100))
        assert "begins with llm.c's header" in complaint(manifest)
    (theirs / "train.bin").write_bytes(bytes(101))
    assert "train.bin has 101 bytes" in complaint(manifest)


# What is refused


def test_a_token_beyond_the_vocabulary_and_a_file_that_is_cut_off_meanwhile_are_told(folder):
    tokens = Corpus(str(folder)).open("training", vocabulary_size=7)
    tokens.read(0, 7)
    assert "has the token 7, but the vocabulary has only 7" in complaint(tokens.read, 0, 8)
    assert "token 7" in complaint(tokens.read_windows, np.array([0, 6]), 2)
    os.truncate(folder / "b.bin", 2)
    assert "b.bin has become shorter" in complaint(tokens.read, 0, 8)


def change_file(**fields):
    return lambda c: c["splits"]["training"]["files"][0].update(fields)


WRONG_VALUES = [  # a change of the manifest, and the value that the error names
    (lambda c: c.update(format="tlite corpus 2"), "corpus.json .*'tlite corpus 2'"),
    (lambda c: c.update(dtype="object"), "corpus.json .*'object'"),
    (lambda c: c.update(vocabulary_size="300"), "corpus.json .*'str'"),
    (lambda c: c.update(end_id=300), "corpus.json .*300"),
    (change_file(tokens=6), "a.bin has 10 bytes, .*6 tokens"),
    (change_file(tokens="5"), "corpus.json .*'str'"),
    (lambda c: c.update(splits=[1]), "corpus.json .*'list'"),
    (lambda c: c.pop("source"), "corpus.json .*'source'"),
    (change_file(name="c.bin"), "c.bin has 0 bytes"),
]


@pytest.mark.parametrize(("change", "value"), WRONG_VALUES)
def test_a_wrong_value_in_a_manifest_is_named(folder, change, value):
    rewrite(folder, change)
    assert re.search(value, complaint(Corpus(str(folder)).manifest))


@pytest.mark.parametrize("name", ["../a.bin", "/etc/passwd", "..", "", "a\0", 3])
@pytest.mark.parametrize("what", ["file", "tokenizer"])
def test_no_name_leads_out_of_the_folder(folder, name, what):
    def change(content):
        if what == "file":
            content["splits"]["training"]["files"][0]["name"] = name
        else:
            content["tokenizer"]["file"] = name

    rewrite(folder, change)
    assert "is not the name of a file in its folder" in complaint(Corpus(str(folder)).manifest)


@pytest.mark.parametrize("content", ["", "[1]", "[" * 10**5, "\ud800"], ids=range(4))
def test_a_manifest_that_is_none_is_told(folder, content):
    (folder / MANIFEST).write_bytes(content.encode("utf-8", "surrogatepass"))
    assert f"{folder / MANIFEST} is damaged" in complaint(Corpus(str(folder)).manifest)


@pytest.mark.parametrize("name", ["a.bin", MANIFEST])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "missing"])
def test_what_is_no_file_is_told_and_never_waited_for(folder, name, kind):
    path = folder / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    value = "train.bin" if (name, kind) == (MANIFEST, "missing") else path
    assert str(value) in complaint(Corpus(str(folder)).manifest)


def test_a_folder_that_is_none_is_told(folder, tmp_path):
    with pytest.raises(ValueError, match="validation_tokens"):
        Corpus(validation_tokens=0)
    assert "--folder" in complaint(Corpus("").manifest)
    assert "there is no folder missing" in complaint(Corpus("missing").manifest)
    (tmp_path / "empty").mkdir()
    told = complaint(Corpus(str(tmp_path / "empty")).manifest)
    assert "neither corpus.json nor train.bin" in told
    told = complaint(Corpus(str(folder), corpus_vocabulary=300).manifest)
    assert "leave --corpus-tokenizer" in told
