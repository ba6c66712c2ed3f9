"""Run Python, tlite commands and a browser in other processes."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SMALL_DATA = re.compile(r"^warning: \d+ of \d+ (different words are|texts exceed) .*\n", re.M)
"""Warnings of the small data that tests train on."""


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def python(*words: object, folder: Path = ROOT, **environment: str) -> Ran:
    """Run `python WORDS` in a folder with these environment variables and no input."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=300,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr)


# A process that imports slow modules once, and forks for each command that it reads. A command that
# takes too long prints what its threads do.
FORKS = """
import faulthandler, json, os, sys, traceback
import datasets, matplotlib.pyplot, sacrebleu.metrics, scipy.stats, tokenizers
import sklearn.feature_extraction.text, sklearn.linear_model, sklearn.model_selection
import tlite.__main__, tlite.cli.overrides, tlite.comparison, tlite.report, tlite.runs.api
sys.argv[0] = tlite.__main__.__file__
for line in sys.stdin:
    words, *paths = json.loads(line)
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    for number, path in enumerate([os.devnull, *paths]):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    faulthandler.dump_traceback_later(1200, exit=True)
    code = 1
    try:
        code = tlite.cli.main(words)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""


@contextmanager
def forks(folder: Path = ROOT, **environment: str) -> Iterator:
    """Return a function that runs `tlite WORDS`, each time in a new process of the folder."""
    settings = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"} | environment
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    command = [sys.executable, "-c", FORKS]
    with (
        TemporaryDirectory() as streams,
        subprocess.Popen(command, cwd=folder, env=settings, **pipes) as parent,
    ):

        def tlite(*words: str) -> Ran:
            paths = [Path(streams, name) for name in ("out", "err")]
            print(json.dumps([words, *map(str, paths)]), file=parent.stdin, flush=True)
            code = int(parent.stdout.readline())
            out, err = (path.read_text(encoding="utf-8") for path in paths)
            for path in paths:
                path.unlink()
            return Ran(code, out, err)

        yield tlite
        parent.stdin.close()


CHROMIUM = shutil.which("chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom"),
]


def shown_by_browser(address: str, folder: Path) -> str:
    """Return the HTML of a page after its scripts have run without a message on the console.

    Args:
        folder: Profile folder of the browser.
    """
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout
