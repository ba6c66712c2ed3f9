"""The arrays of a Hugging Face folder: read where they lie, one at a time, and written.

A safetensors file is the length of its header in eight bytes (little-endian), the header in JSON,
{name: {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}}, and the data without a gap
(github.com/huggingface/safetensors, "Format"). Nothing in it can be executed.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tlite.errors import UserError, disk_errors

NAME, INDEX = "model.safetensors", "model.safetensors.index.json"
LONGEST_HEADER = 100_000_000  # bytes; that of the format's own library
TYPES = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
# Of other types there are only buffers, which nobody reads; but their bytes are counted too.
BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2,
    "F16": 2,
    "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8, "C64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """An array in a file."""

    path: Path
    name: str
    dtype: str
    """As the format names it: "BF16"."""
    shape: tuple[int, ...]
    begin: int
    """Its first byte in the file."""

    def read(self) -> np.ndarray:
        """The array, memory-mapped and read-only.

        Raises:
            UserError: it is not of a type that weights have.
        """
        if self.dtype not in TYPES:
            raise UserError(
                f"{self.path} has {self.name} as {self.dtype}: weights are read as "
                f"{', '.join(TYPES)} only, so save the model in one of these types"
            )
        if not math.prod(self.shape):
            return np.zeros(self.shape, TYPES[self.dtype])
        return np.memmap(self.path, TYPES[self.dtype], "r", self.begin, self.shape)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        UserError: there is no such file, or something else in it.
    """
    _check_file(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: it is not JSON") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it is not a JSON object")
    return content


def _check_file(path: Path) -> None:
    """Refuse what is no file: to open a named pipe is to wait for a writer."""
    if path.exists() and not path.is_file():
        raise UserError(f"can't read {path}: it is not a file")


def stored_arrays(folder: Path) -> dict[str, Stored]:
    """Where the arrays of a folder are, by name: in model.safetensors or its shards.

    Raises:
        UserError: there are none, or a file is damaged or missing.
    """
    if (folder / NAME).is_file():
        return _entries(folder / NAME)
    if (folder / INDEX).is_file():
        return _sharded(folder)
    if any(folder.glob("*.bin")) or any(folder.glob("*.ckpt")):
        raise UserError(
            f"{folder} has its weights in pickles only, which tlite never reads as they can run "
            "code: convert them with transformers, "
            "model.save_pretrained(folder, safe_serialization=True)"
        )
    raise UserError(f"{folder} has no weights: there is neither {NAME} nor {INDEX} in it")


def _sharded(folder: Path) -> dict[str, Stored]:
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(p, str) for p in places.values()):
        raise UserError(f"{folder / INDEX} is damaged: its weight_map names no files")
    files = {}
    for file in dict.fromkeys(places.values()):
        if file != Path(file).name or file in ("", "..") or "\\" in file:
            raise UserError(f"{folder / INDEX} names {file!r}, which is not a file of its folder")
        files[file] = _entries(folder / file)
    if missing := next((name for name, file in places.items() if name not in files[file]), None):
        raise UserError(f"{folder / places[missing]} is damaged: it has no array {missing}")
    return {name: files[file][name] for name, file in places.items()}


def _entries(path: Path) -> dict[str, Stored]:
    """What the header of a file says, once it is certain that the file's bytes agree with it."""
    _check_file(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, LONGEST_HEADER):
                raise ValueError("its header is cut off")
            header = json.loads(file.read(length))
        stored = [_entry(path, n, e, 8 + length) for n, e in header.items() if n != "__metadata__"]
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error or 'its header is no JSON'}") from error
    at = 8 + length
    for entry in sorted(stored, key=lambda entry: (entry.begin, math.prod(entry.shape))):
        if entry.begin != at:
            raise UserError(f"{path} is damaged: {entry.name} does not begin where it has to")
        at += math.prod(entry.shape) * BYTES[entry.dtype]
    if at != size:
        raise UserError(f"{path} is damaged: it has {size} bytes, its header speaks of {at}")
    return {entry.name: entry for entry in stored}


def _entry(path: Path, name: str, entry: dict, start: int) -> Stored:
    dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in [*shape, begin, end]):
        raise ValueError(f"{name} has no sensible shape or place")
    if isinstance(dtype, str) and dtype not in BYTES:
        raise UserError(f"{path} has {name} as {dtype}: arrays of type {dtype} can't be read")
    if end - begin != math.prod(shape) * BYTES[dtype]:
        raise ValueError(f"{name} has another size than its shape says")
    return Stored(path, name, dtype, tuple(shape), start + begin)


def write_arrays(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str,
    array: Callable[[str], np.ndarray],
) -> None:
    """A safetensors file with `array(name)` for each name, each made when its turn comes.

    Raises:
        UserError: the disk is full, or can't be written to.
    """
    header, at = {"__metadata__": {"format": "pt"}}, 0  # which transformers asks for
    for name, shape in shapes.items():
        end = at + math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    content = json.dumps(header, separators=(",", ":")).encode()
    content += b" " * (-len(content) % 8)  # so that the data is aligned
    with disk_errors(path), path.open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        for name, shape in shapes.items():
            values = np.ascontiguousarray(array(name)).astype(TYPES[dtype], copy=False)
            assert values.shape == tuple(shape), name
            file.write(values.reshape(-1).view(np.uint8).data)
