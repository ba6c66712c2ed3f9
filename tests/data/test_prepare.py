"""Corpora: the same bytes from any number of processes, pieces and kills; a sentence for faults."""

import gzip
import itertools
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.complaints import complaint
from tests.helpers.killed_preparing import PIECES
from tests.helpers.preparing import (
    BYTES,
    END,
    both,
    content,
    documents,
    ids,
    made,
    process,
    write_lines,
)
from tests.helpers.python import python
from tests.helpers.tokenizers import beginning_with_a_space, byte_level
from tlite.data.documents import Source, fragments, plan, read_piece
from tlite.data.prepare import encode_piece, prepare, texts_of
from tlite.data.tables import side_of
from tlite.errors import Interrupted
from tlite.text import CharTokenizer

datasets = pytest.importorskip("datasets")
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
PARTS = "training", "validation"
LETTERS = st.characters(exclude_categories=["Cs"])
WORDS = st.lists(st.sampled_from(["a", "word", "ä", " ", "  ", "\n", "\n\n", "\r\n", "\t", "."]))


# What comes out


@given(WORDS, st.integers(1, 40), st.sampled_from([0.0, 0.1, 0.5]))
def test_a_text_is_one_document_however_it_is_cut(tmp_path_factory, words, size, fraction):
    text, path = "".join(words), tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(text.encode())
    source = Source(str(path), validation_fraction=fraction)
    if not text:
        assert "has no documents" in complaint(plan, source, size)
        return
    found = [fragment for piece in plan(source, size) for fragment in read_piece(source, piece)]
    assert "".join(fragment.text for fragment in found) == text.replace("\r\n", "\n")
    assert [fragment.ends for fragment in found] == [False] * (len(found) - 1) + [True]
    sides = [fragment.side for fragment in found]
    assert sides == sorted(sides)  # first training, then validation
    if not fraction:
        assert set(sides) == {"training"}


@given(st.lists(st.text(LETTERS), max_size=20), st.integers(1, 60), st.floats(0, 0.9))
def test_json_lines_give_every_document_once(tmp_path_factory, texts, size, fraction):
    path = write_lines(tmp_path_factory.mktemp("json") / "a.jsonl", texts)
    source = Source(str(path), validation_fraction=fraction)
    if texts:
        pieces = plan(source, size)
        found = [fragment for piece in pieces for fragment in read_piece(source, piece)]
        assert [fragment.text for fragment in found] == [text for text in texts if text]
        assert [f.side for f in found] == [side_of(f.text, fraction) for f in found]


@given(st.text(LETTERS), st.integers(1, 20))
def test_a_long_document_is_cut_and_stays_whole(text, longest):
    found = list(fragments([text], 0.5, longest))
    assert "".join(fragment.text for fragment in found) == text
    assert all(0 < len(fragment.text) <= longest for fragment in found)
    assert [f.ends for f in found] == [False] * (len(found) - 1) + [True] * bool(found)


MANY_LINES = "".join(f"line {n} of a text,{n % 3 * '  '}" + "\n" * (1 + n % 4) for n in range(200))


@pytest.mark.parametrize("piece_size", [300, 2**23])
@pytest.mark.parametrize("kind", ["as GPT-2's", "as Llama's", "as T5's"])
def test_the_tokens_are_those_of_the_whole_text_however_it_is_cut(
    tmp_path, monkeypatch, kind, piece_size
):
    tokenizers = pytest.importorskip("tokenizers")
    from tlite.pretrained import PretrainedTokenizer

    content = byte_level(MANY_LINES)
    if kind != "as GPT-2's":
        content = beginning_with_a_space(MANY_LINES)
    if kind == "as T5's":
        content.normalizer = tokenizers.normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
        content.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    (tmp_path / "a.txt").write_text(MANY_LINES)
    write_lines(tmp_path / "a.jsonl", [MANY_LINES])
    monkeypatch.setattr("tlite.data.documents.BLOCK", 200)
    tokenizing = (kind, lambda _: PretrainedTokenizer(content, {}))
    expected = content.encode(MANY_LINES, add_special_tokens=False).ids
    for source in ("a.txt", "a.jsonl"):
        options = {"piece_size": piece_size, "validation_fraction": 0.0}
        corpus = made(source, f"of {source}", tokenizing=tokenizing, **options)
        assert ids(corpus).tolist() == expected


