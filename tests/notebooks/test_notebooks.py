"""Every notebook runs from its first cell to its last."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    # Some train for thousands of steps: whole programs are faster, and `make notebooks` keeps them.
    del environment["JAX_DISABLE_MOST_OPTIMIZATIONS"], environment["XLA_FLAGS"]
    environment["JAX_COMPILATION_CACHE_DIR"] = str(ROOT / ".pytest_cache" / "notebooks")
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    process = subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
