"""Settings of all tests: four CPU devices, no network, little compilation."""

import contextlib
import ctypes
import gc
import os
import signal
import tempfile
from pathlib import Path

import hypothesis
import jax
import jaxtyping
import pytest
import threadpoolctl

# No deadline, because first calls compile.
hypothesis.settings.register_profile("here", deadline=None, max_examples=25)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=50)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")

# In the background or under nohup, this process and its children would ignore some signals.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        is_ctrl_c = number == signal.SIGINT
        signal.signal(number, signal.default_int_handler if is_ctrl_c else signal.SIG_DFL)

# Threads of OpenBLAS wait busily for each other: with two workers on two cores, products of vectors
# took 400 times as long. The variable is for SciPy and for the processes that tests start.
threadpoolctl.threadpool_limits(1, "blas")
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
CACHE = Path(__file__).parents[1] / ".pytest_cache"
if not os.access(CACHE.parent, os.W_OK):  # a read-only checkout
    CACHE = Path(tempfile.gettempdir(), f"tlite-tests-{os.getuid()}")
os.environ["XDG_STATE_HOME"] = str(CACHE / "state")
jax.config.update("jax_num_cpu_devices", 4)
os.environ["JAX_NUM_CPU_DEVICES"] = "1"  # of a process that a test starts: it compiles fastest
# Compilation takes most of the time: do less of it, also in the processes that tests start. These
# flags halve it; XLA aborts on unknown ones. test_real_optimisations.py and the attack do without.
flags = ["--xla_cpu_parallel_codegen_split_count=1"]
if jax.__version_info__ < (0, 11):
    flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")])
# Other tests and processes, and the next run, reuse compiled programs.
SETTINGS = {
    "jax_disable_most_optimizations": True,
    "jax_compilation_cache_dir": str(CACHE / "jax"),
    "jax_persistent_cache_min_compile_time_secs": 0,
}
for name, value in SETTINGS.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)
jax.devices()  # starts JAX, before a test changes the environment
# Compiled programs consist of many small objects that stay: collect garbage less often.
gc.set_threshold(50_000, 20, 50)

# Slow tests come first, so that all workers end together.
SLOWEST = ["system", "tests", "cli", "runs", "training", "models"]
MAX_MEMORY = 3 * 2**30  # bytes of a worker


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
    """Clear compiled programs after a file that leaves the process too large (on Linux)."""
    yield
    statistics = Path("/proc/self/statm")
    if statistics.is_file():
        pages = int(statistics.read_text().split()[1])
        if pages * os.sysconf("SC_PAGE_SIZE") > MAX_MEMORY:
            jax.clear_caches()
            gc.collect()
            with contextlib.suppress(OSError, AttributeError):  # glibc keeps freed memory
                ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture
def without_type_checks():
    """Disable jaxtyping's checks of calls, as outside of tests."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder of real data, TLITE_DATA or ../shared/data, or skip the test."""
    shared = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TLITE_DATA") or shared)
    if not folder.is_dir():
        pytest.skip(f"no real data: TLITE_DATA is not set and {shared} does not exist")
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return fail_skipped_in_ci((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return fail_skipped_in_ci((yield))


def fail_skipped_in_ci(report):
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"skipped in CI: {report.longrepr}"
    return report


def pytest_collection_modifyitems(items) -> None:
    rank = {folder: number for number, folder in enumerate(SLOWEST)}
    items.sort(key=lambda item: rank.get(item.path.parent.name, len(rank)))
