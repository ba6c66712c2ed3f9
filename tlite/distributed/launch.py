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
from collections import deque
from pathlib import Path
from typing import Any

from tlite.distributed import LOST, Signals
from tlite.distributed.devices import num_cores
from tlite.errors import LAUNCHED, UserError, command, printable

GRACE_SECONDS = 10  # for the others to end by themselves, after one has failed
DELAY_SECONDS = 0.5  # before a line is passed on
PDEATHSIG = 1  # of Linux's prctl


def launch(arguments: list[str], processes: int, devices_each: int | None = None) -> int:
    """Run a command of tlite as several processes; returns the first exit code that is not 0.

    Process 0 has this one's standard output. Signals are forwarded to all of them. If this process
    is killed, they get a SIGTERM, by which a run saves and stops.
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
    """Wait for all children; return the first exit code that is not 0, 128 + n after signal n.

    Their standard error is passed on after a moment, by which the first failure is known.
    """
    unread, written, killed, failed = deque(), set(), "", None
    threads = [
        threading.Thread(target=read_lines, args=(number, child.stderr, unread), daemon=True)
        for number, child in enumerate(children)
    ]
    for thread in threads:
        thread.start()
    alive, code, deadline, forwarded = dict(enumerate(children)), 0, math.inf, set()
    while alive:
        time.sleep(0.1)
        while signals.arrived:
            forward(signals.arrived.pop(0), forwarded, alive)
        for number in [number for number, child in alive.items() if child.poll() is not None]:
            code_of_child = alive.pop(number).returncode
            if not code_of_child or code:
                continue
            code, failed, deadline = code_of_child, number, time.monotonic() + GRACE_SECONDS
            if code < 0:
                who = "all processes were" if -code in forwarded else f"process {number} was"
                killed = f"{who} ended by {signal.Signals(-code).name}: what was saved is kept"
        while not code and unread and unread[0][0] < time.monotonic() - DELAY_SECONDS:
            write_line(*unread.popleft()[1:], written)
        if time.monotonic() > deadline:
            for child in alive.values():
                child.kill()
    for thread in threads:
        thread.join(GRACE_SECONDS)  # what a child has started may still hold its end
    rest = [(number, line) for _, number, line in unread]
    for number, line in rest if failed is None else last_lines(rest, failed, code, killed, written):
        write_line(number, line, written)
    return code if code >= 0 else 128 - code


def forward(number: int, forwarded: set[int], alive: dict[int, subprocess.Popen]) -> None:
    """Send a signal on to the children: SIGINT each time, the others once."""
    if number == signal.SIGINT or number not in forwarded:
        forwarded.add(number)
        for child in alive.values():
            child.send_signal(number)


def read_lines(number: int, pipe: Any, lines: deque[tuple[float, int, bytes]]) -> None:
    """Append (time, number, line) for each line of a child's standard error, without a wait."""
    for line in pipe:
        lines.append((time.monotonic(), number, line.rstrip(b"\n")))


def is_sentence(line: bytes) -> bool:
    return line.startswith(b"tlite: ")


def last_lines(
    lines: list[tuple[int, bytes]], failed: int, code: int, killed: str, written: set[bytes]
) -> list[tuple[int, bytes]]:
    """Choose what is written after a child has failed: its own lines, and sentences of tlite.

    The other children's are about the peer that is gone, of which JAX writes pages.

    Args:
        lines: number of the child and line, of those not written yet.
        failed: number of the child that failed first.
        code: its exit code; 2: a `UserError`, or a wrong option, which process 0 alone explains.
        killed: sentence about the signal that ended it, or "".
        written: sentences of tlite that were written before.
    """
    reasons = [(number, line) for number, line in lines if LOST.encode() not in line]
    chosen = [(number, line) for number, line in reasons if number == failed or is_sentence(line)]
    if written or any(is_sentence(line) for _, line in chosen):
        return chosen
    if killed:
        return [*chosen, (0, f"tlite: {printable(killed)}".encode())]
    if len(reasons) < len(lines):
        return [*chosen, next(pair for pair in lines if pair not in reasons)]
    return [*chosen, *(pair for pair in reasons if failed and code == 2 and pair[0] == 0)]


def write_line(number: int, line: bytes, written: set[bytes]) -> None:
    """Write a line to standard error: sentences of tlite once, other lines with their number."""
    if line in written:
        return
    if is_sentence(line):
        written.add(line)
    elif number:
        line = b"[%d] " % number + line
    with contextlib.suppress(OSError):
        sys.stderr.flush()
        os.write(sys.stderr.fileno(), line + b"\n")
