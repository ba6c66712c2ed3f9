"""The list in README.md names tests that exist, each once, and each has to pass."""

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.helpers.guarantees import ROW, not_passed, rows

TESTS = Path(__file__).parent
README = (TESTS / "README.md").read_text(encoding="utf-8")


def functions(file: str) -> set[str]:
    """The names of a file's functions, without importing it."""
    path = TESTS / file
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_every_guarantee_has_a_test_that_exists():
    found = {row: ROW.fullmatch(row) for row in rows(README)}
    assert [row for row, match in found.items() if not match] == []
    tests = [match[1].split("::") for match in found.values()]
    named = {file: functions(file) for file, _ in tests}
    assert [f"{file}::{name}" for file, name in tests if name not in named[file]] == []


def test_there_are_many_guarantees_and_none_is_listed_twice():
    guarantees, tests = zip(*(row.strip("| ").split(" | ") for row in rows(README)), strict=True)
    assert len(tests) >= 60
    assert len(set(tests)) == len(tests)
    assert len(set(guarantees)) == len(guarantees)


@pytest.mark.parametrize(
    ("outcomes", "missing", "excused"),
    [
        ({"a.py::test_a": {"passed"}}, False, False),
        ({}, True, False),
        ({"a.py::test_b": {"passed"}}, True, False),
        ({"a.py::test_a": {"skipped"}}, True, False),
        ({"a.py": {"skipped"}}, True, False),
        ({"a.py::test_a": {"passed", "skipped"}}, False, False),
        ({"a.py::test_a": {"passed", "failed"}}, True, False),
        ({"a.py::test_a": {"excused"}}, False, True),
        ({"a.py": {"excused"}}, False, True),
        ({"a.py::test_a": {"excused", "failed"}}, True, False),
    ],
)
def test_what_did_not_pass_is_missing_unless_the_machine_excuses_it(outcomes, missing, excused):
    assert tuple(map(bool, not_passed(["a.py::test_a"], outcomes))) == (missing, excused)


def test_a_guarantee_of_the_system_is_asked_for_where_something_of_it_is_run():
    tests = ["system/a.py::test_a"]
    assert not_passed(tests, {"a.py::test_a": {"passed"}}) == ([], [])
    assert not_passed(tests, {"system/b.py::test_b": {"passed"}}) == (tests, [])


FILES = {
    "conftest.py": """
        from pathlib import Path
        from tests.helpers import guarantees
        def pytest_configure(config):
            if guarantees.asked_for_all(config, folder := Path(__file__).parent):
                config.pluginmanager.register(guarantees.Guarantees(config, folder))
    """,
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
    for name, text in (FILES | changed).items():
        path = tmp_path / "all" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    paths = {"PYTHONPATH": f"{tmp_path / 'all'}{os.pathsep}{TESTS.parent}"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", *options.split()],
        cwd=tmp_path,
        env=os.environ | paths | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert [r for r in done.stdout.splitlines() if r.startswith("guarantees")] == told, done.stdout
    assert done.returncode == (len(told) > 1)
