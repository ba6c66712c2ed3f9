"""Prepare corpora of bytes, and read them back.

As a program (arguments: SOURCE FOLDER) prepare in processes that are killed one after another, each
at one of its first renames, when it has appended tokens, until one succeeds; print the number of
kills.
"""

import itertools
import json
import os
import random
import signal
import sys
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


def prepare_until_killed(source: str, folder: str, limit: int) -> None:
    count = itertools.count(1)

    def kill_at_limit(function):
        def counted(*arguments, **settings):
            if next(count) == limit:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **settings)

        return counted

    os.rename, os.replace = kill_at_limit(os.rename), kill_at_limit(os.replace)
    prepare_corpus(source, folder, unit_bytes=2000)


if __name__ == "__main__":
    numbers, ends = random.Random(1), []
    while not ends or ends[-1] == -signal.SIGKILL:
        limit = 1 if not ends else numbers.randrange(2, 15)
        if not (child := os.fork()):  # JAX has started no thread here
            prepare_until_killed(*sys.argv[1:], limit)
            sys.stdout.flush()
            os._exit(0)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(f"\n{len(ends) - 1}")
    sys.exit(ends[-1])
