"""Corpora: windows across files and beyond 2^32, manifests, fingerprints and errors."""

import dataclasses
import functools
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
    {"name": "a source"},
)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Write a corpus: training tokens 0 to 7 in two files, validation tokens 8 to 11 in one."""
    np.arange(5, dtype="<u2").tofile(tmp_path / "a.bin")
    np.arange(5, 8, dtype="<u2").tofile(tmp_path / "b.bin")
    np.arange(8, 12, dtype="<u2").tofile(tmp_path / "val.bin")
    write_manifest(tmp_path, EXAMPLE)
    return tmp_path


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.sampled_from(["uint16", "uint32"]),
    st.randoms(use_true_random=False),
)
def test_windows_do_not_depend_on_the_files(tmp_path_factory, sizes, dtype, random):
    folder = tmp_path_factory.mktemp("files")
    sequence = np.array([random.randrange(60_000) for _ in range(sum(sizes))], dtype)
    files = []
    for number, end in enumerate(np.cumsum(sizes)):
        files.append(TokenFile(f"{number}.bin", sizes[number]))
        sequence[end - sizes[number] : end].astype(DTYPES[dtype]).tofile(folder / files[-1].name)
    tokens = Tokens(folder, files, dtype)
    assert len(tokens) == len(sequence)
    for _ in range(5):
        start = random.randint(0, len(sequence))
        stop = random.randint(start, len(sequence))
        np.testing.assert_array_equal(tokens.read(start, stop), sequence[start:stop])
        starts = np.array([random.randint(0, len(sequence) - (stop - start)) for _ in range(3)])
        windows = tokens.read_windows(starts, stop - start)
        expected = [sequence[s : s + stop - start] for s in starts]
        np.testing.assert_array_equal(windows, np.array(expected).reshape(windows.shape))
        assert windows.dtype == np.dtype(dtype)
    for start, stop in ((-1, 0), (0, len(sequence) + 1), (1, 0)):
        with pytest.raises(IndexError):
            tokens.read(start, stop)


def test_more_shards_than_open_files_are_read(tmp_path):
    resource = pytest.importorskip("resource")
    for number in range(150):
        np.arange(2 * number, 2 * number + 2, dtype="<u2").tofile(
            tmp_path / f"train{'-_'[number // 75]}{number:05d}.bin"
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


def test_five_billion_tokens_need_almost_no_memory(tmp_path):
    """A sparse file: tokens beyond 2^32 are read, and the process does not grow."""
    psutil = pytest.importorskip("psutil")
    number, path = 5 * 10**9, tmp_path / "train.bin"
    with path.open("wb") as file:
        try:
            os.truncate(path, 2 * number)
        except OSError:
            pytest.skip("no sparse files here")
        for start in (2**32 + 7, number - 3):
            file.seek(2 * start)
            file.write(np.array([11, 12, 13], "<u2").tobytes())
    tokens = Corpus(str(tmp_path), corpus_vocabulary=100).open("training")
    assert len(tokens) == number
    before = psutil.Process().memory_info().rss
    windows = tokens.read_windows(np.array([2**32 + 7, 0, number - 3]), 3)
    np.testing.assert_array_equal(windows, [[11, 12, 13], [0, 0, 0], [11, 12, 13]])
    starts = np.concatenate([sample_positions(0, step, 20, number - 1025) for step in range(50)])
    assert (starts > 2**32).sum() > 80
    for batch in starts.reshape(50, 20):
        tokens.read_windows(batch, 1025)
    assert psutil.Process().memory_info().rss - before < 50 * 2**20


def test_a_manifest_and_its_files_are_read_back(folder):
    path = str(folder / "tokenizer.json")
    tokenizer = dataclasses.replace(EXAMPLE.tokenizer, path=path)
    assert read_manifest(folder) == dataclasses.replace(EXAMPLE, tokenizer=tokenizer)
    corpus = Corpus(str(folder))
    assert corpus.input_paths("training") == [str(folder / "a.bin"), str(folder / "b.bin")]
    assert corpus.input_paths("validation") == [str(folder / "val.bin")]
    assert corpus.input_paths("test") == []
    assert "has no test split" in complaint(corpus.open, "test")


@pytest.mark.parametrize("index", [0, -1])
def test_fingerprint_depends_on_both_ends_of_a_file(tmp_path, index):
    tokens = np.arange(2 * 10**6, dtype=np.uint16)
    tokens.tofile(tmp_path / "train.bin")
    corpus = Corpus(str(tmp_path), corpus_vocabulary=60_000)
    before = corpus.fingerprint()
    assert json.loads(json.dumps(before)) == before == corpus.fingerprint()
    assert before["splits"]["training"]["tokens"] == len(tokens)
    tokens[index] += 1
    tokens.tofile(tmp_path / "train.bin")
    assert corpus.fingerprint() != before


@pytest.fixture
def nanogpt(tmp_path) -> Path:
    """Write the files of nanoGPT's prepare.py; opening meta.pkl, a pipe, would block forever."""
    np.arange(50, dtype=np.uint16).tofile(tmp_path / "train.bin")
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "val.bin")
    os.mkfifo(tmp_path / "meta.pkl")
    return tmp_path


