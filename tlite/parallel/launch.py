"""`tlite launch`: several processes of a command on this machine, which begin and end together."""

import contextlib
import ctypes
import importlib.util
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tlite.errors import LAUNCHED, UserError, command
from tlite.parallel.devices import num_cores
from tlite.parallel.processes import LOST, Signals
from tlite.terminal import printable

GRACE_SECONDS = 10  # for the others to end by themselves, after one has failed
DELAY_SECONDS = 0.5  # before what is said is passed on
PDEATHSIG = 1  # of Linux's prctl


def launch(arguments: list[str], processes: int, devices_each: int | None = None) -> int:
    """Run a command of tlite as several processes; returns the first exit code that is not 0.

    Process 0 has this one's standard output. Signals go to all of them, once. They don't outlive
    this process: where it is killed, they get a SIGTERM, by which a run saves and stops.
    """
    if processes < 1:
        raise UserError(f"-n must be at least 1, not {processes}")
    words = "launch", "-n", processes, *(["--devices-each", devices_each] if devices_each else [])
    surroundings = [own | {LAUNCHED: command(*words)} for own in devices(processes, devices_each)]
    where = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", str(processes)]
    started = [sys.executable, "-m", "tlite", *arguments, *where]
    with Signals() as signals:
        children = [
            start([*started, "--process", str(number)], extra, number == 0)
            for number, extra in enumerate(surroundings)
        ]
        return watch(children, signals)


def devices(processes: int, each: int | None = None) -> list[dict[str, str]]:
    """What each process finds in its environment, so that each has devices of its own."""
    if each is not None and each < 1:
        raise UserError(f"--devices-each must be at least 1, not {each}")
    if not (gpus := visible_gpus()):
        given = os.environ.get("JAX_NUM_CPU_DEVICES", "")
        number = each or (int(given) if given.isdecimal() else num_cores() // processes) or 1
        return [{"JAX_NUM_CPU_DEVICES": str(number)}] * processes
    each = each or 1
    if processes * each > len(gpus):
        raise UserError(
            f"{processes} processes with {each} each need {processes * each} GPUs, and there are "
            f"{len(gpus)} (on the CPU: JAX_PLATFORMS=cpu)"
        )
    shares = [gpus[i * each : (i + 1) * each] for i in range(processes)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares]


def visible_gpus() -> list[str]:
    """The names of the GPUs that JAX would use; none where it would use the CPU."""
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return []
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        return []
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    names = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia*"))
    return sorted((name for name in names if name.isdecimal()), key=int)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def start(command: list[str], extra: dict[str, str], first: bool) -> subprocess.Popen:
    """A child in a session of its own: the terminal's Ctrl-C reaches it only from here."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: None
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=None if first else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | extra,
        start_new_session=True,
        preexec_fn=lambda: prctl(PDEATHSIG, signal.SIGTERM),  # when this process ends
    )


def watch(children: list[subprocess.Popen], signals: Signals) -> int:
    """Until all children have ended; the first exit code that is not 0, 128 + n after signal n."""
    voices, killed = Voices(), ""
    threads = [
        threading.Thread(target=voices.listen, args=(number, child.stderr), daemon=True)
        for number, child in enumerate(children)
    ]
    for thread in threads:
        thread.start()
    alive, code, deadline, forwarded = dict(enumerate(children)), 0, math.inf, set()
    while alive:
        time.sleep(0.1)
        while signals.arrived:
            sent = signals.arrived.pop(0)
            if sent != signal.SIGINT and sent in forwarded:
                continue  # a second SIGINT stops at once, the others mean no more than one
            forwarded.add(sent)
            for child in alive.values():
                child.send_signal(sent)
        for number in [number for number, child in alive.items() if child.poll() is not None]:
            code_of_child = alive.pop(number).returncode
            if not code_of_child or code:
                continue
            code, voices.failed = code_of_child, number
            deadline = time.monotonic() + GRACE_SECONDS
            if code < 0:
                who = "all processes were" if -code in forwarded else f"process {number} was"
                killed = f"{who} ended by {signal.Signals(-code).name}: what was saved is kept"
        if time.monotonic() > deadline:
            for child in alive.values():
                child.kill()
    for thread in threads:
        thread.join(GRACE_SECONDS)  # what a child has started may still hold its end
    voices.end(killed, mistake=code == 2)
    return code if code >= 0 else 128 - code


class Voices:
    """Standard error of all children as one: a line that several say once, others' numbered.

    When one has failed the others pass on only tlite's sentences. Of a peer that is lost JAX writes
    pages: so there is a moment in which `watch` sees its end first.
    """

    def __init__(self):
        self.failed: int | None = None
        self._said: dict[bytes, int] = {}
        self._kept: list[bytes] = []  # what process 0 says after another has failed
        self._lost = b""
        self._lock = threading.Lock()

    def listen(self, number: int, pipe: Any) -> None:
        """Pass on what a child writes, in whole lines, to its end."""
        rest = b""
        while content := pipe.read1(1 << 16):
            time.sleep(DELAY_SECONDS)
            *lines, rest = (rest + content).split(b"\n")
            for line in lines:
                self.hear(number, line)
        if rest:
            self.hear(number, rest)

    def hear(self, number: int, line: bytes) -> None:
        sentence = line.startswith(b"tlite: ")
        with self._lock:
            if LOST.encode() in line:
                self._lost = line  # the reason, if one comes, says more
                return
            heard = sentence or self.failed in (None, number)
            if heard and self._said.setdefault(line, number) == number:
                self._write(line if sentence or not number else b"[%d] " % number + line)
            elif not heard and not number:
                self._kept.append(line)

    def end(self, killed: str, mistake: bool) -> None:
        """The last word, where no child has said why it ended.

        A wrong option (a `mistake`) is told by process 0 alone, and another may have ended before.
        """
        if any(line.startswith(b"tlite: ") for line in self._said):
            return
        if killed or self._lost:
            self._write(f"tlite: {printable(killed)}".encode() if killed else self._lost)
        elif mistake:
            for line in self._kept:
                self._write(line)

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
            os.write(sys.stderr.fileno(), line + b"\n")
