"""Several processes as one run: they join, agree on what must not differ, and leave together.

Each runs the same program on devices of its own. JAX's coordination service, in process 0, lets
them find each other, hears a heartbeat of each, and keeps the small values that they exchange.
One process alone is never joined: nothing here then imports JAX, waits or changes anything. Where
one fails JAX ends the others, at the latest when its heartbeat is missed; `tlite launch` at once.
"""

import contextlib
import json
import logging
import os
import re
import reprlib
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from tlite.errors import UserError, first_line
from tlite.terminal import Output, text_stream

T = TypeVar("T")

LOST = "another process of this run may have ended"
CLUSTERS = "slurm", "ompi", "gketpu", "gcetpu"
"""JAX's names of the environments that are joined. An indexed job of Kubernetes is not among them:
most are sweeps of independent pods."""
MPI = "OMPI_COMM_WORLD_"
MAX_HEARTBEAT = 2**31 - 1  # seconds; JAX takes an int of 32 bits
PATIENCE = 300  # seconds to wait for all to come
POLL_SECONDS = 1  # between two looks at Python's signals while others are waited for


class Signals:
    """Collects SIGINT (Ctrl-C), SIGTERM and SIGHUP, which ask a run to end, in `arrived`.

    What this process was told to ignore when it started (by `nohup`, or as a job of a shell in the
    background) it goes on ignoring.
    """

    def __enter__(self):
        self.arrived, self._before = [], {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _):
        self.arrived.append(int(number))


@dataclass
class ProcessGroup:
    """What a joined process knows of the run; the client is of JAX's coordination service."""

    client: Any
    processes: int
    process: int
    exchanges: int = 0


_group: ProcessGroup | None = None


def initialize(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    detect: bool = True,
    heartbeat: int = 100,
) -> None:
    """Become one of several processes, before anything touches JAX's devices.

    Once joined, only process 0 prints to standard output.

    Args:
        coordinator: host and port where process 0 listens, HOST:PORT.
        processes: number of processes.
        process: index of this process, from 0.
        detect: without the arguments above, join the processes of a Slurm step, of Open MPI or of
            a TPU pod, if JAX detects one.
        heartbeat: seconds without a sign of life after which a process counts as lost.

    Raises:
        UserError: the arguments don't fit together, or the coordinator's port is taken.
    """
    global _group
    if not 1 <= heartbeat <= MAX_HEARTBEAT:
        raise UserError(
            f"--heartbeat must be between 1 and {MAX_HEARTBEAT} seconds, not {heartbeat}"
        )
    place, cluster = (coordinator, processes, process), None
    if place != (None, None, None):
        validate_process_args(*place)
        if processes == 1:
            return
    elif not detect or (cluster := detect_cluster()) is None:
        return
    # Of a lost process XLA writes pages. 1 is what JAX sets where a user has not.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    _group = _connected(place, cluster, heartbeat)
    sys.excepthook = _failed


def process_count() -> int:
    """How many processes the run has."""
    return _group.processes if _group else 1


def is_process0() -> bool:
    """Whether this process is the one that writes and prints."""
    return _group is None or _group.process == 0


def all_gather(tag: str, value: Any) -> list:
    """All-gather a JSON value: the list of all processes' values, in their order.

    To be called by the main thread of all processes, which wait for each other.

    Args:
        tag: name of this exchange, the same in all processes.

    Raises:
        RuntimeError: the processes have come to different exchanges; raised in all.
    """
    if (group := _group) is None:
        return [json.loads(json.dumps(value))]
    name, group.exchanges = f"tlite/{group.exchanges}", group.exchanges + 1
    group.client.key_value_set(f"{name}/{group.process}", json.dumps([tag, value]))
    if group.process:
        pairs = json.loads(_wait_for(f"{name}/all"))
    else:
        pairs = [json.loads(_wait_for(f"{name}/{i}")) for i in range(group.processes)]
        group.client.key_value_set(f"{name}/all", json.dumps(pairs))
        if group.exchanges > 1:  # all processes have read the previous exchange
            group.client.key_value_delete(f"tlite/{group.exchanges - 2}")
    tags = [tag for tag, _ in pairs]
    if len(set(tags)) > 1:
        raise RuntimeError(f"the processes are at different exchanges: {', '.join(tags)}")
    return [value for _, value in pairs]


def broadcast_from_process0(function: Callable[[], T]) -> T:
    """Call a function in process 0 only and broadcast its result, a JSON value, to all.

    All processes go on when it has returned.
    """
    tag = getattr(function, "func", function).__qualname__  # of a partial, too
    return all_gather(tag, function() if is_process0() else None)[0]


def _wait_for(key: str) -> str:
    """A value as soon as some process has set it; Ctrl-C is heard meanwhile."""
    while True:
        try:
            return _group.client.blocking_key_value_get(key, POLL_SECONDS * 1000)
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise


def shutdown() -> None:
    """Wait until all have come to the end of the program, and go together."""
    global _group
    if _group is None:
        return
    all_gather("leave", None)
    import jax

    jax.distributed.shutdown()
    _group = None


