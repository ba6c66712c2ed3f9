"""What all tests share: the real data's folder, four devices on whatever CPU, no network."""

import contextlib
import ctypes
import gc
import os
import signal
from pathlib import Path

import hypothesis
import jax
import jaxtyping
import pytest

from tests.helpers import suite

# Few examples while one works, more where nobody waits; no deadline, as what is new is compiled.
hypothesis.settings.register_profile("here", deadline=None, max_examples=25)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=200)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")

# A run in the background or under nohup ignores some signals, and so would the processes it starts.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["XDG_STATE_HOME"] = str(Path(__file__).parents[1] / ".pytest_cache/state")
jax.config.update("jax_num_cpu_devices", 4)
# Most of the time of a test is compilation: do less of it, here and in the processes tests start.
# The flags halve the time that a small program takes; XLA ends where it does not know one.
# What users run is tried by test_real_optimisations.py and by the attack.
flags = ["--xla_cpu_parallel_codegen_split_count=1"]
if jax.__version_info__ < (0, 11):
    flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")])
# And none twice: a program is kept for the other tests and processes, and for the next run.
SETTINGS = {
    "jax_disable_most_optimizations": True,
    "jax_compilation_cache_dir": str(Path(__file__).parents[1] / ".pytest_cache/jax"),
    "jax_persistent_cache_min_compile_time_secs": 0,
}
for name, value in SETTINGS.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)
jax.devices()  # starts JAX with the four: a command in a test would set the number of cores first
# Programs are long lists of small objects, few of them ever garbage: look for it more rarely.
gc.set_threshold(50_000, 20, 50)

# What takes longest comes first, so that all workers end together.
SLOWEST = ["system", "tests", "cli", "runs", "training", "models"]
# Programs stay in memory, gigabytes of them by the end; one is soon read from the cache again.
MOST_MEMORY = 3 * 2**30  # bytes of a worker


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
    """Forget the compiled programs after a file that leaves the process too large (on Linux)."""
    yield
    statistics = Path("/proc/self/statm")
    if statistics.is_file():
        pages = int(statistics.read_text().split()[1])
        if pages * os.sysconf("SC_PAGE_SIZE") > MOST_MEMORY:
            jax.clear_caches()
            gc.collect()
            with contextlib.suppress(OSError, AttributeError):  # glibc keeps what is freed
                ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture
def without_type_checks():
    """Calls are not checked by jaxtyping, as outside of tests."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data: TLITE_DATA, else ../shared/data; without it the test is skipped."""
    shared = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TLITE_DATA") or shared)
    if not folder.is_dir():
        pytest.skip(f"no real data: TLITE_DATA is not set and {shared} does not exist")
    return folder


def pytest_configure(config) -> None:
    config.pluginmanager.register(suite.Skips())


def pytest_collection_modifyitems(items) -> None:
    rank = {folder: number for number, folder in enumerate(SLOWEST)}
    items.sort(key=lambda item: rank.get(item.path.parent.name, len(rank)))
