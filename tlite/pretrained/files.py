"""The files of a Hugging Face folder: JSON, and arrays in safetensors, in which nothing can run."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tlite.data.reading import is_there, read_json
from tlite.errors import UserError, needs_extra

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
NAME, INDEX = "model.safetensors", "model.safetensors.index.json"
TYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}


class Stored(NamedTuple):
    """An array in a file, which stays open."""

    path: Path
    name: str
    dtype: str
    """As the format names it: "BF16"."""
    file: Any
    """What safetensors has opened."""

    def read(self) -> np.ndarray:
        """The array.

        Raises:
            UserError: it is not of a type that weights have.
        """
        if self.dtype not in TYPES:
            raise UserError(
                f"{self.path} has {self.name} as {self.dtype}: weights are read as "
                f"{', '.join(TYPES)} only, so save the model in one of these types"
            )
        return self.file.get_tensor(self.name)


def json_of(folder: Path, name: str) -> dict[str, Any]:
    """The object in a file of a folder; {} where there is no such file."""
    return read_json(folder / name) if (folder / name).is_file() else {}


def download(name: str, what: str, wanted: list[str], **settings: Any) -> Path:
    """The folder in which the hub's client keeps files of this name.

    Raises:
        UserError: the hub can't be reached, or has no such.
    """
    with needs_extra("text"):
        from huggingface_hub import snapshot_download
    try:
        return Path(snapshot_download(name, allow_patterns=wanted, **settings))
    except Exception as error:  # of the network, the hub, its cache: a dozen classes
        reason = " ".join(str(error).split())[:150]
        raise UserError(
            f"there is no file or folder {name}, and the Hugging Face hub gave no {what} of this "
            f"name ({type(error).__name__}: {reason})"
        ) from error


def stored_arrays(folder: Path) -> dict[str, Stored]:
    """Where the arrays of a folder are, by name: in model.safetensors or its shards.

    Raises:
        UserError: there are none, or a file is damaged or missing.
    """
    if (folder / NAME).is_file():
        return _entries(folder / NAME)
    if (folder / INDEX).is_file():
        places = json_of(folder, INDEX).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(p, str) for p in places.values()):
            raise UserError(f"{folder / INDEX} is damaged: its weight_map names no files")
        files = {file: _entries(folder / Path(file).name) for file in set(places.values())}
        if missing := [name for name, file in places.items() if name not in files[file]]:
            raise UserError(f"{folder / places[missing[0]]} is damaged: it has no {missing[0]}")
        return {name: files[file][name] for name, file in places.items()}
    if any(folder.glob("*.bin")) or any(folder.glob("*.ckpt")):
        raise UserError(
            f"{folder} has its weights in pickles only, which tlite never reads as they can run "
            "code: convert them with transformers, "
            "model.save_pretrained(folder, safe_serialization=True)"
        )
    raise UserError(f"{folder} has no weights: there is neither {NAME} nor {INDEX} in it")


def _entries(path: Path) -> dict[str, Stored]:
    """The arrays of a file, of which the library checks that its header describes its bytes."""
    with needs_extra("text"):
        from safetensors import SafetensorError, safe_open
    is_there(path)  # to open a named pipe is to wait for a writer
    try:
        file = safe_open(path, "np")
        types = {name: file.get_slice(name).get_dtype() for name in file.offset_keys()}
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    return {name: Stored(path, name, dtype, file) for name, dtype in types.items()}


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], dtype: str) -> None:
    """A safetensors file of arrays, all of one type.

    Raises:
        UserError: the disk is full, or can't be written to.
    """
    with needs_extra("text"):
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    rows = {name: np.asarray(array, TYPES[dtype], order="C") for name, array in arrays.items()}
    try:
        save_file(rows, path, {"format": "pt"})  # which transformers asks for
    except (OSError, SafetensorError) as error:
        raise UserError(f"can't write {path}: {error}") from error
