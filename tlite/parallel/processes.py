"""Several processes as one run: they join, agree on what must not differ, and end together.

Each runs the same program on devices of its own. JAX's coordination service, in process 0, lets
them find each other, hears a heartbeat of each, and keeps the small values that they exchange.
One process alone is never joined: nothing here then imports JAX, waits or changes anything.
"""

import contextlib
import io
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from tlite.errors import UserError

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")

LOST = "another process of this run has ended or can't be reached"
# What gloo, NCCL and the coordination service write of a peer that is gone.
BROKEN = ("gloo", "nccl", "coordination", "unavailable:", "heartbeat", "socket closed")
TPU_VENDOR = "0x1ae0"
MPI = "OMPI_COMM_WORLD_"
PATIENCE = 300  # seconds to wait for all to come
POLL_SECONDS = 1  # between two looks at Python's signals while others are waited for


class Place(NamedTuple):
    """One of several processes; the coordinator is host and port where process 0 listens."""

    coordinator: str
    processes: int
    process: int


class Signals:
    """Collects SIGINT (Ctrl-C), SIGTERM and SIGHUP, which ask a run to end, in `arrived`.

    What this process was told to ignore when it started (by `nohup`, or as a job of a shell in the
    background) it goes on ignoring.
    """

    def __enter__(self):
        self.arrived, self._before = [], {}
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                number = getattr(signal, name, None)  # Windows has no SIGHUP
                if number and signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _):
        self.arrived.append(int(number))


@dataclass
class Crew:
    """What a joined process knows of the run, and what it needs to leave it."""

    place: Place
    client: Any = None
    """Of JAX's coordination service."""
    watch: threading.Thread | None = None
    """Waits for the word that another process has failed, or that all have come to the end."""
    exchanges: int = 0
    ending: threading.Lock = field(default_factory=threading.Lock)
    """Held by the one thread that ends this process."""


_crew: Crew | None = None


def join(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    heartbeat: int = 100,
) -> None:
    """Become one of several processes, before anything touches JAX's devices.

    Without arguments JAX asks Slurm, Open MPI, Kubernetes or the TPUs; where there are none this
    process is alone. Joined, only process 0 prints to standard output.

    Args:
        coordinator: host and port where process 0 listens, HOST:PORT.
        processes: how many there are.
        process: which one this is, from 0.
        heartbeat: seconds without a sign of a process after which it counts as lost.

    Raises:
        UserError: the arguments don't fit together, or the coordinator's address is no good.
    """
    global _crew
    if heartbeat < 1:
        raise UserError(f"--heartbeat must be at least 1 second, not {heartbeat}")
    place = given_place(coordinator, processes, process)
    if place.processes == 1 if place else not in_a_job():
        return
    if place:
        check_address(place)
    # Of a lost process XLA writes pages. 1 is what JAX sets where a user has not.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    _flush()
    _crew = _connected(place, heartbeat)
    if _crew is None:
        return
    sys.excepthook = _failed
    _crew.watch = threading.Thread(target=_watch, daemon=True)
    _crew.watch.start()


def count() -> int:
    """How many processes the run has."""
    return _crew.place.processes if _crew else 1


def is_first() -> bool:
    """Whether this process is the one that writes and prints."""
    return _crew is None or _crew.place.process == 0


def agree(values: "np.ndarray") -> "np.ndarray":
    """The small arrays (...) of all processes, (N, ...), the same in each of them.

    To be called by the main thread, in the same order everywhere, as `of_first`.
    """
    import numpy as np

    if _crew is None:
        return np.asarray(values)[None]
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    found = exchange("agree", file.getvalue())
    return np.stack([np.load(io.BytesIO(one), allow_pickle=False) for one in found])


def of_first(function: Callable[[], T]) -> T:
    """What a function gives in process 0, of what JSON can hold, in all; only there it is called.

    All processes go on when it has returned.
    """
    own = json.dumps(function()) if is_first() else ""
    return json.loads(exchange("of first", own.encode())[0] if _crew else own)


