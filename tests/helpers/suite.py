"""A pytest plugin that makes a skip under CI a failure, and the guarantees of tests/README.md."""

import os
import re

import pytest

ROW = re.compile(r"\| .+ \| `([\w/]+\.py::test_\w+)` \|")
# Skipped under CI too: filling a small disk needs the right to mount one.
ALLOWED = "tests/system/test_attack.py"


class Skips:
    """Under CI a test, or a file, that is skipped has failed."""

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
    """Rows of the tables of guarantees; other tables are passed over."""
    header, rule = "| guarantee | test |", "| --- | --- |"
    found, inside = [], False
    for line in readme.splitlines():
        inside = line == header or (inside and line.startswith("|"))
        if inside and line not in (header, rule):
            found.append(line)
    return found
