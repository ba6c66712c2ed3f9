"""Which of several processes this one is: as it was told, or as Slurm, Open MPI or a TPU know."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from tlite.errors import UserError

TPU_VENDOR = "0x1ae0"


@dataclass(frozen=True)
class Place:
    """One of several processes.

    Args:
        coordinator: host and port where process 0 listens.
        local_devices: which of this machine's GPUs are this process's; None: all it can see.
    """

    coordinator: str
    processes: int
    process: int
    local_devices: list[int] | None = None


def given_place(
    coordinator: str | None, processes: int | None, process: int | None
) -> Place | None:
    """The place that the three options name; None where none of them is given.

    Raises:
        UserError: only some are given, or they don't fit together.
    """
    given = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == 3:
        return None
    if missing:
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


def find_place() -> Place | None:
    """The place in a job of Slurm or Open MPI or in a slice of TPUs; None where there is none.

    JAX knows how to read each. It is imported only where one of them may be at hand.

    Raises:
        UserError: a job has several processes, but does not say where they can meet.
    """
    names = "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NODELIST"
    if not any(name in os.environ for name in names) and not has_tpu():
        return None
    from jax._src.clusters import GceTpuCluster, GkeTpuCluster, OmpiCluster, SlurmCluster

    for cluster in (OmpiCluster, SlurmCluster, GkeTpuCluster, GceTpuCluster):
        # From version 0.12 JAX wants mpi4py where Open MPI tells no address.
        told = cluster is not OmpiCluster or "OMPI_MCA_orte_hnp_uri" in os.environ
        if not told or not cluster.is_env_present():
            continue
        if (processes := cluster.get_process_count()) == 1:
            return None
        port = os.environ.get("JAX_COORDINATOR_PORT")
        coordinator = os.environ.get("JAX_COORDINATOR_ADDRESS")
        coordinator = coordinator or cluster.get_coordinator_address(300, port)
        ids = local_devices(cluster.get_local_process_id())
        return Place(coordinator, processes, cluster.get_process_id(), ids)
    if int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1)) > 1:  # Open MPI 5 tells no address
        raise UserError(
            "this Open MPI does not say where its processes can meet: give each --coordinator "
            "HOST:PORT, --processes $OMPI_COMM_WORLD_SIZE and --process $OMPI_COMM_WORLD_RANK"
        )
    return None


def local_devices(local_process: int | None) -> list[int] | None:
    """One GPU for each process of a machine; all of them for a process that has it for itself."""
    if local_process is None:
        return None
    here = os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ.get(
        "OMPI_COMM_WORLD_LOCAL_SIZE"
    )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    if "JAX_LOCAL_DEVICE_IDS" in os.environ or here == "1" or (here or "").startswith("1("):
        return None
    return [local_process] if visible == "all" or "," in visible else None


def has_tpu() -> bool:
    """Whether this machine has a TPU, from what Linux knows of its buses."""
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    return any(vendor.read_text().strip() == TPU_VENDOR for vendor in vendors)