def exchange(kind: str, content: bytes) -> list[bytes]:
    """What each process has given to the same call, in their order.

    Raises:
        UserError: a process has left, or is somewhere else in the program.
    """
    crew, head = _crew, kind.encode() + b"\n"
    name, crew.exchanges = f"tlite/exchange/{crew.exchanges}", crew.exchanges + 1
    place = crew.place
    crew.client.key_value_set_bytes(f"{name}/{place.process}", head + content)
    if place.process == 0:
        found = [_wait_for(f"{name}/{i}") for i in range(place.processes)]
        # With each one's length before it. All have read the last one when all have come to this.
        joined = b"".join(len(one).to_bytes(8) + one for one in found)
        crew.client.key_value_set_bytes(f"{name}/all", joined)
        if crew.exchanges > 1:
            crew.client.key_value_delete(f"tlite/exchange/{crew.exchanges - 2}")
    else:
        file = io.BytesIO(_wait_for(f"{name}/all"))
        found = [file.read(int.from_bytes(file.read(8))) for _ in range(place.processes)]
    for i, one in enumerate(found):
        if not one.startswith(head):
            at = one.split(b"\n")[0].decode()
            raise UserError(f"processes are out of step: process {i} is at {at}, not {kind}")
    return [one[len(head) :] for one in found]


def _wait_for(key: str) -> bytes:
    """A value as soon as some process has set it; Ctrl-C is heard meanwhile."""
    while True:
        try:
            return _crew.client.blocking_key_value_get_bytes(key, POLL_SECONDS * 1000)
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise


def leave(code: int = 0) -> None:
    """Wait until all have come to the end of the program, and go together."""
    global _crew
    if _crew is None:
        return
    exchange("the end", b"")
    import jax

    _flush()
    with _crew.ending:  # a peer that goes is no loss any more
        if is_first():
            _crew.client.key_value_set("tlite/end", json.dumps(None))
        _crew.watch.join(10)
        jax.distributed.shutdown()
    if _crew.watch.is_alive():  # still in C++, where the end of Python would be an abort
        os._exit(code)
    _crew = None


def fail(line: str, code: int) -> NoReturn:
    """End this process with a line on standard error, if any, and by it the others at once."""
    with contextlib.suppress(Exception):  # there is no coordinator any more
        _crew.client.key_value_set("tlite/end", json.dumps([line, code]))
    _end(line, code)


def lost_peer(error: BaseException) -> str | None:
    """A sentence for an error of JAX that comes of another process that is gone."""
    if _crew is None or not any(word in str(error).lower() for word in BROKEN):
        return None
    time.sleep(POLL_SECONDS)  # it may have told why, which is told here too, and ends this process
    return f"{LOST}: what was saved is kept"


def given_place(
    coordinator: str | None, processes: int | None, process: int | None
) -> Place | None:
    """The place that the three options name; None where none of them is given.

    Raises:
        UserError: only some are given, or they don't fit together.
    """
    given = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    if {*given.values()} == {None}:
        return None
    if missing := [name for name, value in given.items() if value is None]:
        raise UserError(
            f"{' and '.join(missing)} must be given too: one of several processes needs "
            "--coordinator HOST:PORT, --processes N and --process I"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"--coordinator must be HOST:PORT, not {coordinator!r}")
    if processes < 1:
        raise UserError(f"--processes must be at least 1, not {processes}")
    if not 0 <= process < processes:
        raise UserError(f"--process must be from 0 to {processes - 1}, not {process}")
    return Place(coordinator, processes, process)


def check_address(place: Place) -> None:
    """Raises a `UserError` where the coordinator can't listen, or its host has no address.

    JAX would end without a word, or let a second run listen at the same port.
    """
    host, _, port = place.coordinator.rpartition(":")
    try:
        if place.process:
            socket.getaddrinfo(host.strip("[]"), port)
            return
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(("", int(port)))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(
            f"can't use the coordinator's address {place.coordinator}: {reason}"
        ) from error


def in_a_job() -> bool:
    """Whether `jax.distributed.initialize` is to find this process's place by itself.

    It does in a job of Slurm, Open MPI or Kubernetes, and on a TPU; alone, JAX is not imported.

    Raises:
        UserError: a job has several processes, but does not say where they can meet.
    """
    mpi = int(os.environ.get(f"{MPI}SIZE", 1)) > 1
    if mpi and "OMPI_MCA_orte_hnp_uri" not in os.environ:  # Open MPI 5 tells no address
        raise UserError(
            "this Open MPI does not say where its processes can meet: give each --coordinator "
            f"HOST:PORT, --processes ${MPI}SIZE and --process ${MPI}RANK"
        )
    # A shell in a job of Slurm, which is no step of it, is alone.
    slurm = "SLURM_STEP_NODELIST" in os.environ and int(os.environ.get("SLURM_NTASKS", 1)) > 1
    return mpi or slurm or "JOB_COMPLETION_INDEX" in os.environ or has_tpu()


