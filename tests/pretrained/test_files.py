"""Reading what others have written, in one piece or none; damage is one sentence."""

import contextlib
import json
import os

import ml_dtypes
import numpy as np
import pytest

from tlite.errors import UserError
from tlite.pretrained.files import read_json, stored_arrays, write_arrays

library = pytest.importorskip("safetensors.numpy")
load_file, save_file = library.load_file, library.save_file
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


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


def test_reads_what_the_library_writes(arrays, tmp_path):
    save_file(arrays, tmp_path / FILE)
    stored = stored_arrays(tmp_path)
    assert stored.keys() == arrays.keys()
    for name in arrays.keys() - {"mask"}:
        read = stored[name].read()
        assert (read.dtype, read.shape) == (arrays[name].dtype, arrays[name].shape)
        np.testing.assert_array_equal(read, arrays[name])
        assert not read.flags.writeable or not read.size
    with pytest.raises(UserError, match="has mask as BOOL"):
        stored["mask"].read()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_the_library_reads_what_is_written(dtype, tmp_path):
    values = {"a": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.float32([1, 2, 3])}
    shapes = {name: array.shape for name, array in values.items()}
    write_arrays(tmp_path / FILE, shapes, dtype, values.get)
    read = load_file(tmp_path / FILE)
    assert read.keys() == values.keys()
    for name, array in values.items():
        np.testing.assert_array_equal(read[name].astype(np.float32), array)
        np.testing.assert_array_equal(stored_arrays(tmp_path)[name].read(), read[name])


def test_shards(arrays, tmp_path):
    names = list(arrays)
    places = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(names)}
    for file in set(places.values()):
        save_file({n: arrays[n] for n in names if places[n] == file}, tmp_path / file)
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
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(UserError, match="safe_serialization=True"):
        stored_arrays(tmp_path)


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
    with pytest.raises(UserError, match="has a as F4: arrays of type F4 can't be read"):
        stored_arrays(tmp_path)


def test_named_pipes_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UserError, match="is not a file"):
        read_json(tmp_path / "config.json")
    with pytest.raises(UserError, match=r"can't read .*No such file"):
        read_json(tmp_path / "other.json")
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(UserError, match="has no weights"):
        stored_arrays(tmp_path)
    os.mkfifo(tmp_path / "part-0.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "part-0.safetensors"}}))
    with pytest.raises(UserError, match="is not a file"):
        stored_arrays(tmp_path)


def test_every_truncation_is_noticed(arrays, tmp_path):
    save_file(arrays, tmp_path / FILE)
    whole = (tmp_path / FILE).read_bytes()
    for length in [*range(0, len(whole), 7), len(whole) - 1]:
        (tmp_path / FILE).write_bytes(whole[:length])
        with pytest.raises(UserError, match="damaged"):
            stored_arrays(tmp_path)
    (tmp_path / FILE).write_bytes(whole + b"\0")
    with pytest.raises(UserError, match="damaged"):
        stored_arrays(tmp_path)


def test_flipped_bits_are_noticed_or_harmless(arrays, tmp_path):
    """Whatever happens to the header, there is an answer or one sentence."""
    save_file(arrays, tmp_path / FILE)
    whole = bytearray((tmp_path / FILE).read_bytes())
    random = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[random.integers(0, 400)] ^= 1 << random.integers(0, 8)
        (tmp_path / FILE).write_bytes(damaged)
        with contextlib.suppress(UserError):
            for stored in stored_arrays(tmp_path).values():
                stored.read()
