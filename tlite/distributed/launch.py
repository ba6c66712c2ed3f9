"""`tlite launch`: several processes of one command on this machine, as one run."""

import ctypes
import importlib.util
import itertools
import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tlite.distributed import NO_GPU, Signals
from tlite.distributed.devices import DEVICE_COUNT_FLAG, num_cores
from tlite.errors import LAUNCHED, UserError, command

GRACE_SECONDS = 10  # after the first failure, until the others are killed
PDEATHSIG = 1  # of Linux's prctl


def launch(arguments: list[str], processes: int, devices_each: int | None = None) -> int:
    """Run a command of tlite as several processes; return the first exit code that is not 0.

    Process 0 alone writes to standard output; all write to standard error. Signals are forwarded to
    all processes. If this process is killed, they get a SIGTERM, by which a run saves and stops.
    """
    if processes < 1:
        raise UserError(f"-n must be at least 1, not {processes}")
    words = "launch", "-n", processes, *(["--devices-each", devices_each] if devices_each else [])
    environments = [env | {LAUNCHED: command(*words)} for env in devices(processes, devices_each)]
    group = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", str(processes)]
    program = [sys.executable, "-m", "tlite", *arguments, *group, "--process"]
    with Signals() as signals:
        children = [start([*program, str(i)], env, i) for i, env in enumerate(environments)]
        return watch(children, signals)


def devices(processes: int, each: int | None = None) -> list[dict[str, str]]:
    """Return the environment variables that give each process its own devices."""
    if each is not None and each < 1:
        raise UserError(f"--devices-each must be at least 1, not {each}")
    if not (gpus := visible_gpus()):
        if each is None and DEVICE_COUNT_FLAG in os.environ.get("XLA_FLAGS", ""):
            return [{}] * processes
        setting = os.environ.get("JAX_NUM_CPU_DEVICES", "")
        number = each or (int(setting) if setting.isdecimal() else num_cores() // processes) or 1
        return [{"JAX_NUM_CPU_DEVICES": str(number)}] * processes
    each = each or 1
    if processes * each > len(gpus):
        raise UserError(
            f"{processes} processes with {each} each need {processes * each} GPUs, and "
            f"{len(gpus)} can be used (on the CPU: JAX_PLATFORMS=cpu)"
        )
    shares = [gpus[i * each : (i + 1) * each] for i in range(processes)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares]


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that JAX would use; none if it would use the CPU."""
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return []
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        return []
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        names = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        return [*itertools.takewhile(lambda name: name not in NO_GPU, names)]
    names = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia*"))
    return sorted((name for name in names if name.isdecimal()), key=int)


def free_port() -> int:
    """Return a free TCP port of this machine."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def start(command: list[str], environment: dict[str, str], number: int) -> subprocess.Popen:
    """Start a child in its own session: the terminal's Ctrl-C reaches it only through `watch`."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: None
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if number else None,
        env=os.environ | environment,
        start_new_session=True,
        preexec_fn=lambda: prctl(PDEATHSIG, signal.SIGTERM),  # when this process ends
    )


def watch(children: list[subprocess.Popen], signals: Signals) -> int:
    """Wait for all children; return the first exit code that is not 0, 128 + n after signal n.

    After the first failure the others have some seconds to end, before they are killed. They have
    none if a signal ended a process: they could only wait for it.
    """
    alive, code, deadline, forwarded = dict(enumerate(children)), 0, math.inf, set()
    while alive:
        time.sleep(0.1)
        while signals.arrived:
            signal_number = signals.arrived.pop(0)
            if signal_number == signal.SIGINT or signal_number not in forwarded:
                forwarded.add(signal_number)  # SIGINT each time, the others once
                for child in alive.values():
                    child.send_signal(signal_number)
        for number in [number for number, child in alive.items() if child.poll() is not None]:
            returncode = alive.pop(number).returncode
            if returncode and not code:
                code = returncode
                deadline = time.monotonic() + (GRACE_SECONDS if code > 0 else 0)
                report_failure(number, code)
        if time.monotonic() > deadline:
            for child in alive.values():
                child.kill()
    return code if code >= 0 else 128 - code


def report_failure(number: int, code: int) -> None:
    """Print which process failed first; a run that stops by a signal prints that by itself."""
    if code < 0:
        name = signal.Signals(-code).name
        message = f"process {number} was ended by {name}: saved checkpoints are intact"
    elif code < 128:
        message = f"process {number} ended first, with exit code {code}"
    else:
        return
    print(f"tlite: {message}", file=sys.stderr)
