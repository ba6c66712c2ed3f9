"""The suite's own rules: a skip in CI is a fault, and what a file compiles has a budget."""

import json
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
SHARED = """
import jax, pytest
from tests.helpers import programs
def pytest_configure(config):
    programs.KEPT = config.rootpath / "kept.json"
    config.pluginmanager.register(programs.Programs(config, True))
@pytest.fixture(scope="session")
def made():
    return jax.jit(lambda x: x + 1.0)(2.0)
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


def test_a_fixture_of_the_session_is_counted_for_no_file_and_clears_what_it_compiled(tmp_path):
    (tmp_path / "conftest.py").write_text(SHARED)
    (tmp_path / "kept.json").write_text('{"programs": {}}')
    test = "import jax\ndef test_it(made): assert jax.jit(lambda x: x + 2.0)(made) == 5.0"
    for name in ("test_first.py", "test_then.py"):
        (tmp_path / name).write_text(test)
    words = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--rootdir", "."]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "pytest", *words]
    subprocess.run(words, cwd=tmp_path, env=environment, check=True)
    counts = json.loads((tmp_path / "kept.json").read_text())["programs"]
    assert counts["test_first.py"] == counts["test_then.py"] > 0
