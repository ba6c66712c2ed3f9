"""Reading what others have written, in one piece or none; damage is one sentence."""

import json
import os
import pickle
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest

from tlite.data.reading import read_json
from tlite.errors import UserError
from tlite.pretrained import load_pretrained
from tlite.pretrained.files import stored_arrays, write_arrays

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def library():
    """The format's own, which comes with transformers."""
    return pytest.importorskip("safetensors.numpy")


@pytest.fixture
def arrays():
    draw = np.random.default_rng(0).normal
    return {
        "a": draw(size=(3, 5)).astype(np.float32),
        "b.c": draw(size=7).astype(np.float16),
        "d": draw(size=(2, 2)).astype(ml_dtypes.bfloat16),
        "one": np.float32([3.0]).reshape(()),
        "none": np.zeros((0, 4), np.float32),
        "mask": np.tril(np.ones((4, 4), bool)),
    }


def test_reads_what_the_library_writes(arrays, library, tmp_path):
    library.save_file(arrays, tmp_path / FILE)
    stored = stored_arrays(tmp_path)
    assert stored.keys() == arrays.keys()
    for name in arrays.keys() - {"mask"}:
        read = stored[name].read()
        assert (read.dtype, read.shape) == (arrays[name].dtype, arrays[name].shape)
        np.testing.assert_array_equal(read, arrays[name])
    with pytest.raises(UserError, match="has mask as BOOL"):
        stored["mask"].read()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_the_library_reads_what_is_written(dtype, library, tmp_path):
    values = {"a": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.float32([1, 2, 3])}
    write_arrays(tmp_path / FILE, values, dtype)
    read = library.load_file(tmp_path / FILE)
    assert read.keys() == values.keys()
    for name, array in values.items():
        np.testing.assert_array_equal(read[name].astype(np.float32), array)
        np.testing.assert_array_equal(stored_arrays(tmp_path)[name].read(), read[name])


def test_shards(arrays, library, tmp_path):
    names = list(arrays)
    places = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(names)}
    for file in set(places.values()):
        library.save_file({n: arrays[n] for n in names if places[n] == file}, tmp_path / file)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}))
    stored = stored_arrays(tmp_path)
    assert stored.keys() == arrays.keys()
    np.testing.assert_array_equal(stored["d"].read(), arrays["d"])
    for file in ["../part-0.safetensors", "/etc/passwd", "..", "", "a\\b"]:
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": file}}))
        with pytest.raises(UserError, match="not a file of its folder"):
            stored_arrays(tmp_path)
    for content in ["{}", '{"weight_map": {"a": 3}}', "[]", "{", "\0"]:
        (tmp_path / INDEX).write_text(content)
        with pytest.raises(UserError, match="is damaged"):
            stored_arrays(tmp_path)
    for name, file in [("x", "part-0.safetensors"), ("a", "part-9.safetensors")]:
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": {name: file}}))
        with pytest.raises(UserError, match=r"has no array x|can't read"):
            stored_arrays(tmp_path)


def test_pickles_are_never_read(tmp_path):
    with pytest.raises(UserError, match="has no weights"):
        stored_arrays(tmp_path)
    trace = tmp_path / "unpickled"

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(trace),)

    content = pickle.dumps({"a": Trap()}, protocol=2)
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as file:  # as torch.save lays it out
        for name, data in {"data.pkl": content, "data/0": bytes(8), "version": b"3\n"}.items():
            file.writestr(f"pytorch_model/{name}", data)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    for read in (stored_arrays, load_pretrained):
        with pytest.raises(UserError, match="safe_serialization=True"):
            read(tmp_path)
    (tmp_path / "pytorch_model.bin").rename(tmp_path / FILE)
    with pytest.raises(UserError, match="is damaged"):
        stored_arrays(tmp_path)
    assert not trace.exists()
    pickle.loads(content)
    assert trace.exists()


def header(tmp_path, content, data=b"\0" * 8):
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    (tmp_path / FILE).write_bytes(len(content).to_bytes(8, "little") + content + data)
    return tmp_path


def entry(**changes):
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


@pytest.mark.parametrize(
    "content",
    [
        {"a": entry(data_offsets=[0, 12])},
        {"a": entry(data_offsets=[8, 16])},
        {"a": entry(data_offsets=[-8, 0])},
        {"a": entry(data_offsets=[0])},
        {"a": entry(data_offsets=[0, 8.0])},
        {"a": entry(shape=[-2])},
        {"a": entry(shape=[3])},
        {"a": entry(shape=[10**30])},
        {"a": entry(shape=[True, 2])},
        {"a": entry(shape="2")},
        {"a": entry(shape=[1], data_offsets=[0, 4])},
        {"a": entry(), "b": entry()},
        {"a": entry(dtype=None)},
        {"a": entry(dtype=["F32"])},
        {"a": {}},
        {"a": 3},
        [],
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_damaged_headers(content, tmp_path):
    with pytest.raises(UserError, match="damaged"):
        stored_arrays(header(tmp_path, content))
    assert stored_arrays(header(tmp_path, {"a": entry()}))["a"].read().tolist() == [0, 0]


def test_types_that_are_not_known_are_no_damage(tmp_path):
    header(tmp_path, {"a": entry(dtype="F4", shape=[16])})
    with pytest.raises(UserError, match="has a as F4: weights are read as F32, F16, BF16 only"):
        stored_arrays(tmp_path)["a"].read()


def test_without_the_library(tmp_path, monkeypatch):
    header(tmp_path, {"a": entry()})
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(UserError, match="needs the package safetensors"):
        stored_arrays(tmp_path)


def test_named_pipes_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UserError, match="it is a pipe, not a file"):
        read_json(tmp_path / "config.json")
    with pytest.raises(UserError, match=r"can't read .*No such file"):
        read_json(tmp_path / "other.json")
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(UserError, match="has no weights"):
        stored_arrays(tmp_path)
    os.mkfifo(tmp_path / "part-0.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "part-0.safetensors"}}))
    with pytest.raises(UserError, match="it is a pipe, not a file"):
        stored_arrays(tmp_path)


def test_every_truncation_is_noticed(arrays, library, tmp_path):
    library.save_file(arrays, tmp_path / FILE)
    whole = (tmp_path / FILE).read_bytes()
    for length in [*range(0, len(whole), 7), len(whole) - 1]:
        (tmp_path / FILE).write_bytes(whole[:length])
        with pytest.raises(UserError, match="damaged"):
            stored_arrays(tmp_path)
    (tmp_path / FILE).write_bytes(whole + b"\0")
    with pytest.raises(UserError, match="damaged"):
        stored_arrays(tmp_path)


def test_flipped_bits_are_noticed_or_harmless(arrays, library, tmp_path):
    """Whatever happens to the header, there is one sentence or the arrays, but for their names."""
    del arrays["mask"], arrays["none"]  # which are not read, or of another shape as empty
    library.save_file(arrays, tmp_path / FILE)
    whole = (tmp_path / FILE).read_bytes()
    written = [stored.read() for stored in stored_arrays(tmp_path).values()]
    random, read = np.random.default_rng(0), 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[random.integers(8 + int.from_bytes(whole[:8], "little"))] ^= 1 << random.integers(8)
        (tmp_path / FILE).write_bytes(damaged)
        try:
            found = [stored.read() for stored in stored_arrays(tmp_path).values()]
        except UserError:
            continue
        read += 1
        for array, expected in zip(found, written, strict=True):
            np.testing.assert_array_equal(array, expected, strict=True)
    assert 0 < read < 100
