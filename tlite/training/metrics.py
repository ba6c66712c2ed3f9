"""metrics.jsonl: a line for each training step and each validation, appended as they happen."""

import json
import math
from pathlib import Path

import numpy as np

from tlite.errors import disk_errors


def summarise(losses: dict[str, np.ndarray], perplexity: bool = True) -> dict:
    """Mean over members (M,) of each loss and, for several, the spread and the members' own.

    With `perplexity` exp(loss) is added: for a loss that is the mean over tokens.
    """
    line = {}
    if perplexity and "loss" in losses:
        losses = {**losses, "perplexity": np.exp(np.minimum(losses["loss"], 700.0))}
    for name, values in losses.items():
        values = np.asarray(values, np.float64)
        line[name] = _short(values.mean())
        if len(values) > 1:
            line[f"{name}_spread"] = _short(values.std(ddof=1))
            line[f"{name}_members"] = [_short(value) for value in values]
    return line


class MetricsFile:
    """Appends to metrics.jsonl. Opening at a step drops the lines of later steps."""

    def __init__(self, path: Path, step: int = 0):
        self.path = path
        kept = [line for line in read_metrics(path) if line["step"] <= step]
        temporary = path.with_suffix(".tmp")
        with disk_errors(path):
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
            temporary.replace(path)
            self._file = path.open("a")

    def write(self, lines: list[dict]) -> None:
        """All of the lines, on the disk when this returns."""
        with disk_errors(self.path):
            self._file.write("".join(json.dumps(line) + "\n" for line in lines))
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[dict]:
    """Every whole line; a line that a kill cut short is passed over."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return lines


def _short(value: float) -> float | None:
    return float(f"{value:.8g}") if math.isfinite(value) else None


def split_member(line: dict, member: int) -> dict:
    """A line of several members as the line of one of them."""
    return {
        name: line[f"{name}_members"][member] if f"{name}_members" in line else value
        for name, value in line.items()
        if not name.endswith(("_spread", "_members"))
    }