@pytest.mark.parametrize(("piece_size", "processes"), [(50, 1), (700, 3), (10**6, 1)])
def test_neither_processes_nor_shards_change_the_tokens(tmp_path, piece_size, processes):
    path = write_lines(tmp_path / "a.jsonl", TEXTS)
    whole = made(path, "whole")
    other = made(path, "other", processes=processes, piece_size=piece_size, shard_tokens=100)
    for part in ("training", "validation"):
        np.testing.assert_array_equal(ids(whole, part), ids(other, part))
    names = [file.name for file in other.manifest().splits["training"].files]
    assert names[:2] == ["train-00000.bin", "train-00001.bin"]
    sizes = {os.path.getsize(f"other/{name}") for name in names[:-1]}
    assert sizes == {200}
    assert sorted(os.listdir("whole")) == ["corpus.json", "tokenizer.json", "train.bin", "val.bin"]


def test_the_manifest_counts_what_there_is(tmp_path):
    corpus = made(write_lines(tmp_path / "a.jsonl", TEXTS), "out")
    manifest = corpus.manifest()
    assert sorted(both(corpus)) == sorted(TEXTS)
    assert manifest.end_id == END
    assert (manifest.dtype, manifest.vocabulary_size) == ("uint16", 257)
    for name, part in manifest.splits.items():
        found = documents(corpus, name)
        assert part.documents == len(found)
        assert part.bytes == sum(len(text.encode()) for text in found)
        assert part.tokens == part.bytes + part.documents
    assert manifest.source["name"] == str(tmp_path / "a.jsonl")


def as_packed(path: Path) -> Path:
    packed = path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(write_lines(path / "a.jsonl", TEXTS).read_bytes()))
    return packed


def as_parquet(path: Path, rows: int = 7) -> Path:
    import pyarrow.parquet

    table = pyarrow.table({"n": list(range(len(TEXTS))), "text": TEXTS})
    pyarrow.parquet.write_table(table, path / "a.parquet", row_group_size=rows)
    return path / "a.parquet"


def as_saved(path: Path) -> Path:
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(path / "saved")
    return path / "saved"


def as_saved_splits(path: Path) -> Path:
    splits = {"train": TEXTS, "test": ["another"]}
    splits = {name: datasets.Dataset.from_dict({"text": texts}) for name, texts in splits.items()}
    datasets.DatasetDict(splits).save_to_disk(path / "splits")
    return path / "splits"


def as_folder(path: Path) -> Path:
    (path / "some/inner").mkdir(parents=True)
    write_lines(path / "some/a.jsonl", TEXTS[:9])
    write_lines(path / "some/inner/b.json", TEXTS[9:])
    (path / "some/README.md").write_text("no document")
    return path / "some"


KINDS = [as_packed, as_parquet, as_saved, as_saved_splits, as_folder]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_source_gives_the_same_documents(tmp_path, kind):
    corpus = made(kind(tmp_path), "out")
    assert sorted(both(corpus)) == sorted(TEXTS)
    expected = [text for text in TEXTS if side_of(text, 0.2) == "validation"]
    assert documents(corpus, "validation") == expected


def test_a_set_of_the_hub_is_streamed_by_its_shards(tmp_path, monkeypatch):
    """The hub is out of reach: what `datasets` opens by name is a folder here."""
    (tmp_path / "theirs").mkdir()
    for number in range(3):
        write_lines(tmp_path / f"theirs/{number}.jsonl", TEXTS[number::3])
    theirs, load = str(tmp_path / "theirs"), datasets.load_dataset

    def by_name(name, *arguments, **settings):
        assert (name, arguments, settings) == ("some/set", ("small",), settings)
        assert settings["streaming"]
        return load(theirs, **settings)

    monkeypatch.setattr(datasets, "load_dataset", by_name)
    now = SimpleNamespace(sha="a")
    monkeypatch.setattr("huggingface_hub.dataset_info", lambda _: now)
    source = Source("some/set", subset="small", validation_fraction=0.2)
    assert len(plan(source)) == 3
    corpus = made("some/set", "out", subset="small")
    assert sorted(both(corpus)) == sorted(TEXTS)
    assert "['body']" in complaint(made, "some/set", "new", subset="small", field="body")
    with monkeypatch.context() as patch:
        patch.setattr("tlite.data.prepare._join", lambda *_: sys.exit())
        with pytest.raises(SystemExit):
            made("some/set", "again", subset="small")
    now.sha = "b"
    assert "source has changed" in complaint(made, "some/set", "again", subset="small")


