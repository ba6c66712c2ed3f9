"""The guarantees of tests/README.md name existing tests, and skips fail in CI."""

import ast
import re
from pathlib import Path

import pytest

from tests.helpers.python import python
from tests.helpers.suite import ROW, rows

TESTS = Path(__file__).parent
README = (TESTS / "README.md").read_text(encoding="utf-8")


def test_every_guarantee_is_listed_once():
    matches = {row: ROW.fullmatch(row) for row in rows(README)}
    assert [row for row, match in matches.items() if not match] == []
    tests = {match[1] for match in matches.values()}
    guarantees = {row.strip("| ").split(" | ")[0] for row in matches}
    assert len(tests) == len(guarantees) == len(rows(README)) >= 60


def test_every_test_that_the_readme_names_exists():
    names = {*re.findall(r"`([\w/]+\.py)::(test_\w+)`", README)}
    functions = {
        (str(path.relative_to(TESTS)), node.name)
        for path in TESTS.rglob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert len(names) > 150
    assert names - functions == set()


CONFTEST = """
from tests.helpers import suite
def pytest_configure(config):
    config.pluginmanager.register(suite.Skips())
"""
PASSING = "def test_other(): pass"
SKIPPED = "import pytest\ndef test_it(): pytest.skip('not now')"


@pytest.mark.parametrize(
    ("ci", "code", "closing"),
    [("", 0, "1 passed, 2 skipped"), ("true", 1, "1 failed, 1 passed, 1 error")],
)
def test_skips_fail_in_ci(ci, code, closing, tmp_path):
    files = {
        "conftest.py": CONFTEST,
        "test_it.py": f"{SKIPPED}\n{PASSING}",
        "test_lacking.py": f"import pytest\npytest.importorskip('no_such_module')\n{PASSING}",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    settings = {"PYTHONPATH": str(TESTS.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": ci}
    words = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    done = python("-m", "pytest", *words, folder=tmp_path, **settings)
    assert done.code == code, done.out
    assert closing in done.out.splitlines()[-1]
