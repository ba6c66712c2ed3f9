"""What all tests share: the real data's folder, and four devices on whatever CPU."""

import os
from pathlib import Path

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 4)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data: TLITE_DATA, else ../shared/data; without it the test is skipped."""
    shared = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TLITE_DATA") or shared)
    if not folder.is_dir():
        pytest.skip(f"no real data: TLITE_DATA is not set and {shared} does not exist")
    return folder
