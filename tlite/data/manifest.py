"""What lies in a corpus's folder: its corpus.json, or what nanoGPT's files are taken for.

Token files are nanoGPT's: the ids one after another as little-endian uint16, or as uint32 where
there are more than 65,535 tokens, without any header. corpus.json says what else there is to know.
"""

import json
import operator
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tlite.data.reading import read_json, size_of
from tlite.errors import UserError

NAME = "corpus.json"
FORMAT = "tlite corpus 1"
BEGINNINGS = {"training": "train", "validation": "val"}
TYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
KINDS = ("characters", "bytes", "pretrained")
LLM_C = (20240520, 20240801)  # the first number of the header that llm.c writes, and modded-nanogpt


@dataclass(frozen=True)
class TokenFile:
    """A file of a part."""

    name: str
    tokens: int
    sha256: str = ""


@dataclass(frozen=True)
class PartFiles:
    """The files of a part, which follow each other as one sequence."""

    files: tuple[TokenFile, ...]
    documents: int | None = None
    bytes: int | None = None
    """Of its text in UTF-8, the marks at the ends of documents not among them."""

    @property
    def tokens(self) -> int:
        return sum(file.tokens for file in self.files)


@dataclass(frozen=True)
class CorpusTokenizer:
    """What the tokens are of."""

    kind: Literal["characters", "bytes", "pretrained"]
    path: str
    """Its file; of a folder without corpus.json a path or hub name, as the user gave it."""
    sha256: str = ""


@dataclass(frozen=True)
class Manifest:
    """All that is said of a corpus."""

    dtype: str
    vocabulary_size: int
    """0 where nothing says it: then it is the tokenizer's."""
    parts: dict[str, PartFiles]
    tokenizer: CorpusTokenizer | None = None
    end_id: int | None = None
    """The token that ends each document."""
    source: dict[str, Any] = field(default_factory=dict)
    """What it was made from."""


def dtype_for(vocabulary_size: int) -> str:
    """The type of the files of so many tokens."""
    return "uint16" if vocabulary_size <= 65_535 else "uint32"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """corpus.json; the tokenizer's path has to be that of a file in the folder."""
    content = {"format": FORMAT, **asdict(manifest)}
    if manifest.tokenizer:
        content["tokenizer"]["file"] = Path(content["tokenizer"].pop("path")).name
    write_file(folder / NAME, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_file(path: Path, content: str) -> None:
    """Write a file that is there whole and on the disk, or not at all."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def read_manifest(folder: Path) -> Manifest:
    """What corpus.json says, and nothing that can't be true; its files are not looked at.

    Raises:
        UserError: it is missing or damaged.
    """
    content = read_json(path := folder / NAME)
    try:
        return _manifest(folder, content)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged: it lacks what a corpus needs ({error})") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error


def _manifest(folder: Path, content: dict[str, Any]) -> Manifest:
    """Raises ValueError, KeyError, TypeError or AttributeError if the content is none of it."""
    if content["format"] != FORMAT:
        raise ValueError(f"its format is {content['format']!r}, not {FORMAT!r}")
    size, end, source = (content[name] for name in ("vocabulary_size", "end_id", "source"))
    if type(size) is not int or not 1 <= size <= 2**31 or content["dtype"] != dtype_for(size):
        raise ValueError(f"{size!r:.40} tokens are not kept as {content['dtype']!r:.40}")
    if end is not None and not 0 <= end < size:
        raise ValueError(f"{end!r:.40} is none of {size:,} tokens")
    if unknown := content["parts"].keys() - BEGINNINGS.keys():
        raise ValueError(f"there is no part {min(unknown)!r}")
    parts = {}
    for name, part in content["parts"].items():
        files = (  # their sizes must be those that are there: `check_files`
            TokenFile(plain_name(f["name"]), operator.index(f["tokens"]), str(f["sha256"]))
            for f in part["files"]
        )
        parts[name] = PartFiles(tuple(files), part["documents"], part["bytes"])
    if (tokenizer := content["tokenizer"]) is not None:
        path, sha256 = str(folder / plain_name(tokenizer["file"])), tokenizer["sha256"]
        if tokenizer["kind"] not in KINDS or not sha256:
            raise ValueError("it lacks the kind of its tokenizer, or the SHA-256")
        tokenizer = CorpusTokenizer(tokenizer["kind"], path, str(sha256))
    return Manifest(content["dtype"], size, parts, tokenizer, end, source | {})


def plain_name(name: Any) -> str:
    """A name of a file in the folder itself; raises a ValueError for a way out of it."""
    plain = isinstance(name, str) and name.isprintable() and not set(name) & set("/\\:")
    if not plain or name in ("", ".", ".."):
        raise ValueError(f"{name!r:.60} is not the name of a file in its folder")
    return name


def found_files(folder: Path, vocabulary_size: int, tokenizer: str) -> Manifest:
    """nanoGPT's own files: train.bin and val.bin, or several of each (train-00000.bin, ...).

    Nothing beside them says what they hold. They are taken for uint16, unless more than 65,535
    tokens are asked for; a meta.pkl is a pickle, and not read.

    Raises:
        UserError: there is no train.bin, or a file is none of tokens.
    """
    dtype = dtype_for(vocabulary_size)
    parts = {}
    for part, beginning in BEGINNINGS.items():
        names = [f"{beginning}.bin"]
        if not os.path.lexists(folder / names[0]):
            names = sorted(path.name for path in folder.glob(f"{beginning}[-_]*.bin"))
        if names:
            parts[part] = PartFiles(tuple(_found(folder / name, dtype) for name in names))
    if "training" not in parts:
        raise UserError(f"{folder} is no corpus: there is neither {NAME} nor train.bin in it")
    of = CorpusTokenizer("pretrained", tokenizer) if tokenizer else None
    return Manifest(dtype, vocabulary_size, parts, of)


def _found(path: Path, dtype: str) -> TokenFile:
    size, width = size_of(path), TYPES[dtype].itemsize
    with path.open("rb") as file:
        first = int.from_bytes(file.read(4), "little")
    if first in LLM_C:
        raise UserError(
            f"{path} begins with the header of llm.c and modded-nanogpt: only files without one "
            "can be read, as nanoGPT writes them"
        )
    if size % width:
        raise UserError(f"{path} has {size:,} bytes, which is no whole number of {dtype} tokens")
    return TokenFile(path.name, size // width)


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raises a `UserError` if a file is missing, no regular file, or has another size."""
    for part in manifest.parts.values():
        for file in part.files:
            path, wanted = folder / file.name, file.tokens * TYPES[manifest.dtype].itemsize
            if (size := size_of(path)) != wanted:
                raise UserError(
                    f"{path} has {size:,} bytes, but {NAME} speaks of {file.tokens:,} tokens of "
                    f"{manifest.dtype}, which are {wanted:,}"
                )
