"""A pytest plugin that fails skipped tests in CI, and the guarantees of tests/README.md."""

import os
import re

import pytest

ROW = re.compile(r"\| .+ \| `([\w/]+\.py::test_\w+)` \|")
# May be skipped in CI: filling a small disk needs permission to mount one.
ALLOWED = "tests/system/test_attack.py"


class Skips:
    """In CI, skipped tests and files fail."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        return failed_if_skipped((yield))

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self):
        return failed_if_skipped((yield))


def failed_if_skipped(report):
    allowed = report.nodeid.startswith(ALLOWED) or hasattr(report, "wasxfail")
    if report.skipped and os.environ.get("CI") and not allowed:
        report.outcome, report.longrepr = "failed", f"skipped in CI: {report.longrepr}"
    return report


def rows(readme: str) -> list[str]:
    """Return the rows of all tables of guarantees."""
    tables = re.findall(r"^\| guarantee \| test \|\n\|.*\n((?:\|.*\n)*)", readme, flags=re.M)
    return [row for table in tables for row in table.splitlines()]