def test_files_of_nanogpt_are_read(nanogpt):
    corpus = Corpus(str(nanogpt), corpus_vocabulary=50)
    np.testing.assert_array_equal(corpus.open("training").read(0, 50), np.arange(50))
    np.testing.assert_array_equal(corpus.open("validation").read(0, 9), np.arange(9))
    manifest = corpus.manifest()
    assert (manifest.dtype, manifest.vocabulary_size) == ("uint16", 50)
    assert manifest.tokenizer is manifest.end_id is manifest.splits["training"].bytes is None
    assert corpus.fingerprint()["splits"]["validation"]["tokens"] == 9
    manifest = Corpus(str(nanogpt), corpus_tokenizer="gpt2").manifest()
    assert manifest.tokenizer == CorpusTokenizer("pretrained", "gpt2")
    assert manifest.vocabulary_size == 0
    assert "--corpus-tokenizer (gpt2, or" in complaint(Corpus(str(nanogpt)).manifest)


def test_files_with_a_header_or_an_odd_size_are_errors(nanogpt):
    manifest = Corpus(str(nanogpt), corpus_vocabulary=50).manifest
    for magic in (20240520, 20240801):
        header = np.zeros(256, "<i4")
        header[:3] = magic, 1, 50
        (nanogpt / "train.bin").write_bytes(header.tobytes() + bytes(100))
        assert "begins with llm.c's header" in complaint(manifest)
    (nanogpt / "train.bin").write_bytes(bytes(101))
    assert "train.bin has 101 bytes" in complaint(manifest)


def test_large_tokens_and_truncated_files_are_errors(folder):
    tokens = Corpus(str(folder)).open("training", vocabulary_size=7)
    tokens.read(0, 7)
    assert "has the token 7, but the vocabulary has only 7" in complaint(tokens.read, 0, 8)
    assert "token 7" in complaint(tokens.read_windows, np.array([0, 6]), 2)
    os.truncate(folder / "b.bin", 2)
    assert "b.bin has become shorter" in complaint(tokens.read, 0, 8)


def change(*place, value):
    """Return a function that sets a value of the manifest, or removes it (`...`)."""

    def apply(folder):
        content = json.loads((folder / MANIFEST).read_text())
        entry = functools.reduce(lambda part, key: part[key], place[:-1], content)
        entry.pop(place[-1]) if value is ... else entry.update({place[-1]: value})
        (folder / MANIFEST).write_text(json.dumps(content))

    return apply


def replace(name, make):
    """Return a function that replaces a file by what `make` creates there."""

    def apply(folder):
        (folder / name).unlink()
        make(folder / name)

    return apply


FILE = "splits", "training", "files", 0
FAULTS = [  # a change of the folder, and a part of the error
    (change("format", value="tlite corpus 2"), "corpus.json .*'tlite corpus 2'"),
    (change("dtype", value="object"), "corpus.json .*'object'"),
    (change("vocabulary_size", value="300"), "corpus.json .*'str'"),
    (change("end_id", value=300), "corpus.json .*300"),
    (change(*FILE, "tokens", value=6), "a.bin has 10 bytes, .*6 tokens"),
    (change(*FILE, "tokens", value="5"), "corpus.json .*'str'"),
    (change("splits", value=[1]), "corpus.json .*'list'"),
    (change("source", value=...), "corpus.json .*'source'"),
    (change(*FILE, "name", value="c.bin"), "there is no file .*c.bin, which"),
    (change("tokenizer", "file", value="/etc/passwd"), "'/etc/passwd' is not the name of a file"),
    *(
        (change(*FILE, "name", value=name), "is not the name of a file in its folder")
        for name in ("../a.bin", "..", "", "a\0", 3)
    ),
    (replace(MANIFEST, lambda path: path.write_text("[1]")), f"/{MANIFEST} is damaged"),
    (replace(MANIFEST, Path.touch), f"/{MANIFEST} is damaged"),
    (replace(MANIFEST, lambda path: None), f"neither {MANIFEST} nor train.bin"),
    (replace("a.bin", os.mkfifo), "/a.bin"),
    (replace("a.bin", lambda path: path.symlink_to("/dev/zero")), "/a.bin"),
    (replace("a.bin", Path.mkdir), "/a.bin"),
    (replace("a.bin", lambda path: None), "/a.bin"),
]


@pytest.mark.parametrize(("damage", "message"), FAULTS)
def test_fault_of_a_corpus_is_named(folder, damage, message):
    damage(folder)
    assert re.search(message, complaint(Corpus(str(folder)).manifest))


def test_folder_and_options_must_fit_the_corpus(folder):
    assert "--folder" in complaint(Corpus("").manifest)
    assert "there is no folder missing" in complaint(Corpus("missing").manifest)
    other = Corpus(str(folder), corpus_vocabulary=300)
    assert "leave --corpus-tokenizer" in complaint(other.manifest)
