"""`tlite launch`: several processes of a command on this machine, which begin and end together."""

import contextlib
import importlib.util
import io
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tlite.errors import LAUNCHED, UserError, command
from tlite.parallel.devices import num_cores
from tlite.parallel.processes import LOST, Signals
from tlite.terminal import printable

GRACE_SECONDS = 5  # for the others to end by themselves, after one has failed
PDEATHSIG = 1  # of Linux's prctl
SENTENCE = b"tlite: "


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
        return Watch(children, signals).run()


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
    prctl = None
    if sys.platform == "linux":
        import ctypes

        prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def end_with_parent() -> None:
        if prctl:
            prctl(PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it has gone meanwhile
                os._exit(1)

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=None if first else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | extra,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )


class Watch:
    """The loop until all children have ended."""

    def __init__(self, children: list[subprocess.Popen], signals: Signals):
        self.children, self.signals = children, signals
        self.voices = Voices(len(children))
        self.code, self.killed, self.forwarded = 0, "", set()
        self.hurry = []  # when which signal is sent to those that go on though one has failed

    def run(self) -> int:
        alive = dict(enumerate(self.children))
        with selectors.DefaultSelector() as pipes:
            for number, child in alive.items():
                pipes.register(child.stderr, selectors.EVENT_READ, number)
            while alive:
                ready = pipes.select(0.1) if pipes.get_map() else time.sleep(0.1)
                self._forward(alive)
                # Of one that is killed JAX writes a page in the others: that it has ended is seen
                # first, a moment after its sockets have closed.
                time.sleep(0.2 if ready else 0)
                for number, child in list(alive.items()):
                    if child.poll() is not None:
                        self._ended(number, alive.pop(number))
                self._hear(pipes, ready)
            while self._hear(pipes, pipes.select(0) if pipes.get_map() else None):
                pass  # what the last one has said
        self.voices.end(self.killed)
        return self.code

    def _hear(self, pipes: selectors.BaseSelector, ready: list | None) -> bool:
        for pipe, _ in ready or ():
            content = os.read(pipe.fd, 1 << 16)
            self.voices.hear(pipe.data, content)
            if not content:
                pipes.unregister(pipe.fileobj)
        return bool(ready)

    def _forward(self, alive: dict[int, subprocess.Popen]) -> None:
        self.forwarded.update(self.signals.arrived)
        while self.hurry and time.monotonic() > self.hurry[0][0]:
            self.signals.arrived.append(self.hurry.pop(0)[1])
        while self.signals.arrived:
            number = self.signals.arrived.pop(0)
            for child in alive.values():
                child.send_signal(number)

    def _ended(self, number: int, child: subprocess.Popen) -> None:
        """Note the first failure; the others end by themselves, or are made to."""
        if not (code := child.returncode) or self.code:
            return
        self.code = code if code > 0 else 128 - code
        end = time.monotonic() + GRACE_SECONDS
        self.hurry = [(end, signal.SIGTERM), (end + GRACE_SECONDS, signal.SIGKILL)]
        if code < 0:
            name = signal.Signals(-code).name
            who = "all processes were" if -code in self.forwarded else f"process {number} was"
            self.voices.only_sentences = True
            self.killed = f"{who} ended by {name}: what was saved is kept"


class Voices:
    """Standard error of all children as one: each sentence once, other lines with their number."""

    def __init__(self, processes: int):
        self._rest = [b""] * processes
        self._said: dict[bytes, int] = {}
        self._lost = b""
        self.only_sentences = False

    def hear(self, number: int, content: bytes) -> None:
        """Pass on what a child has written, in whole lines; b"" is its end."""
        lines = io.BytesIO(self._rest[number] + content).readlines()
        self._rest[number] = b""
        if lines and content and not lines[-1].endswith(b"\n"):
            part = lines[-1]
            if number or SENTENCE.startswith(part[: len(SENTENCE)]):
                self._rest[number] = lines.pop()  # else a progress bar of process 0
        for line in lines:
            self._pass_on(number, line)

    def _pass_on(self, number: int, line: bytes) -> None:
        told = line.startswith(SENTENCE)
        if LOST.encode() in line:
            self._lost = line  # the reason, if one comes, says more
            return
        if self.only_sentences and not told:
            return
        if (told or number) and self._said.setdefault(line, number) != number:
            return
        self._write(line if told or not number else b"[%d] " % number + line)

    def end(self, killed: str) -> None:
        """The last word, where no child has said why it ended."""
        if any(line.startswith(SENTENCE) for line in self._said):
            return
        if killed or self._lost:
            self._write(f"tlite: {printable(killed)}\n".encode() if killed else self._lost)

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
            os.write(sys.stderr.fileno(), line)
