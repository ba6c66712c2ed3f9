"""A plugin: under CI a test that is skipped has failed, but for those named here."""

import os

import pytest

ALLOWED = {"tests/system/test_attack.py": "a small disk to be filled needs a mount"}
"""The beginning of a test's name: why it may be skipped."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return failed_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return failed_if_skipped((yield))


def failed_if_skipped(report):
    allowed = report.nodeid.startswith(tuple(ALLOWED)) or hasattr(report, "wasxfail")
    if report.skipped and os.environ.get("CI") and not allowed:
        report.outcome, report.longrepr = "failed", f"skipped in CI: {report.longrepr}"
    return report
