"""Processes of tlite: started in a surrounding of their own, watched, killed, and judged."""

import contextlib
import ctypes
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Tests set these so that less is compiled; users run another program.
OF_TESTS = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_COMPILATION_CACHE_DIR")
OF_TESTS += ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",)
GIGABYTES = 6
TRACES = ("Traceback (most recent call last)", "Exception ignored", "Fatal Python error")


class Fault(Exception):
    """What is wrong with what a case has seen."""


@dataclass
class Result:
    """What a case has come to: a row of the table, how often it was tried, a line a fault."""

    row: str = ""
    tried: int = 1
    faults: list[str] = field(default_factory=list)
    note: str = ""
    possible: bool = True
    """False: this machine does not allow it."""
    where: str = ""
    """What is done, for a fault of it."""

    def add(self, other: "Result") -> None:
        """Another case of the same row."""
        self.tried += other.tried
        self.faults += other.faults
        self.note, self.possible = other.note or self.note, self.possible and other.possible


def surrounding(work: Path) -> dict[str, str]:
    """The environment of all that is started: two devices, on whatever machine; compiled once, and
    nothing from the network.
    """
    kept = {name: value for name, value in os.environ.items() if name not in OF_TESTS}
    kept |= dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    folders = {"XDG_CACHE_HOME": "cache", "TLITE_DATA": "data", "HF_HOME": "hub"}
    kept |= {name: str(work / folder) for name, folder in folders.items()}
    return kept | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "JAX_NUM_CPU_DEVICES": "2"}


class Process:
    """A process of `tlite`, by its command line; or of a function, in a fork of this one.

    Args:
        folder: where it runs; what it prints goes to files there.
        call: what is called with the arguments by a fork, which has imported tlite.
        streams: files for standard input and output; None: closed; "|": a pipe nobody reads.
        handles: the limit of open files.
    """

    def __init__(
        self,
        arguments: list[str | bytes],
        folder: Path,
        *,
        call: Callable[[list[str]], int | None] | None = None,
        streams: tuple[str | None, str | None] = ("/dev/null", ""),
        environment: dict[str, str] | None = None,
        handles: int | None = None,
    ):
        number = len(list(folder.glob("err-*")))
        self.arguments = [os.fsdecode(argument) for argument in arguments]
        self.err_path, self.out_path = folder / f"err-{number}", folder / f"out-{number}"
        self.code, self.seconds, self.began = None, 0.0, time.monotonic()
        with (folder / "commands").open("a", errors="surrogateescape") as log:
            log.write(f"{number}: {' '.join(map(repr, self.arguments))} {streams}\n")
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            with contextlib.suppress(BaseException):
                self._become(folder, call, streams, environment or {}, handles)
            os._exit(99)

    def _become(self, folder, call, streams, environment, handles) -> None:
        os.chdir(folder)
        os.environ.update(environment)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)  # a job in the background ignores some
        err, out = (os.open(p, os.O_WRONLY | os.O_CREAT) for p in (self.err_path, self.out_path))
        given, written = streams
        if written == "|":
            unread, out = os.pipe()
            os.close(unread)
        elif written:
            out = os.open(written, os.O_WRONLY)
        os.close(0)
        if given is not None:  # without a wait for one who writes into a pipe
            os.set_blocking(os.open(given, os.O_RDONLY | os.O_NONBLOCK), True)
            os.set_inheritable(0, True)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.closerange(3, 4096)
        if written is None:
            os.close(1)
        if handles:
            resource.setrlimit(resource.RLIMIT_NOFILE, (handles, handles))
        for capability in (1, 2):  # of root, to read and write what modes forbid; until exec
            ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
        if call:
            os._exit(_called(call, self.arguments))
        command = [sys.executable, "-m", "tlite", *self.arguments]
        os.execv(sys.executable, list(map(os.fsencode, command)))

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Until it has ended (True), the condition holds, or so much time has passed."""
        last = time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                self.seconds = time.monotonic() - self.began
            elif until() or time.monotonic() > last:
                return False
            else:
                time.sleep(0.001)
        return True

    def signal(self, number: int) -> None:
        if not self.wait(0):
            os.kill(self.pid, number)

    def memory(self) -> int:
        with contextlib.suppress(OSError, IndexError):
            pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
            return int(pages) * resource.getpagesize()
        return 0

    def finish(self, seconds: float = 300) -> None:
        """Wait for the end. Raises a `Fault` if it takes too long or too much memory."""
        most = GIGABYTES << 30
        if not self.wait(seconds, lambda: self.memory() > most):
            greedy = self.memory() > most
            self.kill()
            late = f"still at work after {seconds:.0f} s"
            raise Fault(f"took more than {GIGABYTES} GB" if greedy else late)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait(60)

    def end(self, *codes: int, seconds: float = 300) -> "Process":
        """Wait for the end, which is to be one with these exit codes; itself."""
        self.finish(seconds)
        self.judge(*codes)
        return self

    @property
    def out(self) -> str:
        return self.out_path.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self.err_path.read_text(errors="replace")

    def judge(self, *codes: int) -> None:
        """Raises a `Fault` for how it ended, where these exit codes are right (0 and 2)."""
        err, codes = self.err, codes or (0, 2)
        lines = err.strip().splitlines() or [""]
        if any(trace in err for trace in TRACES):
            raised = [line for line in lines if re.match(r"[\w.]+(Error|Interrupt)\b", line)]
            raise Fault(f"a traceback, exit code {self.code}: {(raised or lines)[-1][:200]}")
        if self.code not in codes:
            raise Fault(f"exit code {self.code}, not {codes}: {lines[-1][:200]}")
        told = [line.startswith("tlite: ") for line in lines]
        if self.code == 2 and not (sum(told) == 1 and told[-1]):
            raise Fault(f"exit code 2, but {sum(told)} sentences: {lines[-1][:200]}")
        if "\x1b" in err:
            raise Fault("an escape sequence on stderr")


def _called(call: Callable[[list[str]], int | None], arguments: list[str]) -> int:
    """The exit code of what a fork calls, told as Python tells it."""
    sys.argv = ["tlite", *arguments]
    sys.stdin = os.fdopen(0, encoding="utf-8")
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace")
    try:
        code = call(arguments) or 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else bool(stop.code)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code
