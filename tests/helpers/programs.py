"""How many programs each test file compiles: most of a suite's minutes are compilations.

`make test-programs` (FILES=tests/cli for some) writes `tests/programs.json`, with JAX's memory of
programs emptied before each file, so that a count is the largest there can be: what ran before only
lowers it. What a fixture of the session compiles is no file's: which one asks first differs from
run to run. A run of all tests fails where a file compiles a quarter more than is kept.
"""

import json
from collections import Counter
from pathlib import Path

import jax
import pytest

KEPT = Path(__file__).parents[1] / "programs.json"
ALLOWED, FEW = 1.25, 10
"""Times what is kept, or so many programs more where that is little."""


def over(found: dict[str, int], kept: dict[str, int]) -> list[str]:
    """A line for each file that compiles more than it may; one that is not kept may compile few."""
    most = {file: max(ALLOWED * kept.get(file, 0), kept.get(file, 0) + FEW) for file in found}
    return [
        f"{file} compiles {count} programs, and may {most[file]:.0f}: make test-programs"
        for file, count in sorted(found.items())
        if count > most[file]
    ]


class Programs:
    """A plugin that counts the compilations of this process, by test file.

    Args:
        writes: what is counted is kept, and not compared.
    """

    def __init__(self, config: pytest.Config, writes: bool):
        self.output = getattr(config, "workeroutput", None)  # of one of several processes
        self.writes, self.file, self.counts, self.faults = writes, "", Counter(), []
        jax.monitoring.register_event_duration_secs_listener(self.note)

    def note(self, event: str, *_, **__) -> None:
        if self.file and event.endswith("backend_compile_duration"):
            self.counts[self.file] += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        file = item.nodeid.partition("::")[0]
        if self.writes and file != self.file:
            jax.clear_caches()
        self.file = file
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        if fixturedef.scope != "session":
            return (yield)
        file, self.file = self.file, ""
        try:
            return (yield)
        finally:
            self.file = file
            if self.writes:
                jax.clear_caches()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        self.counts.update(getattr(node, "workeroutput", {}).get("programs", {}))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.output is not None:
            self.output["programs"] = dict(self.counts)
            return
        kept = json.loads(KEPT.read_text(encoding="utf-8"))
        if self.writes:
            found = {f: n for f, n in kept["programs"].items() if Path(f).is_file()} | self.counts
            content = {"jax": jax.__version__, "programs": dict(sorted(found.items()))}
            KEPT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        elif kept["jax"] == jax.__version__:
            self.faults = over(self.counts, kept["programs"])
            if self.faults and not session.exitstatus:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter) -> None:
        for fault in self.faults:
            terminalreporter.write_line(fault)
