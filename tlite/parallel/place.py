"""Which of several processes this one is: as it was told, or as JAX finds it in a job."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from tlite.errors import UserError

TPU_VENDOR = "0x1ae0"
MPI = "OMPI_COMM_WORLD_"


@dataclass(frozen=True)
class Place:
    """One of several processes.

    Args:
        coordinator: host and port where process 0 listens.
    """

    coordinator: str
    processes: int
    process: int


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
    return any(vendor.read_text().strip() == TPU_VENDOR for vendor in vendors)
