"""Start real processes, alone and with `tlite launch`."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.helpers.python import ROOT, SMALL_DATA
from tlite.distributed.launch import free_port
from tlite.training.metrics import read_metrics

EXPERIMENT = Path(__file__).parent / "divided_experiment.py"
SECONDS = 600  # longest wait, on a busy machine


class Running:
    """A process `python -m WORDS`, terminated at the end of the `with` block."""

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
        """Return the process ids of its children, in order of creation."""
        pid = self.process.pid
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert self.process.poll() is None, self.end()
            assert time.monotonic() < deadline, "waited too long"
            time.sleep(0.01)

    def kill(self, number: int, signum: int = signal.SIGKILL) -> None:
        """Send a signal to one of its children."""
        os.kill(self.children()[number], signum)

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return exit code, standard output and standard error."""
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate()


def launch(command: str, folder: Path, processes: int = 2, devices: int = 1) -> Running:
    """Start a command line with `tlite launch`, each process with `devices` CPU devices."""
    words = "tlite", "launch", "-n", processes, "--devices-each", devices, *command.split()
    return Running(*words, folder=folder, JAX_PLATFORMS="cpu")


def launched(command: str, folder: Path, processes: int = 2, devices: int = 1) -> str:
    """Launch a command line that succeeds, and return what it prints."""
    with launch(command, folder, processes, devices) as running:
        code, out, err = running.end()
    assert (code, SMALL_DATA.sub("", err)) == (0, "")
    return out


def coordinated(command: str, *folders: Path) -> list[tuple[int, str, str]]:
    """Run a command line without `tlite launch`, as one process in each folder, to the ends."""
    address, running = f"127.0.0.1:{free_port()}", []
    with contextlib.ExitStack() as stack:
        for number, folder in enumerate(folders):
            options = f"--coordinator {address} --processes {len(folders)} --process {number}"
            words = f"{command} {options if folders[1:] else ''}".split()
            process = Running("tlite", *words, folder=folder, JAX_PLATFORMS="cpu")
            running.append(stack.enter_context(process))
        return [process.end() for process in running]


def assert_close(actual, expected):
    """Assert that arrays differ by at most 1e-5, a hundredth of a training step."""
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=0, atol=1e-5, err_msg=name)


def metric_of(run, split, name="loss"):
    return [line[name] for line in read_metrics(run.dir.metrics) if line["split"] == split]
