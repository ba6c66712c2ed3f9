"""What all tests share: the real data's folder, four devices on whatever CPU, no network."""

import os
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

os.environ["HF_HUB_OFFLINE"] = "1"
jax.config.update("jax_num_cpu_devices", 4)
# Most of the time of a test is compilation: do less of it, here and in the processes tests start.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data: TLITE_DATA, else ../shared/data; without it the test is skipped."""
    shared = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TLITE_DATA") or shared)
    if not folder.is_dir():
        pytest.skip(f"no real data: TLITE_DATA is not set and {shared} does not exist")
    return folder


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory):
    """JAX keeps its programs between commands, as it does between processes for a user."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1)
    compilation_cache.reset_cache()