def abort(code: int) -> NoReturn:
    """End this process at once: else it would wait for the others, which may wait for it."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        logging.shutdown()
    os._exit(code)


def _failed(*error: Any) -> None:
    """What is called with an error of our own, before the process ends by it."""
    sys.__excepthook__(*error)
    abort(1)


def peer_failure_message(error: BaseException) -> str | None:
    """Return a message for an error of JAX's runtime in one of several processes."""
    # XLA raises its status, "UNKNOWN: Gloo all-reduce failed" say, in one of these two.
    by_xla = isinstance(error, RuntimeError | ValueError) and re.match("[A-Z_]+: ", str(error))
    if _group is None or not by_xla:
        return None
    time.sleep(POLL_SECONDS)  # so that `tlite launch` sees first which one has ended, and how
    return f"{LOST}, and what was saved is intact: {first_line(error)}"


def validate_process_args(
    coordinator: str | None, processes: int | None, process: int | None
) -> None:
    """Raises a `UserError` where the options that name a place don't fit together; or the port is
    taken, of which JAX dies without a word."""
    if None in (coordinator, processes, process):
        raise UserError(
            "one of several processes needs --coordinator HOST:PORT, --processes N and --process I"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"--coordinator must be HOST:PORT, not {coordinator!r}")
    if not 0 <= process < processes:
        raise UserError(f"--process must be from 0 to --processes {processes} - 1, not {process}")
    if process:
        return
    try:
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(("", int(port)))
    except OSError as error:
        reason = error.strerror.lower()
        raise UserError(f"can't use the coordinator's address {coordinator}: {reason}") from error


def detect_cluster() -> str | None:
    """Return JAX's name of the environment that has started several processes, or None.

    Raises:
        UserError: Open MPI has started several processes, but JAX can't detect where they meet.
    """
    if int(os.environ.get(f"{MPI}SIZE", 1)) > 1 and "OMPI_MCA_orte_hnp_uri" not in os.environ:
        raise UserError(
            "this Open MPI does not say where its processes can meet: give each --coordinator "
            f"HOST:PORT, --processes ${MPI}SIZE and --process ${MPI}RANK, or --distributed off"
        )
    from jax._src.clusters import ClusterEnv

    platforms = os.environ.get("JAX_PLATFORMS", "").split(",")
    names = [n for n in CLUSTERS if {"", "tpu"} & {*platforms} or not n.endswith("tpu")]
    for cluster in ClusterEnv._cluster_types:
        if cluster.name in names and cluster.is_env_present() and cluster.get_process_count() > 1:
            return cluster.name
    return None


def local_devices() -> list[int] | None:
    """Return `local_device_ids` for `jax.distributed.initialize` in a cluster.

    []: all visible GPUs, if the scheduler gives each process its own GPUs or a whole machine; else
    None: one GPU, by the process's number on its machine.
    """
    here = os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ.get(f"{MPI}LOCAL_SIZE", "")
    sees_one = os.environ.get("CUDA_VISIBLE_DEVICES", "").isdecimal()
    return [] if sees_one or here == "1" or here.startswith("1(") else None


def _connected(place: tuple, cluster: str | None, heartbeat: int) -> ProcessGroup:
    """Start JAX's runtime in a thread, so that Ctrl-C ends the wait."""
    import jax
    from jax._src.distributed import global_state  # Orbax takes its client from there too

    # Its notifier would swallow SIGTERM; the training loop hears that by itself.
    jax.config.update("jax_enable_preemption_service", False)
    # Nor is the coordinator looked for behind the environment's http_proxy: that may never answer.
    jax.config.update("jax_check_proxy_envs", False)
    coordinator, failed = place[0], []
    if coordinator:
        os.environ["no_grpc_proxy"] = coordinator.rpartition(":")[0].strip("[]")  # noqa: SIM112

    def connect():
        try:
            jax.distributed.initialize(
                *place,
                None if coordinator else local_devices(),
                cluster_detection_method=cluster or "deactivate",
                initialization_timeout=PATIENCE,
                heartbeat_timeout_seconds=heartbeat,
            )
            _quiet(first=global_state.process_id == 0)
            jax.devices()  # all start together: one alone would wait for the others, for minutes
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
    if failed:
        reason = " ".join(str(failed[0]).split())[:200]
        alone = " (--distributed off trains in this process alone)" if cluster else ""
        raise UserError(f"can't join the run: {reason}{alone}")
    return ProcessGroup(global_state.client, global_state.num_processes, global_state.process_id)


def _quiet(first: bool) -> None:
    """Let only the first process print, and nothing of what gloo writes to standard output."""
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    sys.stdout = text_stream(sys.stdout, Output(os.dup(1 if first else null), "w"))
    os.dup2(null, 1)
    os.close(null)
    if not first:  # what all are warned of, the first one says
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)


def assert_equal_across_processes(tag: str, value: Any) -> None:
    """Raise a `UserError` in a process whose JSON value differs from that of process 0."""
    here = json.loads(json.dumps(value))
    if here != (first := all_gather(tag, here)[0]):
        raise UserError(
            f"process 0 disagrees: {first_difference(first, here)}; start every process with the "
            "same command and files"
        )


def first_difference(saved: Any, current: Any, path: str = "") -> str:
    """Return the first field, by its dotted path, in which two configs in JSON differ."""
    if isinstance(saved, dict) and isinstance(current, dict):
        for name in saved | current:
            if saved.get(name) != current.get(name):
                inner = f"{path}.{name}".lstrip(".")
                return first_difference(saved.get(name), current.get(name), inner)
    return f"{path} is {reprlib.repr(saved)} there, {reprlib.repr(current)} here"