def local_devices() -> list[int] | None:
    """For JAX, in a job: [] is all that this process sees, None one GPU by its number.

    That number would be wrong where each process sees its own GPU alone, and leave the others of a
    machine idle where one process has it for itself.
    """
    here = os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ.get(f"{MPI}LOCAL_SIZE", "")
    sees_one = os.environ.get("CUDA_VISIBLE_DEVICES", "").isdecimal()
    return [] if sees_one or here == "1" or here.startswith("1(") else None


def has_tpu() -> bool:
    """Whether this machine has a TPU, from what Linux knows of its buses."""
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    return f"{TPU_VENDOR}\n" in map(Path.read_text, vendors)


def _connected(place: Place | None, heartbeat: int) -> Crew | None:
    """Start JAX's runtime in a thread of its own, so that Ctrl-C ends the wait; None: alone."""
    import jax
    from jax._src import distributed  # Orbax takes its client from there too

    # Its notifier would swallow SIGTERM; the training loop hears that by itself.
    jax.config.update("jax_enable_preemption_service", False)
    # Nor is the coordinator looked for behind the environment's http_proxy: that may never answer.
    jax.config.update("jax_check_proxy_envs", False)
    if place:
        os.environ["no_grpc_proxy"] = place.coordinator.rpartition(":")[0].strip("[]")  # noqa: SIM112
    found, failed = [], []

    def initialize():
        try:
            jax.distributed.initialize(
                *(place or (None, None, None)),
                None if place else local_devices(),
                cluster_detection_method="deactivate" if place else None,
                initialization_timeout=PATIENCE,
                heartbeat_timeout_seconds=heartbeat,
            )
            state = distributed.global_state
            at = Place(state.coordinator_address, state.num_processes, state.process_id)
            found.append(Crew(at, state.client))
            _quiet(first=at.process == 0)
            jax.devices()  # all start together: one alone would wait for the others, for minutes
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=initialize, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
    if failed:
        raise UserError(f"can't join the run: {' '.join(str(failed[0]).split())[:200]}")
    return found[0] if found[0].place.processes > 1 else None


def _quiet(first: bool) -> None:
    """Let only the first process print, and nothing of what gloo writes to standard output."""
    null = os.open(os.devnull, os.O_WRONLY)
    raw = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)  # python -u has no buffer of bytes
    kind = type(raw) if isinstance(raw, io.FileIO) else io.FileIO
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(kind(os.dup(1 if first else null), "w")),
        sys.stdout.encoding,
        sys.stdout.errors,
        line_buffering=sys.stdout.line_buffering,
        write_through=sys.stdout.write_through,
    )
    os.dup2(null, 1)
    os.close(null)
    if not first:  # what all are warned of, the first one says
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)


def _watch() -> None:
    """End this process when another one says that it fails; a thread of its own."""
    crew = _crew
    while True:
        try:
            said = json.loads(crew.client.blocking_key_value_get("tlite/end", 3_600_000))
            break
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                return  # the coordinator is gone, which ends this process by an abort
    if said is not None:  # not the end that all have come to
        _end(*said)


def _end(line: str, code: int) -> NoReturn:
    """Say why and end, without waiting for what others have left half done; the first one does."""
    if not _crew.ending.acquire(blocking=False):
        time.sleep(3600)  # until the other thread has done it
    with contextlib.suppress(Exception):
        print(line, end="\n" if line else "", file=sys.stderr, flush=True)
    flushing = threading.Thread(target=_flush, daemon=True)  # a reader may be stuck
    flushing.start()
    flushing.join(1)
    if is_first() and _crew.client:
        time.sleep(0.5)  # the others hear it from here
    os._exit(code)


def _flush() -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()


def _failed(kind: type, error: BaseException, trace: Any) -> None:
    """What is called with an error of our own, before the process ends by it."""
    sys.__excepthook__(kind, error, trace)
    if _crew and not issubclass(kind, KeyboardInterrupt):
        where = f"process {_crew.place.process} failed by a {kind.__name__}"
        fail(f"tlite: {where}: its traceback tells more", 1)
