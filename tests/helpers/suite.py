"""The suite's own rules, as plugins: a skip in CI is a fault; what the guarantees name has passed.

That there is a test of a name in tests/README.md is not that it ran: a run of all tests fails where
one did not.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROW = re.compile(r"\| .+ \| `([\w/]+\.py::test_\w+)` \|")
# What README.md says a machine may lack. Any other reason to skip a guarantee is none.
EXCUSES = (
    "no real data",
    "no chromium",
    "hatchling",
    "could not import 'torch'",
    "could not import 'mkdocstrings'",
)
SYSTEM = "system/"  # asked of a run only if something there is run
ALLOWED = (
    "tests/system/test_attack.py"  # skipped in CI too: a small disk to be filled needs a mount
)


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
    """The lines of its tables, without their headers."""
    headers = "| guarantee | test |", "| --- | --- |"
    return [r for r in readme.splitlines() if r.startswith("|") and r not in headers]


def not_passed(tests: Iterable[str], outcomes: Mapping[str, set[str]]) -> tuple[list, list]:
    """The tests that nothing excuses, and those that the machine does: it lacks what they need.

    Args:
        outcomes: of tests (all parameters together), and of files of which nothing is run.
    """
    system = any(name.startswith(SYSTEM) for name in outcomes)
    missing, excused = [], []
    for test in tests:
        found = outcomes.get(test, set()) | outcomes.get(test.partition("::")[0], set())
        if test.startswith(SYSTEM) and not system:
            continue
        if "failed" in found or not found & {"passed", "excused"}:
            missing.append(test)
        elif "passed" not in found:
            excused.append(test)
    return missing, excused


def asked_for_all(config: pytest.Config, folder: Path) -> bool:
    """Whether a run is one of all tests in the folder, or of all but the system's."""
    option, here = config.option, config.invocation_params.dir
    narrowed = "keyword", "markexpr", "deselect", "collectonly", "lf", "ignore_glob"
    if any(getattr(option, name, None) for name in narrowed):
        return False
    if any((here / path).resolve() != folder / SYSTEM for path in option.ignore or ()):
        return False
    return any(folder.is_relative_to((here / path).resolve()) for path in config.args)


class Guarantees:
    """Hears of every test, also of those of other processes."""

    def __init__(self, config: pytest.Config, folder: Path):
        self.output = getattr(config, "workeroutput", None)  # of one of several processes
        self.prefix = f"{folder.relative_to(config.rootpath).as_posix()}/"
        readme = (folder / "README.md").read_text(encoding="utf-8")
        self.tests = [match[1] for row in rows(readme) if (match := ROW.fullmatch(row))]
        self.outcomes: defaultdict[str, set[str]] = defaultdict(set)
        self.missing, self.excused = [], []

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.when == "call" or not report.passed:
            name = report.nodeid.partition("[")[0].removeprefix(self.prefix)
            excuse = report.skipped and any(words in str(report.longrepr) for words in EXCUSES)
            self.outcomes[name].add("excused" if excuse else report.outcome)

    pytest_collectreport = pytest_runtest_logreport

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        """Files of which nothing is run: of some the processes do not tell each by itself."""
        for name, outcomes in getattr(node, "workeroutput", {}).get("guarantees", {}).items():
            self.outcomes[name].update(outcomes)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.output is not None:
            files = {n: sorted(found) for n, found in self.outcomes.items() if "::" not in n}
            self.output["guarantees"] = files
        elif session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self.missing, self.excused = not_passed(self.tests, self.outcomes)
            if self.missing:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter) -> None:
        for what, tests in (
            ("guarantees whose test has not passed", self.missing),
            ("guarantees that can't be tested here", self.excused),
        ):
            if tests:
                terminalreporter.write_line(f"{what}: {', '.join(tests)}")
