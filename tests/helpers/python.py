"""Another Python, for what needs a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def python(*words: object, folder: Path = ROOT, **environment: str) -> Ran:
    """`python WORDS` in a folder, by default as it is here with these variables; reads nothing."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=300,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr)
