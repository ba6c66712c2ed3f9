"""Several processes as one run: join a group, exchange small values, check agreement, shut down.

Every process runs the same program on its own devices. They exchange small JSON values through
JAX's coordination service in process 0, which also watches their heartbeats. A single process joins
no group. If a process fails, JAX ends the others, at the latest
when its heartbeat is missed; `tlite launch` ends them sooner.
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

from tlite.errors import CollectiveError, UserError, first_line

T = TypeVar("T")

LOST = "another process of this run may have ended"
CLUSTERS, TPU_CLUSTERS = ("slurm", "ompi"), ("gketpu", "gcetpu")
"""JAX's names of the clusters that are detected. An indexed job of Kubernetes is not one of them:
most are sweeps of independent pods."""
NO_GPU = "", "-1", "NoDevFiles"
"""Names in CUDA_VISIBLE_DEVICES that hide the GPUs after them."""
MPI = "OMPI_COMM_WORLD_"
JOIN_SECONDS = 300  # until all processes must have joined
POLL_SECONDS = 1  # between two checks of Python's signals while waiting for other processes


class Signals:
    """Context manager that collects SIGINT (Ctrl-C), SIGTERM and SIGHUP in the list `arrived`.

    Signals that the process ignores (under `nohup`, or as a background job) stay ignored.
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
    """This process's place among the processes of a run, and JAX's coordination client."""

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
    """Join the other processes of a run, before JAX's devices are used.

    Afterwards only process 0 prints to standard output.

    Args:
        coordinator: HOST:PORT on which process 0 listens.
        processes: number of processes.
        process: index of this process, from 0.
        detect: without the arguments above, join the processes of a Slurm step, of Open MPI or of
            a TPU pod, if JAX detects one.
        heartbeat: seconds without a heartbeat after which a process counts as lost.

    Raises:
        UserError: the arguments are inconsistent, or the coordinator's port is in use.
    """
    global _group
    if not 1 <= heartbeat < 2**31:  # JAX takes an int of 32 bits
        raise UserError(f"--heartbeat must be from 1 to {2**31 - 1} seconds, not {heartbeat}")
    options, cluster = (coordinator, processes, process), None
    if options != (None, None, None):
        validate_process_args(*options)
        if processes == 1:
            return
    elif not detect or (cluster := detect_cluster()) is None:
        return
    # XLA logs pages about a lost process. JAX sets 1 unless the user has set another level.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    _group = _connect(options, cluster, heartbeat)
    sys.excepthook = lambda *error: (sys.__excepthook__(*error), abort(1))


def process_count() -> int:
    """Return the number of processes of the run."""
    return _group.processes if _group else 1


def is_process0() -> bool:
    """Return True in the process that writes files and prints."""
    return _group is None or _group.process == 0


def all_gather(tag: str, value: Any) -> list:
    """Return the list of all processes' JSON values, in the order of the processes.

    The main thread of every process must call it; they wait for each other.

    Args:
        tag: name of this exchange, the same in all processes.

    Raises:
        RuntimeError: the processes called it with different tags; raised in all.
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
    """Call a function in process 0 only and return its result, a JSON value, in all processes."""
    tag = getattr(function, "func", function).__qualname__  # also for a partial
    return all_gather(tag, function() if is_process0() else None)[0]


def call_in_all_processes(function: Callable[[], T]) -> T:
    """Call a function in every process; return its result if none of them has failed.

    Raises:
        CollectiveError: the first process's `UserError`, raised in all; that of a single process
            is raised as it is.
    """
    result, message = None, None
    try:
        result = function()
    except UserError as error:
        if _group is None:
            raise
        message = str(error)
    messages = all_gather("errors", message)
    if first := next(filter(None, messages), None):
        raise CollectiveError(first)
    return result


def _wait_for(key: str) -> str:
    """Return a value when another process has set it; Ctrl-C interrupts the wait."""
    while True:
        try:
            return _group.client.blocking_key_value_get(key, POLL_SECONDS * 1000)
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise


def shutdown() -> None:
    """Leave the group when all processes have reached the end of the program."""
    global _group
    if _group is None:
        return
    all_gather("leave", None)
    import jax

    jax.distributed.shutdown()
    _group = None


def abort(code: int) -> NoReturn:
    """End this process at once, without waiting for other processes or threads."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        logging.shutdown()
    os._exit(code)


