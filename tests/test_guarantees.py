"""The list in README.md names tests that exist, each once."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
ROW = re.compile(r"\| .+ \| `([\w/]+\.py)::(test_\w+)` \|")


def rows() -> list[str]:
    """The lines of the tables, without their headers."""
    lines = (TESTS / "README.md").read_text(encoding="utf-8").splitlines()
    headers = "| guarantee | test |", "| --- | --- |"
    return [line for line in lines if line.startswith("|") and line not in headers]


def functions(file: str) -> set[str]:
    """The names of a file's functions, without importing it."""
    path = TESTS / file
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_every_guarantee_has_a_test_that_exists():
    found = {row: ROW.fullmatch(row) for row in rows()}
    assert [row for row, match in found.items() if not match] == []
    tests = [match.groups() for match in found.values()]
    named = {file: functions(file) for file, _ in tests}
    assert [f"{file}::{name}" for file, name in tests if name not in named[file]] == []


def test_there_are_many_guarantees_and_none_is_listed_twice():
    guarantees, tests = zip(*(row.strip("| ").split(" | ") for row in rows()), strict=True)
    assert len(tests) >= 60
    assert len(set(tests)) == len(tests)
    assert len(set(guarantees)) == len(guarantees)
