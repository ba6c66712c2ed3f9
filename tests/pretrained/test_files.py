"""Files of Hugging Face folders: damage is an error, and no code runs."""

import json
import os
import pickle
import zipfile

import ml_dtypes
import numpy as np
import pytest

from tlite.errors import UserError
from tlite.pretrained import load_pretrained
from tlite.pretrained.files import open_arrays, write_arrays

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def library():
    """The safetensors library."""
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


def test_open_arrays_reads_files_of_the_library(arrays, library, tmp_path):
    library.save_file(arrays, tmp_path / FILE)
    stored = open_arrays(tmp_path)
    assert stored.keys() == arrays.keys()
    for name in arrays.keys() - {"mask"}:
        read = stored[name].read()
        assert (read.dtype, read.shape) == (arrays[name].dtype, arrays[name].shape)
        np.testing.assert_array_equal(read, arrays[name])
    with pytest.raises(UserError, match="mask is BOOL"):
        stored["mask"].read()


def test_the_library_reads_written_arrays(library, tmp_path):
    values = {"a": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.float32([1, 2, 3])}
    write_arrays(tmp_path / FILE, values)
    read = library.load_file(tmp_path / FILE)
    assert read.keys() == values.keys()
    for name, array in values.items():
        np.testing.assert_array_equal(read[name].astype(np.float32), array)
        np.testing.assert_array_equal(open_arrays(tmp_path)[name].read(), read[name])


def test_shards(arrays, library, tmp_path):
    names = list(arrays)
    shards = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(names)}
    for file in set(shards.values()):
        library.save_file({n: arrays[n] for n in names if shards[n] == file}, tmp_path / file)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": shards}))
    stored = open_arrays(tmp_path)
    assert stored.keys() == arrays.keys()
    np.testing.assert_array_equal(stored["d"].read(), arrays["d"])
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / FILE)  # is not opened
    for content, says in [
        ('{"weight_map": {"a": "pipe"}}', "it is a pipe, not a file"),
        ('{"weight_map": {"a": "../part-0.safetensors", "x": "part-0.safetensors"}}', "no x"),
        ('{"weight_map": {"a": "part-9.safetensors"}}', "can't read .*part-9"),
        ('{"weight_map": {"a": ".."}}', "it is a directory"),
        ('{"weight_map": {"a": 3}}', "its weight_map names no files"),
        ("{", "is damaged"),
    ]:
        (tmp_path / INDEX).write_text(content)
        with pytest.raises(UserError, match=says):
            open_arrays(tmp_path)


def test_pickles_are_never_read(tmp_path):
    with pytest.raises(UserError, match="has no weights"):
        open_arrays(tmp_path)
    trace = tmp_path / "unpickled"

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(trace),)

    content = pickle.dumps({"a": Trap()}, protocol=2)
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as file:  # as torch.save lays it out
        for name, data in {"data.pkl": content, "data/0": bytes(8), "version": b"3\n"}.items():
            file.writestr(f"pytorch_model/{name}", data)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    for read in (open_arrays, load_pretrained):
        with pytest.raises(UserError, match="safe_serialization=True"):
            read(tmp_path)
    (tmp_path / "pytorch_model.bin").rename(tmp_path / FILE)
    with pytest.raises(UserError, match="is damaged"):
        open_arrays(tmp_path)
    assert not trace.exists()
    pickle.loads(content)
    assert trace.exists()


def test_every_truncation_is_an_error(arrays, library, tmp_path):
    library.save_file(arrays, tmp_path / FILE)
    intact = (tmp_path / FILE).read_bytes()
    damaged = (intact[:length] for length in [*range(0, len(intact), 7), len(intact) - 1])
    for content in (*damaged, intact + b"\0", intact.replace(b"[3,5]", b"[3,6]")):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(UserError, match="damaged"):
            open_arrays(tmp_path)
