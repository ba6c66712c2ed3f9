"""Prepare corpora of bytes, and read them back."""

import json
from pathlib import Path

import numpy as np

from tlite.data import Corpus
from tlite.data.documents import Source
from tlite.data.prepare import prepare
from tlite.text import ByteTokenizer

END = 256
BYTES = "bytes", lambda texts: ByteTokenizer()
SPLITS = "training", "validation"


def prepare_corpus(source, folder, *, tokenizer=BYTES, unit_bytes=2**23, **settings) -> Corpus:
    """Prepare a corpus of a source with these settings, of bytes by default."""
    settings = {"validation_fraction": 0.2} | settings
    prepare(Source(str(source), **settings), Path(folder), *tokenizer, unit_bytes)
    return Corpus(str(folder))


def read_ids(corpus: Corpus, split: str = "training") -> np.ndarray:
    """Return all tokens of a split; none if there is no such split."""
    if split not in corpus.manifest().splits:
        return np.zeros(0, int)
    tokens = corpus.open(split)
    return tokens.read(0, len(tokens)).astype(int)


def read_documents(corpus: Corpus, *splits: str) -> list[str]:
    """Return the documents of splits of a corpus of bytes, of both by default."""
    tokens = np.concatenate([read_ids(corpus, split) for split in splits or SPLITS])
    *texts, rest = np.split(tokens, np.flatnonzero(tokens == END) + 1)
    assert len(rest) == 0  # every document ends with END
    return [bytes(text[:-1].tolist()).decode() for text in texts]


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files in a folder by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def write_json_lines(path: Path, texts) -> Path:
    rows = (json.dumps({"text": text, "n": 1}, ensure_ascii=False) for text in texts)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path
