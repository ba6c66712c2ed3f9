"""Small corpora on disk."""

from pathlib import Path

import numpy as np

from tlite.data import corpus
from tlite.text import ByteTokenizer
from tlite.training.run_dir import sha256

DOCUMENTS = [f"{n} bottles of beer, {'Öl' * (n % 3)} on the wall.\n" for n in range(80)]


def write_corpus(folder: Path, tokenizer=None) -> Path:
    """Write DOCUMENTS with the tokenizer's end token, the last tenth for validation."""
    tokenizer = tokenizer or ByteTokenizer()
    path, eos_id, size, splits = folder / "tokenizer.json", tokenizer.eos_id, len(tokenizer), {}
    folder.mkdir(parents=True)
    tokenizer.save(path)
    files = {"training": "train.bin", "validation": "val.bin"}
    for (split, file), texts in zip(files.items(), (DOCUMENTS[:72], DOCUMENTS[72:]), strict=True):
        rows = [np.r_[tokenizer.encode(text), [] if eos_id is None else [eos_id]] for text in texts]
        ids = np.concatenate(rows).astype(corpus.DTYPES[corpus.dtype_for(size)])
        ids.tofile(folder / file)
        shards = (corpus.TokenFile(file, len(ids), sha256(folder / file)),)
        splits[split] = corpus.SplitFiles(
            shards, len(texts), sum(len(text.encode()) for text in texts)
        )
    reference = corpus.CorpusTokenizer(tokenizer.kind, str(path), sha256(path))
    corpus.write_manifest(
        folder, corpus.Manifest(corpus.dtype_for(size), size, splits, reference, eos_id)
    )
    return folder
