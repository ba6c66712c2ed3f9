"""What the command line sets before JAX starts: CPU cores as devices, and a compilation cache."""

import contextlib
import os
import sys
from pathlib import Path

from tlite.errors import UserError


def prepare_devices() -> None:
    """Make every core of a CPU a device of its own and keep compiled programs between runs.

    Small models gain most: one thread pool over two cores trains the 44k-parameter generator
    slower than two devices of one core each. A GPU or TPU, where JAX finds one, is used instead.
    JAX is not imported for it: it reads its settings from the environment, and yours are kept.
    """
    settings = {
        "jax_num_cpu_devices": num_cores(),
        "jax_compilation_cache_dir": str(cache_folder() / "compiled"),
        "jax_persistent_cache_min_compile_time_secs": 0,
    }
    for name, value in settings.items():
        if name.upper() in os.environ:
            continue
        os.environ[name.upper()] = str(value)
        if jax := sys.modules.get("jax"):  # imported already
            with contextlib.suppress(RuntimeError):  # and started
                jax.config.update(name, value)


def lack_of_platform() -> str | None:
    """A sentence where JAX, imported already, has not what JAX_PLATFORMS asks for."""
    asked, jax = os.environ.get("JAX_PLATFORMS"), sys.modules.get("jax")
    if asked and jax:
        try:
            jax.devices()
        except Exception:  # of several types, AssertionError among them
            return f"JAX_PLATFORMS is {asked!r}, which JAX has not here: leave it out, or say cpu"
    return None


def num_cores() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder() -> Path:
    """`tlite` in the user's cache folder: what can be made or fetched again.

    Raises:
        UserError: there is no home folder.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tlite"
    except RuntimeError:
        raise UserError("there is no home folder: set HOME, or XDG_CACHE_HOME") from None
