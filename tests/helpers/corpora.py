"""Small corpora on disk."""

from pathlib import Path

import numpy as np

from tlite.data.corpus import (
    DTYPES,
    CorpusTokenizer,
    Manifest,
    SplitFiles,
    TokenFile,
    dtype_for,
    write_manifest,
)
from tlite.text import ByteTokenizer
from tlite.training.run_dir import sha256

DOCUMENTS = [f"{n} bottles of beer, {'Öl' * (n % 3)} on the wall.\n" for n in range(80)]


def write_corpus(folder: Path, tokenizer=None) -> Path:
    """The documents, the last tenth for validation, each with the tokenizer's end mark."""
    tokenizer = tokenizer or ByteTokenizer()
    path, end, size, parts = folder / "tokenizer.json", tokenizer.eos_id, len(tokenizer), {}
    folder.mkdir(parents=True)
    tokenizer.save(path)
    for name, file, some in (
        ("training", "train.bin", DOCUMENTS[:72]),
        ("validation", "val.bin", DOCUMENTS[72:]),
    ):
        rows = [np.r_[tokenizer.encode(d), [] if end is None else [end]] for d in some]
        ids = np.concatenate(rows).astype(DTYPES[dtype_for(size)])
        ids.tofile(folder / file)
        files = (TokenFile(file, len(ids), sha256(folder / file)),)
        parts[name] = SplitFiles(files, len(some), sum(len(d.encode()) for d in some))
    of = CorpusTokenizer(tokenizer.kind, str(path), sha256(path))
    write_manifest(folder, Manifest(dtype_for(size), size, parts, of, end))
    return folder
