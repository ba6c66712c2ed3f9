"""Settings of JAX for the command line: CPU cores as devices, and a compilation cache."""

import atexit
import contextlib
import importlib.metadata
import os
import re
import sys
from pathlib import Path

from tlite.errors import UserError, first_line

MAX_CACHE_BYTES = 2 * 2**30
"""Size limit of the compilation cache; JAX's own limit needs the package filelock, and locks."""

DEVICE_COUNT_FLAG = "xla_force_host_platform_device_count"
"""Flag in XLA_FLAGS; JAX_NUM_CPU_DEVICES would override it."""


def prepare_devices() -> None:
    """Make every CPU core a device and cache compiled programs between runs.

    Small models gain most: the 44k-parameter generator trains faster on two devices of one core
    each than on one device with two threads. A GPU or TPU, if JAX finds one, is used instead. The
    settings are environment variables, so JAX need not be imported; variables that are set stay.
    """
    compiled = cache_folder() / "compiled"
    atexit.register(prune_cache, compiled)  # not after a signal: a later process does it
    settings = {
        "jax_num_cpu_devices": num_cores(),
        "jax_compilation_cache_dir": str(compiled),
        "jax_persistent_cache_min_compile_time_secs": 0,
    }
    if DEVICE_COUNT_FLAG in os.environ.get("XLA_FLAGS", ""):
        del settings["jax_num_cpu_devices"]
    for name, value in settings.items():
        if name.upper() in os.environ:
            continue
        os.environ[name.upper()] = str(value)
        if jax := sys.modules.get("jax"):  # imported already: it has read the environment
            with contextlib.suppress(RuntimeError):  # its devices are in use
                jax.config.update(name, value)


def prune_cache(folder: Path, max_bytes: int = MAX_CACHE_BYTES) -> None:
    """Delete the oldest files of a folder until the rest have at most `max_bytes` bytes."""
    total = 0
    with contextlib.suppress(OSError):  # no folder yet, or another process prunes too
        files = [(entry.stat(), entry.path) for entry in os.scandir(folder)]
        for status, path in sorted(files, key=lambda file: file[0].st_mtime, reverse=True):
            total += status.st_size
            if total > max_bytes:
                os.unlink(path)


def platform_error_message() -> str | None:
    """Return a message if JAX, if imported, can't use the platform that JAX_PLATFORMS names."""
    platforms, jax = os.environ.get("JAX_PLATFORMS"), sys.modules.get("jax")
    if platforms and jax:
        try:
            jax.devices()
        except Exception as error:  # of several types, AssertionError among them
            return f"JAX_PLATFORMS is {platforms!r}: {first_line(error)} (cpu is always available)"
    return None


def use_deterministic_operations() -> None:
    """Make XLA's GPU operations deterministic, if a GPU plugin is installed.

    Call it before JAX starts. Operations on a CPU are always deterministic.
    """
    names = [plugin.name for plugin in importlib.metadata.entry_points(group="jax_plugins")]
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_deterministic_ops" not in flags and re.search("cuda|rocm", " ".join(names)):
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true".strip()


def num_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder() -> Path:
    """Return the folder `tlite` in the user's cache folder, for files that may be deleted."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tlite"
    except RuntimeError:
        raise UserError("there is no home folder: set HOME, or XDG_CACHE_HOME") from None
