"""The suite's own rules: README's guarantees name tests, a skip in CI is a fault."""

import ast
import textwrap
from pathlib import Path

import pytest

from tests.helpers.python import python
from tests.helpers.suite import ROW, rows

TESTS = Path(__file__).parent
README = (TESTS / "README.md").read_text(encoding="utf-8")


def test_every_guarantee_is_listed_once_with_a_test_that_exists():
    found = {row: ROW.fullmatch(row) for row in rows(README)}
    assert [row for row, match in found.items() if not match] == []
    tests, missing = [match[1] for match in found.values()], []
    for file, name in (test.split("::") for test in tests):
        path = TESTS / file
        body = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
        if name not in [node.name for node in body if isinstance(node, ast.FunctionDef)]:
            missing.append(f"{file}::{name}")
    assert missing == []
    guarantees = [row.strip("| ").split(" | ")[0] for row in found]
    assert len({*tests}) == len({*guarantees}) == len(rows(README)) >= 60


CONFTEST = """
    from tests.helpers import suite
    def pytest_configure(config):
        config.pluginmanager.register(suite.Skips())
"""
NONE = "def test_other(): pass"
SKIPPED = "import pytest\ndef test_it(): pytest.skip('not now')"


@pytest.mark.parametrize(
    ("ci", "code", "closing"),
    [("", 0, "1 passed, 2 skipped"), ("true", 1, "1 failed, 1 passed, 1 error")],
)
def test_what_is_skipped_in_ci_has_failed(ci, code, closing, tmp_path):
    files = {
        "conftest.py": textwrap.dedent(CONFTEST),
        "test_it.py": f"{SKIPPED}\n{NONE}",
        "test_lacking.py": f"import pytest\npytest.importorskip('no_such_module')\n{NONE}",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    settings = {"PYTHONPATH": str(TESTS.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": ci}
    words = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    done = python("-m", "pytest", *words, folder=tmp_path, **settings)
    assert done.code == code, done.out
    assert closing in done.out.splitlines()[-1]
