"""Real processes, for the tests of what several of them do together."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.helpers.python import ROOT, SMALL_DATA
from tlite.training.metrics import read_metrics

EXPERIMENT = Path(__file__).parent / "divided_experiment.py"
SECONDS = 120  # for whatever is waited for, on a busy machine


class Running:
    """`python -m WORDS`. What it has not ended by itself ends with the `with` block."""

    def __init__(self, *words: object, folder: Path = ROOT, **environment: str):
        self.process = subprocess.Popen(
            [sys.executable, "-m", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=os.environ | environment,
        )

    def children(self) -> list[int]:
        """Their process ids, in the order of their numbers."""
        pid = self.process.pid
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def wait_until(self, true: Callable[[], bool]) -> None:
        last = time.monotonic() + SECONDS
        while not true():
            assert self.process.poll() is None, self.end()
            assert time.monotonic() < last, "waited too long"
            time.sleep(0.01)

    def kill(self, number: int, how: int = signal.SIGKILL) -> None:
        """A signal to one of its children."""
        os.kill(self.children()[number], how)

    def end(self) -> tuple[int, str, str]:
        """Exit code, standard output, and standard error."""
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate()


def launch(command: str, folder: Path, processes: int = 2, devices: int = 1) -> Running:
    """`tlite launch` of a command line, each process with so many CPU devices."""
    words = "tlite", "launch", "-n", processes, "--devices-each", devices, *command.split()
    return Running(*words, folder=folder, JAX_PLATFORMS="cpu")


def launched(command: str, folder: Path, processes: int = 2, devices: int = 1) -> str:
    """What a launch that ends well prints."""
    with launch(command, folder, processes, devices) as run_dir:
        code, out, err = run_dir.end()
    assert (code, SMALL_DATA.sub("", err)) == (0, "")
    return out


def assert_close(found, right):
    """Within 1e-5, which is a hundredth of what a step changes."""
    assert found.keys() == right.keys()
    for name in right:
        np.testing.assert_allclose(found[name], right[name], rtol=0, atol=1e-5, err_msg=name)


def losses_of(run, split):
    return [line["loss"] for line in read_metrics(run.dir.metrics) if line["split"] == split]
