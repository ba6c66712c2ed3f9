"""The suite's own rules: a skip in CI is a fault, and what a file compiles has a budget."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.programs import over

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.helpers import skips
def pytest_configure(config):
    config.pluginmanager.register(skips)
"""
SKIPPED = "import pytest\ndef test_it(): pytest.skip('not now')\ndef test_other(): pass"
LACKING = "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass"


@pytest.mark.parametrize(
    ("ci", "code", "closing"),
    [("", 0, "1 passed, 2 skipped"), ("true", 1, "1 failed, 1 passed, 1 error")],
)
def test_what_is_skipped_in_ci_has_failed(ci, code, closing, tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(SKIPPED)
    (tmp_path / "test_lacking.py").write_text(LACKING)
    words = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env=os.environ | {"CI": ci, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout
    assert closing in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("count", "kept", "faults"), [(125, 100, 0), (126, 100, 1), (10, 0, 0), (11, 0, 1), (13, 4, 0)]
)
def test_a_file_that_compiles_a_quarter_more_than_is_kept_is_told(count, kept, faults):
    found = over({"a.py": count}, {"a.py": kept} if kept else {})
    assert len(found) == faults
    assert all(line.startswith(f"a.py compiles {count} programs") for line in found)
