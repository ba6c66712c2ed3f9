"""Whether what is asked for fits into memory, before it is allocated."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax

from tlite.errors import OutOfMemory


def check_fits(what: str, needed: int, devices: list | None = None) -> None:
    """Raises an `OutOfMemory` if `what` needs more bytes, on each device, than are free.

    The devices of a CPU share its memory. Where nothing is known of the memory, nothing is said.
    """
    devices = devices or jax.local_devices()[:1]
    if devices[0].platform == "cpu":
        needed, free = needed * len(devices), free_memory()
    else:
        stats = devices[0].memory_stats() or {}
        free = stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0) or None
    if free is not None and needed > free:
        raise OutOfMemory(
            f"{what} would need {in_gib(needed)} of memory, and {in_gib(free)} are free"
        )


@contextlib.contextmanager
def out_of_memory(what: str) -> Iterator[None]:
    """Turn a lack of memory that only the allocation shows into an `OutOfMemory`."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise OutOfMemory(f"there is not enough memory for {what}: make it smaller") from error


def free_memory() -> int | None:
    """Bytes this process can still get: of the machine, or of its control group if that is less."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = dict(line.split(":") for line in lines)
        found.append(int(sizes["MemAvailable"].split()[0]) * 1024)
    with contextlib.suppress(OSError, ValueError, KeyError):
        group = Path("/sys/fs/cgroup")
        limit, used = (
            int((group / f"memory.{name}").read_text(encoding="ascii"))
            for name in ("max", "current")
        )
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
        parts = dict(line.split() for line in lines)
        # The cache of files counts as used, and is given up where memory is wanted.
        found.append(limit - used + int(parts["inactive_file"]) + int(parts["active_file"]))
    return min(found, default=None)


def in_gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