def peer_failure_message(error: BaseException) -> str | None:
    """Return a message for an error of JAX's runtime in one of several processes."""
    # XLA raises its status, "UNKNOWN: Gloo all-reduce failed" say, as one of these two types.
    is_status = isinstance(error, RuntimeError | ValueError) and re.match("[A-Z_]+: ", str(error))
    if _group is None or not is_status:
        return None
    time.sleep(POLL_SECONDS)  # so that `tlite launch` first sees which process has ended
    return f"{LOST}, saved checkpoints are intact: {first_line(error)}"


def validate_process_args(
    coordinator: str | None, processes: int | None, process: int | None
) -> None:
    """Raise a `UserError` if the options are inconsistent, or the coordinator's port is in use.

    JAX itself would abort without a message if the port is in use.
    """
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
    """Return JAX's name of the cluster that started several processes, or None."""
    if int(os.environ.get(f"{MPI}SIZE", 1)) > 1 and "OMPI_MCA_orte_hnp_uri" not in os.environ:
        raise UserError(
            "this Open MPI provides no coordinator's address: give each process --coordinator "
            f"HOST:PORT, --processes ${MPI}SIZE and --process ${MPI}RANK, or --distributed off"
        )
    from jax._src.clusters import ClusterEnv

    may_use_tpu = not {"", "tpu"}.isdisjoint(os.environ.get("JAX_PLATFORMS", "").split(","))
    names = {*CLUSTERS, *TPU_CLUSTERS} if may_use_tpu else {*CLUSTERS}
    if os.environ.get("SLURM_STEP_NUM_TASKS") == "1":  # the shell of an allocation of several
        names -= {"slurm"}
    for cluster in ClusterEnv._cluster_types:
        if cluster.name in names and cluster.is_env_present() and cluster.get_process_count() > 1:
            return cluster.name
    return None


def local_devices() -> list[int] | None:
    """Return `local_device_ids` for `jax.distributed.initialize` in a cluster.

    [] selects all visible GPUs: the scheduler gives each process its own GPUs or its own machine.
    None selects one GPU, by the process's number on its machine.
    """
    tasks = os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ.get(f"{MPI}LOCAL_SIZE", "")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # numbers, or GPU-... or MIG-...
    has_one_gpu = visible not in NO_GPU and "," not in visible
    return [] if has_one_gpu or tasks == "1" or tasks.startswith("1(") else None


def _connect(options: tuple, cluster: str | None, heartbeat: int) -> ProcessGroup:
    """Start JAX's runtime in a thread, so that Ctrl-C ends the wait."""
    import jax
    from jax._src.distributed import global_state  # Orbax takes its client from there too

    # Its notifier would swallow SIGTERM, which the training loop handles.
    jax.config.update("jax_enable_preemption_service", False)
    # The coordinator must not be reached through http_proxy, which may never answer.
    jax.config.update("jax_check_proxy_envs", False)
    coordinator, errors = options[0], []
    if coordinator:
        os.environ["no_grpc_proxy"] = coordinator.rpartition(":")[0].strip("[]")  # noqa: SIM112

    def connect():
        try:
            jax.distributed.initialize(
                *options,
                None if coordinator else local_devices(),
                cluster_detection_method=cluster or "deactivate",
                initialization_timeout=JOIN_SECONDS,
                heartbeat_timeout_seconds=heartbeat,
            )
            _redirect_output(is_first=global_state.process_id == 0)
            jax.devices()  # waits for the other processes, at most for minutes
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
    if errors:
        reason = " ".join(str(errors[0]).split())[:200]
        alone = " (--distributed off trains in this process alone)" if cluster else ""
        raise UserError(f"can't join the run: {reason}{alone}")
    return ProcessGroup(global_state.client, global_state.num_processes, global_state.process_id)


def _redirect_output(is_first: bool) -> None:
    """Let only process 0 print, and keep what Gloo writes to file descriptor 1 off its output."""
    before, null = sys.stdout, os.open(os.devnull, os.O_WRONLY)
    before.flush()
    sys.stdout = open(  # noqa: SIM115
        os.dup(1 if is_first else null), "w", encoding=before.encoding, errors="replace"
    )
    sys.stdout.reconfigure(write_through=before.write_through)
    os.dup2(null, 1)
    os.close(null)
    if not is_first:  # process 0 prints the same warnings
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
