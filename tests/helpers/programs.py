"""How many programs each test file compiles: most of a suite's minutes are compilations.

`make test-programs` writes `tests/programs.json`, with JAX's memory of programs emptied before each
file, so that a count is the largest there can be: whatever ran before only lowers it. A run of all
tests fails where a file compiles a quarter more than what is kept.
"""

import json
from collections import Counter
from pathlib import Path

import jax

KEPT = Path(__file__).parents[1] / "programs.json"
ALLOWED = 1.25
FEW = 8  # programs more than kept that are let pass in a small file

counts: Counter[str] = Counter()
"""Programs that this process has compiled, by test file."""


class Counting:
    """Adds each compilation of this process to the file that is being tested."""

    def __init__(self):
        self.file = ""
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def _note(self, event: str, *_, **__) -> None:
        if self.file and event.endswith("backend_compile_duration"):
            counts[self.file] += 1


def too_many(found: dict[str, int], kept: dict[str, int]) -> list[str]:
    """What is wrong: a line for each file that is over its budget, or has none."""
    faults = []
    for file, count in sorted(found.items()):
        most = max(ALLOWED * kept.get(file, 0), kept.get(file, 0) + FEW)
        if count > most:
            faults.append(f"{file} compiles {count} programs, {most:.0f} are allowed")
    return faults


def read() -> tuple[str, dict[str, int]]:
    """The version of JAX that was counted with, and the counts."""
    content = json.loads(KEPT.read_text(encoding="utf-8"))
    return content["jax"], content["programs"]


def write(found: dict[str, int]) -> None:
    content = {"jax": jax.__version__, "programs": dict(sorted(found.items()))}
    KEPT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
