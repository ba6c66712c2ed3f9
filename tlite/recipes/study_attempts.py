"""What a study's folder keeps of the attempts to train its runs: attempts.jsonl.

A process that the kernel ends for want of memory can't tell. So each attempt is noted before it
begins and when it ends, and the next process sees what became of the last one.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.optimize

from tlite.errors import disk_errors
from tlite.training.metrics import MetricsFile

FILE = "attempts.jsonl"


class Attempts:
    """Appends to attempts.jsonl; while it is open, no other process trains the study.

    Raises:
        UserError: another process has it open, or it can't be written.
    """

    def __init__(self, folder: Path):
        path = folder / FILE
        self._file = MetricsFile(path)
        with disk_errors(path):
            whole = path.read_bytes().rpartition(b"\n")
            os.truncate(path, len(whole[0]) + len(whole[1]))  # without what a kill has cut short
        self._lines = [line for line in map(_parse, whole[0].split(b"\n")) if line]
        last = self._lines[-1] if self._lines else {}
        if "begun" in last and (oom_kills() or 0) > (last.get("kills") or 0):
            self._write({"run": last["run"], "died": last["begun"]})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.__exit__()

    @property
    def ended(self) -> set[str]:
        """The runs that have come to their end, and were not begun again since."""
        told = [line for line in self._lines if "begun" in line or "seconds" in line]
        last = {line["run"]: "seconds" in line for line in told}
        return {run for run, ended in last.items() if ended}

    def deaths(self, run: str, step: int) -> int:
        """How often the kernel has ended a run, begun after this step, that got no further.

        Where it was passed over for that, since then: somebody wants it tried again.
        """
        number = 0
        for line in self._lines:
            if line["run"] == run:
                number = 0 if "passed" in line else number + (line.get("died") == step)
        return number

    def without_memory(self, variant: str) -> int:
        """How often a variant has failed as there was not enough memory."""
        return sum(line.get("without_memory") == variant for line in self._lines)

    def seconds_for(self, works: Sequence[float]) -> float | None:
        """How long runs take, as a constant for each and a rate of work, by those that have ended.

        None before one of about their size has.
        """
        done = [(line["work"], line["seconds"]) for line in self._lines if "seconds" in line]
        most = max((work for work, _ in done), default=0)
        if not most or max(works) > 2 * most:
            return None
        table = np.array([(1, work / most) for work, _ in done])
        (constant, rate), _ = scipy.optimize.nnls(table, [seconds for _, seconds in done])
        return float(constant * len(works) + rate * sum(works) / most)

    def begin(self, run: str, step: int) -> None:
        """A run is about to be trained, from this step on."""
        self._write({"run": run, "begun": step, "kills": oom_kills()})

    def stop(self, run: str) -> None:
        """It has been told why a run ends before its last step."""
        self._write({"run": run, "stopped": True})

    def fail(self, run: str, variant: str) -> None:
        """There was not enough memory for its only variant."""
        self._write({"run": run, "without_memory": variant})

    def pass_over(self, run: str) -> None:
        """It was ended too often for want of memory."""
        self._write({"run": run, "passed": True})

    def end(self, run: str, seconds: float, work: float) -> None:
        """A run has come to its end."""
        self._write({"run": run, "seconds": round(seconds, 1), "work": work})

    def _write(self, line: dict) -> None:
        self._file.write([line])
        self._lines.append(line)


def oom_kills() -> int | None:
    """Processes that Linux has ended for want of memory since it was started; None: not known."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
    except (OSError, ValueError):
        return None


def _parse(line: bytes) -> dict | None:
    """A line as it was written, or None."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not isinstance(values.get("run"), str):
        return None
    numbers = [values.get(name, 0) for name in ("seconds", "work", "begun", "kills", "died")]
    return values if all(isinstance(n, int | float | None) for n in numbers) else None
