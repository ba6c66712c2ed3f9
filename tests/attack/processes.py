"""Start, watch, kill and check processes of tlite in an environment of their own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Tests set these variables to compile less; users run the optimised program.
TEST_VARIABLES = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_COMPILATION_CACHE_DIR")
TEST_VARIABLES += ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",)
TRACES = ("Traceback (most recent call last)", "Exception ignored", "Fatal Python error")


class Fault(Exception):
    """A defect that an attack detects."""


def make_environment(folder: Path) -> dict[str, str]:
    """Return the variables of every process: two devices, own caches, and no network."""
    variables = {name: value for name, value in os.environ.items() if name not in TEST_VARIABLES}
    variables |= dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    folders = {
        "XDG_CACHE_HOME": "cache",
        "XDG_STATE_HOME": "state",
        "TLITE_DATA": "data",
        "HF_HOME": "hub",
    }
    variables |= {name: str(folder / subfolder) for name, subfolder in folders.items()}
    return variables | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "JAX_NUM_CPU_DEVICES": "2"}


class Process:
    """A process `python -m WORDS`; its stdout and stderr go to files in its working directory."""

    def __init__(self, words: list[str], folder: Path, environment: dict[str, str]):
        number = len(list(folder.glob("err-*")))
        self.err_path, self.out_path = folder / f"err-{number}", folder / f"out-{number}"
        self.code, self.seconds, self.start = None, 0.0, time.monotonic()
        with (folder / "commands").open("a") as log:
            log.write(f"{number}: {' '.join(map(repr, words))}\n")
        with self.out_path.open("w") as out, self.err_path.open("w") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        self.pid = self._process.pid

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the end, the condition or the time, whichever is first; True if it has ended."""
        deadline = time.monotonic() + seconds
        while self.code is None:
            self.code = self._process.poll()
            if self.code is not None:
                self.seconds = time.monotonic() - self.start
            elif until() or time.monotonic() > deadline:
                return False
            else:
                time.sleep(0.001)
        return True

    def signal(self, number: int) -> None:
        if not self.wait(0):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait(60)

    def finish(self, seconds: float = 300) -> None:
        """Wait for the end; after this time kill the process and raise a `Fault`."""
        if not self.wait(seconds):
            self.kill()
            raise Fault(f"still running after {seconds:.0f} s")

    def end(self, *codes: int) -> "Process":
        """Wait for the end, check it, and return the process."""
        self.finish()
        self.check(*codes)
        return self

    @property
    def out(self) -> str:
        return self.out_path.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self.err_path.read_text(errors="replace")

    def check(self, *codes: int) -> None:
        """Raise a `Fault` for a traceback, another exit code, or no error line.

        Exit code 2 comes with exactly one line of tlite, the last of stderr.
        """
        err = self.err
        lines = err.strip().splitlines() or [""]
        if any(trace in err for trace in TRACES):
            raise Fault(f"a traceback, exit code {self.code}: {lines[-1][:200]}")
        if self.code not in codes:
            raise Fault(f"exit code {self.code}, not {codes}: {lines[-1][:200]}")
        is_error = [line.startswith("tlite: ") for line in lines]
        if self.code == 2 and not (sum(is_error) == 1 and is_error[-1]):
            raise Fault(f"exit code 2, but {sum(is_error)} errors: {lines[-1][:200]}")
        if "\x1b" in err:
            raise Fault("an escape sequence on stderr")
