"""The guarantees of tests/README.md name existing tests."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
README = (TESTS / "README.md").read_text(encoding="utf-8")
ROW = re.compile(r"\| .+ \| `([\w/]+\.py::test_\w+)` \|")


def test_every_guarantee_names_its_test():
    tables = re.findall(r"^\| guarantee \| test \|\n\|.*\n((?:\|.*\n)*)", README, flags=re.M)
    rows = [row for table in tables for row in table.splitlines()]
    assert [row for row in rows if not ROW.fullmatch(row)] == []
    assert len(rows) >= 60


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
