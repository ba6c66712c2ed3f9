"""The suite's own rules: README's guarantees have passed, a skip in CI is a fault."""

import ast
import os
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
    from pathlib import Path
    from tests.helpers import suite
    def pytest_configure(config):
        config.pluginmanager.register(suite.Skips())
        if suite.asked_for_all(config, folder := Path(__file__).parent):
            config.pluginmanager.register(suite.Guarantees(config, folder))
"""
FILES = {
    "conftest.py": CONFTEST,
    "README.md": """
        | one | `folder/test_one.py::test_it` |
        | two | `test_two.py::test_it` |
        | three | `test_three.py::test_it` |
        | four | `system/test_four.py::test_it` |
    """,
    "lacking.py": "import pytest; pytest.skip('no chromium', allow_module_level=True)",
    "folder/test_one.py": """
        import pytest
        @pytest.mark.parametrize("number", [1, 2])
        def test_it(number): pass
    """,
    "test_two.py": "import lacking",
    "test_three.py": "import lacking",
    "system/test_four.py": "def test_it(): pass",
}
NONE = "def test_other(): pass"
SKIPPED = "import pytest\ndef test_it(): pytest.skip('not now')"
LACKING = ["guarantees that can't be tested here: test_two.py::test_it, test_three.py::test_it"]


def lost(test: str) -> list[str]:
    return [f"guarantees whose test has not passed: {test}::test_it", *LACKING]


def pytest_in(folder: Path, files: dict[str, str], options: str, **environment: str):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    paths = f"{folder / 'all'}{os.pathsep}{TESTS.parent}"
    kept = {"PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": ""}
    words = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", *options.split()]
    return python("-m", "pytest", *words, folder=folder, **kept | environment)


@pytest.mark.parametrize(
    ("options", "changed", "told"),
    [
        ("all", {}, LACKING),
        ("all -p xdist -n 2", {"folder/test_one.py": SKIPPED}, lost("folder/test_one.py")),
        (". --ignore all/system", {"folder/test_one.py": NONE}, lost("folder/test_one.py")),
        ("all", {"system/test_four.py": SKIPPED}, lost("system/test_four.py")),
        ("all --ignore all/system", {"system/test_four.py": SKIPPED}, LACKING),
        ("all/folder", {"folder/test_one.py": NONE}, []),
        ("all -k other", {"folder/test_one.py": NONE}, []),
    ],
)
def test_a_run_of_all_tests_fails_where_a_guarantee_did_not_pass(tmp_path, options, changed, told):
    files = {f"all/{name}": text for name, text in (FILES | changed).items()}
    done = pytest_in(tmp_path, files, options)
    assert [r for r in done.out.splitlines() if r.startswith("guarantees")] == told, done.out
    assert done.code == (len(told) > 1)


@pytest.mark.parametrize(
    ("ci", "code", "closing"),
    [("", 0, "1 passed, 2 skipped"), ("true", 1, "1 failed, 1 passed, 1 error")],
)
def test_what_is_skipped_in_ci_has_failed(ci, code, closing, tmp_path):
    files = {
        "conftest.py": CONFTEST,
        "README.md": "",
        "test_it.py": f"{SKIPPED}\n{NONE}",
        "test_lacking.py": f"import pytest\npytest.importorskip('no_such_module')\n{NONE}",
    }
    done = pytest_in(tmp_path, files, "--continue-on-collection-errors", CI=ci)
    assert done.code == code, done.out
    assert closing in done.out.splitlines()[-1]
