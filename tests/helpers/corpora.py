"""Small corpora on disk."""

import hashlib
from pathlib import Path

import numpy as np

from tlite.data.corpus import (
    CorpusTokenizer,
    Manifest,
    PartFiles,
    TokenFile,
    dtype_for,
    write_manifest,
)
from tlite.text import ByteTokenizer, CharTokenizer

DOCUMENTS = [f"{n} bottles of beer, {'Öl' * (n % 3)} on the wall.\n" for n in range(80)]
KINDS = {ByteTokenizer: "bytes", CharTokenizer: "characters"}


def write_corpus(folder: Path, tokenizer=None, documents=DOCUMENTS, *, sizes=True) -> Path:
    """The documents, the last tenth for validation, each with the tokenizer's end mark."""
    tokenizer = tokenizer or ByteTokenizer()
    folder.mkdir(parents=True)
    tokenizer.save(folder / "tokenizer.json")
    end, size, parts = getattr(tokenizer, "eos_id", None), len(tokenizer), {}
    at = len(documents) * 9 // 10
    for name, file, some in (
        ("training", "train.bin", documents[:at]),
        ("validation", "val.bin", documents[at:]),
    ):
        rows = [np.r_[tokenizer.encode(d), [] if end is None else [end]] for d in some]
        ids = np.concatenate(rows).astype("<u2" if dtype_for(size) == "uint16" else "<u4")
        ids.tofile(folder / file)
        count = sum(len(document.encode()) for document in some) if sizes else None
        parts[name] = PartFiles(
            (TokenFile(file, len(ids), sha256(folder / file)),), len(some), count
        )
    kind, path = KINDS.get(type(tokenizer), "pretrained"), folder / "tokenizer.json"
    of = CorpusTokenizer(kind, str(path), sha256(path))
    write_manifest(folder, Manifest(dtype_for(size), size, parts, of, end))
    return folder


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
