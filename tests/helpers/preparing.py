"""Prepare corpora of bytes, read them back, and prepare in another process."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from tlite.data import Corpus
from tlite.data.documents import Source
from tlite.data.prepare import prepare
from tlite.text import ByteTokenizer

END = 256
BYTES = "bytes", lambda texts: ByteTokenizer()
ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
from tests.helpers.preparing import made
from tlite.__main__ import InterruptHandler
if __name__ == "__main__":
    # As the command does: else a __del__ may swallow Ctrl-C.
    sys.unraisablehook = InterruptHandler().report
    made(*sys.argv[1:3], processes=int(sys.argv[3]), piece_size=int(sys.argv[4]))
"""


def made(source, folder, *, tokenizing=BYTES, processes=1, piece_size=2**23, **settings):
    """Prepare a corpus of a source, of bytes by default."""
    options = {"processes": processes, "piece_size": piece_size}
    options |= {n: settings.pop(n) for n in ("shard_tokens",) if n in settings}
    settings = {"validation_fraction": 0.2} | settings
    prepare(Source(str(source), **settings), Path(folder), *tokenizing, **options)
    return Corpus(str(folder))


def ids(corpus: Corpus, part: str = "training") -> np.ndarray:
    """All tokens of a part; none where there is none."""
    if part not in corpus.manifest().splits:
        return np.zeros(0, int)
    tokens = corpus.open(part)
    return tokens.read(0, len(tokens)).astype(int)


def documents(corpus: Corpus, part: str = "training") -> list[str]:
    """Return the documents of a split of a corpus of bytes."""
    tokens = ids(corpus, part)
    *texts, rest = np.split(tokens, np.flatnonzero(tokens == END) + 1)
    assert len(rest) == 0  # every document ends with END
    return [bytes(text[:-1].tolist()).decode() for text in texts]


def both(corpus: Corpus) -> list[str]:
    return documents(corpus, "training") + documents(corpus, "validation")


def content(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files in a folder by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def write_lines(path: Path, texts) -> Path:
    """Write texts as JSON Lines."""
    rows = (json.dumps({"text": text, "n": 1}, ensure_ascii=False) for text in texts)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def process(*arguments) -> subprocess.Popen:
    """Start a process that prepares a corpus: source, folder, processes, piece size."""
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, **streams)