def test_text_files_of_a_folder_are_documents_by_name(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in {"b": "zwei\n" * 20, "a": "\ufeffeins\r\nund", "c": "drei\n" * 5}.items():
        (folder / f"{name}.txt").write_bytes(text.encode())
    (folder / "d.txt.gz").write_bytes(gzip.compress(b"vier\n" * 10, mtime=0))
    corpus = made(folder, "out", validation_fraction=0.0, piece_size=7)
    assert both(corpus) == ["eins\nund", "zwei\n" * 20, "drei\n" * 5, "vier\n" * 10]


@pytest.mark.parametrize("lines", [20, 1])
def test_validation_has_the_end_of_each_text_of_a_folder(tmp_path, lines):
    for name in "abcdefgh":
        (tmp_path / f"{name}.txt").write_text(f"{name}\n" * lines)
    corpus = made(tmp_path, "out", validation_fraction=0.25)
    training, validation = (bytes(t for t in ids(corpus, p).tolist() if t != END) for p in PARTS)
    assert sorted(training + validation) == sorted(("abcdefgh" * lines + "\n" * 8 * lines).encode())
    assert len(validation) == 0.25 * 2 * 8 * lines
    assert len({*validation.split()}) == min(8, 2 * lines)


def test_files_that_are_skipped_are_named(tmp_path, capsys):
    made(as_folder(tmp_path), "out")
    assert "README.md" in capsys.readouterr().err


def test_of_texts_the_last_part_is_for_validation(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line {number:03d}\n" for number in range(100)))
    corpus = made("a.txt", "out", validation_fraction=0.1)
    training, validation = ids(corpus), ids(corpus, "validation")
    assert bytes(training.tolist()).endswith(b"line 089\n")
    assert bytes(validation[:-1].tolist()).startswith(b"line 090\n")
    assert validation[-1] == END  # of the file; none where the parts meet
    packed = gzip.compress((tmp_path / "a.txt").read_bytes())
    (tmp_path / "a.txt.gz").write_bytes(packed)
    again = made("a.txt.gz", "packed", validation_fraction=0.1)
    np.testing.assert_array_equal(ids(again), training)
    np.testing.assert_array_equal(ids(again, "validation"), validation)


# Tokenizers


def test_characters_have_no_mark_for_the_end(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["ab", "", "ca"] * 9)
    make = lambda texts: CharTokenizer("".join(set().union(*texts(None))))  # noqa: E731
    corpus = made(path, "out", tokenizing=("characters", make), validation_fraction=0.0)
    assert ids(corpus).tolist() == [0, 1, 2, 0] * 9
    assert corpus.manifest().end_id is None
    assert CharTokenizer.load(corpus.manifest().tokenizer.path).characters[:3] == "abc"


def test_a_learned_tokenizer_sees_the_training_part_alone(tmp_path):
    source = Source(str(write_lines(tmp_path / "a.jsonl", TEXTS)), validation_fraction=0.3)
    pieces = plan(source, 300)
    training = [text for text in TEXTS if side_of(text, 0.3) == "training"]
    assert set(texts_of(source, pieces, 10**9)) <= set(training)
    some = list(texts_of(source, pieces, 500))
    assert 300 < sum(len(text.encode()) for text in some) < 4000
    assert set(some) <= set(training)
    assert list(texts_of(source, pieces, None)) == TEXTS


@pytest.mark.parametrize("rows", [1, 3, 7])  # of a piece: 66 pieces, 22, 10
def test_a_tokenizer_is_learned_from_at_most_16_pieces(tmp_path, rows):
    source = Source(str(as_parquet(tmp_path, rows)), validation_fraction=0.0)
    pieces = plan(source)
    assert len(list(texts_of(source, pieces, 16))) == min(len(pieces), 16)


def test_subwords_are_those_of_the_whole_text(tmp_path):
    pytest.importorskip("tokenizers")
    from tlite.pretrained import PretrainedTokenizer, learn_bpe

    texts = [text for text in TEXTS if text.strip() and text[:2] != "<|"]
    tokenizing = ("bpe", lambda read: learn_bpe(read(10**6), 400))
    path = write_lines(tmp_path / "a.jsonl", texts)
    corpus = made(path, "out", tokenizing=tokenizing, validation_fraction=0.0, piece_size=500)
    manifest = corpus.manifest()
    tokenizer = PretrainedTokenizer.load(manifest.tokenizer.path)
    rows = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
    expected = [[*row, manifest.end_id] for row in rows]
    assert ids(corpus).tolist() == list(itertools.chain(*expected))


def test_an_end_mark_that_is_typed_in_a_text_is_text(tmp_path):
    pytest.importorskip("tokenizers")
    from tlite.pretrained import learn_bpe

    path = write_lines(tmp_path / "a.jsonl", TEXTS)
    tokenizing = ("bpe", lambda read: learn_bpe(read(10**6), 400))
    corpus = made(path, "out", tokenizing=tokenizing, validation_fraction=0.0)
    assert ids(corpus).tolist().count(corpus.manifest().end_id) == len(TEXTS)


def test_a_second_corpus_in_the_same_folder_has_its_own_tokens(tmp_path):
    pytest.importorskip("tokenizers")
    from tlite.pretrained import learn_bpe

    path, tokens = write_lines(tmp_path / "a.jsonl", TEXTS), {}
    for folder, pieces in (("out", 258), ("out", 300), ("other", 300)):
        shutil.rmtree(folder, ignore_errors=True)
        tokenizing = (f"bpe:{pieces}", lambda read, n=pieces: learn_bpe(read(10**6), n))
        tokens[folder] = ids(made(path, folder, tokenizing=tokenizing))
    np.testing.assert_array_equal(tokens["out"], tokens["other"])


def test_a_saved_set_that_has_changed_is_read_anew(tmp_path):
    path = as_saved(tmp_path)
    assert both(made(path, "out", validation_fraction=0.0)) == TEXTS
    shutil.rmtree(path)
    datasets.Dataset.from_dict({"text": ["new", "texts"]}).save_to_disk(path)
    assert both(made(path, "new", validation_fraction=0.0)) == ["new", "texts"]


def test_more_than_65535_tokens_are_written_as_four_bytes(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    from tlite.pretrained import PretrainedTokenizer

    words = {f"w{number}": number for number in range(70_000)} | {"?": 70_000}
    content = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    content.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizing = ("words", lambda _: PretrainedTokenizer(content, {"eos": "w5"}))
    path = write_lines(tmp_path / "a.jsonl", ["w69999 w3", "w65536"])
    corpus = made(path, "out", tokenizing=tokenizing, validation_fraction=0.0)
    assert corpus.manifest().dtype == "uint32"
    assert ids(corpus).tolist() == [69_999, 3, 5, 65_536, 5]


# Kills


@pytest.fixture
def long_source(tmp_path) -> Path:
    numbers = random.Random(0)
    texts = (f"{number} {numbers.random()}\n" * numbers.randrange(9) for number in range(1500))
    return write_lines(tmp_path / "long.jsonl", texts)


def finished_pieces(folder: str) -> int:
    try:  # it goes when the pieces are joined
        return sum(map(str.isdigit, os.listdir(f"{folder}.preparing/pieces")))
    except FileNotFoundError:
        return 0


def test_after_kills_at_any_moment_the_bytes_are_the_same(long_source):
    folder = os.path.abspath("killed")
    code, out, err = python("-m", "tests.helpers.killed_preparing", long_source, folder)
    assert (code, err) == (0, "")
    assert int(out.splitlines()[-1]) > 5
    made(long_source, "whole", **PIECES)
    assert content("killed") == content("whole")
    assert not Path("killed.preparing").exists()


def begun_process(source: Path, folder: str):
    """A process that prepares by two of its own, and has done some pieces."""
    started = process(source, os.path.abspath(folder), 2, 700)
    while finished_pieces(folder) < 5 and started.poll() is None:
        time.sleep(0.01)
    return started


def test_killed_processes_leave_no_children_and_another_number_goes_on(long_source):
    psutil = pytest.importorskip("psutil")
    made(long_source, "whole", piece_size=700)
    started = begun_process(long_source, "killed")
    children = psutil.Process(started.pid).children(recursive=True)
    started.kill()
    started.communicate()
    assert len(children) >= 2
    assert not psutil.wait_procs(children, timeout=20)[1]
    made(long_source, "killed", piece_size=700)
    assert content("killed") == content("whole")


def test_a_child_that_is_killed_is_told_and_what_was_done_is_kept(long_source):
    psutil = pytest.importorskip("psutil")
    started = begun_process(long_source, "out")
    for child in psutil.Process(started.pid).children():
        if "spawn_main" in " ".join(child.cmdline()):
            child.kill()
    _, err = started.communicate(timeout=60)
    assert started.returncode != 0
    assert "UserError: a process that encodes texts was killed" in err.splitlines()[-1]
    assert finished_pieces("out") >= 5
    assert not Path("out").exists()


def test_ctrl_c_ends_a_process_and_the_command_goes_on(long_source):
    started = begun_process(long_source, "out")
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert err, started.returncode
    assert "interrupted" in err.splitlines()[-1]
    assert content_of_both(made(long_source, "out", piece_size=700), made(long_source, "whole"))


def content_of_both(one, other) -> bool:
    return all(np.array_equal(ids(one, p), ids(other, p)) for p in ("training", "validation"))


@pytest.fixture
def begun(long_source, monkeypatch):
    """A preparation that Ctrl-C has stopped within its sixth piece, in out.preparing."""

    def stop(source, corpus, folder, task):
        if task[0] == 5:
            (folder / "5.new").mkdir()
            (folder / "5.new/validation").write_bytes(b"half a piece")
            raise KeyboardInterrupt
        return encode_piece(source, corpus, folder, task)

    with monkeypatch.context() as patch:
        patch.setattr("tlite.data.prepare.encode_piece", stop)
        told = r"interrupted after 5 of \d+ pieces: the same command goes on from there"
        with pytest.raises(Interrupted, match=told):
            made(long_source, "out", piece_size=2000)
    return long_source


def test_another_size_of_shards_goes_on_with_the_pieces(begun):
    Path("out.preparing/corpus/train.bin").write_bytes(b"of a join that was killed")
    corpus = made(begun, "out", piece_size=2000, shard_tokens=30_000)
    assert content_of_both(corpus, made(begun, "whole"))
    assert corpus.manifest().splits["training"].files[0].tokens == 30_000
    assert not Path("out/train.bin").exists()


def test_what_a_kill_has_left_of_a_corpus_that_is_whole_is_no_obstacle(begun, monkeypatch):
    shutil.rmtree("out.preparing/pieces/5.new")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *_, **__: None)
        made(begun, "out", piece_size=2000)
    before = content("out")
    assert "exists already" in complaint(made, begun, "out", piece_size=2000)
    assert not Path("out.preparing").exists()
    shutil.rmtree("out")
    made(begun, "out", piece_size=2000)
    assert content("out") == before


def test_all_is_on_the_disk_before_the_corpus_appears(tmp_path, monkeypatch):
    written, fsync, rename = set(), os.fsync, os.rename

    def noted(file):
        written.add(os.fstat(file).st_ino)
        fsync(file)

    def appears(before, after, **_):
        assert {path.stat().st_ino for path in Path(before).iterdir()} <= written
        rename(before, after)

    monkeypatch.setattr("os.fsync", noted)
    monkeypatch.setattr("os.rename", appears)
    made(write_lines(tmp_path / "a.jsonl", TEXTS), "out")
    assert content("out").keys() == {"corpus.json", "tokenizer.json", "train.bin", "val.bin"}


def test_another_command_a_changed_source_and_two_at_a_time_are_refused(begun):
    fcntl = pytest.importorskip("fcntl")
    with open("out.preparing/lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another process is writing" in complaint(made, begun, "out", piece_size=2000)
    told = "out.preparing is what another command has begun, or its source has changed"
    for change in ({"piece_size": 1000}, {"validation_fraction": 0.5}, {"field": "n"}):
        assert told in complaint(made, begun, "out", **{"piece_size": 2000} | change)
    with begun.open("a") as file:
        file.write('{"text": "more"}\n')
    assert told in complaint(made, begun, "out", piece_size=2000)


# What is refused


def test_a_folder_that_exists_is_refused(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", TEXTS)
    (tmp_path / "out").mkdir()
    assert "out exists already" in complaint(made, path, "out")
    (tmp_path / "new.preparing").mkdir()
    (tmp_path / "new.preparing/mine").touch()
    assert "is in the way" in complaint(made, path, "new")
    assert os.listdir("new.preparing") != []


FAULTS = {
    '{"text": 3}': "has no text under 'text', but a int",
    '{"body": "a"}': "has no column 'text': it has body",
    "[1]": "is not a JSON object",
    "{": "is not JSON",
    '{"text": "\\ud800"}': "is not JSON",
    "[" * 10**5: "is not JSON",
    "\udcff": "is not JSON",
}


@pytest.mark.parametrize("line", FAULTS, ids=range(len(FAULTS)))
@pytest.mark.parametrize("piece_size", [10, 2**23])
def test_a_line_that_is_no_document_is_named(tmp_path, line, piece_size):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + line.encode("utf-8", "surrogateescape") + b"\n")
    told = complaint(made, path, "out", piece_size=piece_size)
    assert f"the line at byte 14 of {path} {FAULTS[line]}" in told


def test_null_and_empty_lines_are_left_out(tmp_path):
    (tmp_path / "a.jsonl").write_text('\n{"text": null}\n \n{"text": ""}\n{"text": "a"}')
    assert both(made("a.jsonl", "out", validation_fraction=0.0)) == ["a"]


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("a.txt", b"fine\nbad \xff\n", "is not UTF-8 text"),
        ("a.txt", b"cut \xc3", "is not UTF-8 text"),
        ("a.txt", b"", "has no documents"),
        ("a.jsonl", b"", "has no documents"),
        ("a.txt.gz", gzip.compress(b"x" * 999, mtime=0)[:-9], "is not a whole gzip file"),
        ("a.jsonl.gz", b"plain", "is not a whole gzip file"),
        ("a.parquet", b"PAR1 nothing", "is not a whole Parquet file"),
        ("a.csv", b"text\nx", "has none of the endings .txt, .jsonl"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_told(tmp_path, name, given, told):
    (tmp_path / name).write_bytes(given)
    assert told in complaint(made, tmp_path / name, "out")
    assert not Path("out").exists()


def test_what_is_not_there_is_told(tmp_path):
    assert "there is no file missing.txt" in complaint(made, "missing.txt", "out")
    assert "can't read 'train' of the set 'no/such'" in complaint(made, "no/such", "out")
    (tmp_path / "empty").mkdir()
    assert "has none of the endings" in complaint(made, "empty", "out")
    os.mkfifo(tmp_path / "pipe.txt")
    assert "it is a pipe" in complaint(made, tmp_path / "pipe.txt", "out")
    told = complaint(made, as_parquet(tmp_path), "out", field="body")
    assert "has no column 'body': it has n, text" in told
    assert "['body']" in complaint(made, as_saved(tmp_path), "out", field="body")
    assert "can't read 'dev'" in complaint(made, as_saved_splits(tmp_path), "out", split="dev")


def test_too_few_documents_for_a_validation_part_are_told(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["one"])
    told = complaint(made, path, "out", validation_fraction=0.001)
    assert "no document is in the validation part: raise" in told
    assert made(path, "out", validation_fraction=0.0).manifest().splits.keys() == {"training"}


def test_numbers_that_can_not_be_are_told(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", TEXTS)
    for fraction in (-0.1, 1.0, float("nan")):
        assert "validation fraction" in complaint(made, path, "out", validation_fraction=fraction)
    for name in ("processes", "shard_tokens"):
        assert "negative" in complaint(prepare, Source(str(path)), Path(), *BYTES, **{name: -1})


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "a.jsonl", TEXTS)

    def full(*_, **__):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr("tlite.data.prepare.read_pieces", full)
        assert os.strerror(28) in complaint(made, path, "out")
        assert finished_pieces("out") == 1
    assert sorted(both(made(path, "out"))) == sorted(TEXTS)
