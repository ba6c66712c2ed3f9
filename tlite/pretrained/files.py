"""Files of a Hugging Face folder: JSON, and arrays in safetensors, which can't run code."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tlite.data.reading import is_regular_file, read_json
from tlite.errors import UserError, needs_extra

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}


class StoredArray(NamedTuple):
    """An array in an open safetensors file; `dtype` is a name of the format, such as "BF16"."""

    path: Path
    name: str
    dtype: str
    file: Any

    def read(self) -> np.ndarray:
        """Read the array; a type that is not in `DTYPES` is a UserError."""
        if self.dtype not in DTYPES:
            raise UserError(f"{self.path}: {self.name} is {self.dtype}, not {', '.join(DTYPES)}")
        return self.file.get_tensor(self.name)


def read_optional_json(folder: Path, name: str) -> dict[str, Any]:
    """Read the JSON object in a file of a folder; {} if the file does not exist."""
    return read_json(folder / name) if (folder / name).is_file() else {}


def download(name: str, content: str, patterns: list[str], **options: Any) -> Path:
    """Download files from the Hugging Face hub; returns the folder in its cache."""
    with needs_extra("text"):
        from huggingface_hub import snapshot_download
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, **options))
    except Exception as error:  # of the network, the hub, its cache: a dozen classes
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
        missing = f"there is no file or folder {name}, and the Hugging Face hub gave no {content}"
        raise UserError(f"{missing} of this name ({reason})") from error


def open_arrays(folder: Path) -> dict[str, StoredArray]:
    """Open the arrays of a folder, in model.safetensors or its shards."""
    if (folder / WEIGHTS).is_file():
        return _open_file(folder / WEIGHTS)
    if (folder / INDEX).is_file():
        shards = read_json(folder / INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
            raise UserError(f"{folder / INDEX} is damaged: its weight_map names no files")
        files = {shard: _open_file(folder / Path(shard).name) for shard in set(shards.values())}
        if missing := [name for name, shard in shards.items() if name not in files[shard]]:
            raise UserError(f"{folder / shards[missing[0]]} is damaged: it has no {missing[0]}")
        return {name: files[shard][name] for name, shard in shards.items()}
    if any(folder.glob("*.bin")) or any(folder.glob("*.ckpt")):
        raise UserError(
            f"{folder} has its weights in pickles only, which tlite never reads as they can run "
            "code: convert them with transformers' save_pretrained(folder, safe_serialization=True)"
        )
    raise UserError(f"{folder} has no weights: neither {WEIGHTS} nor {INDEX}")


def _open_file(path: Path) -> dict[str, StoredArray]:
    """Open the arrays of a file; the library checks that the header matches the bytes."""
    with needs_extra("text"):
        from safetensors import SafetensorError, safe_open
    is_regular_file(path)  # raises for a named pipe, whose opening would wait for a writer
    try:
        file = safe_open(path, "np")
        dtypes = {name: file.get_slice(name).get_dtype() for name in file.offset_keys()}
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    return {name: StoredArray(path, name, dtype, file) for name, dtype in dtypes.items()}


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a safetensors file in float32; a disk error is a UserError."""
    with needs_extra("text"):
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    values = {name: np.asarray(array, "<f4", order="C") for name, array in arrays.items()}
    try:
        save_file(values, path, {"format": "pt"})  # transformers requires this entry
    except (OSError, SafetensorError) as error:
        raise UserError(f"can't write {path}: {error}") from error
