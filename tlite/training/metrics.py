"""metrics.jsonl: a line for each training step and each validation, appended as they happen."""

import contextlib
import io
import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from tlite.errors import UserError, disk_errors

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None


@np.errstate(invalid="ignore", over="ignore")  # what is not finite is told by the loop
def summarise(losses: dict[str, np.ndarray], perplexity: bool = True) -> dict:
    """Mean over members (M,) of each loss and, for several, the spread and the members' own.

    With `perplexity` exp(loss) is added: for a loss that is the mean over tokens. What is not
    finite is null.
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
    """Appends to metrics.jsonl.

    Raises:
        UserError: another process has it open so, or it can't be written.
    """

    def __init__(self, path: Path):
        self.path = path
        with disk_errors(path):
            self._file = path.open("ab")
        self._lock()

    def _lock(self) -> None:
        """Only one process trains a run; the lock ends with the process, however that ends."""
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{self.path.parent} is being trained by another process") from None
        except OSError:  # a file system that knows no locks
            return

    def cut_after(self, step: int) -> None:
        """Drop the lines of later steps."""
        with disk_errors(self.path):
            self._file.truncate(end_of_step(self.path, step))

    def write(self, lines: list[dict]) -> None:
        """All of the lines; a process that is killed after this does not lose them.

        Raises:
            UserError: the disk is full, or the run folder was removed or moved.
        """
        with disk_errors(self.path):
            self._file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
            self._file.flush()
        self.check()

    def check(self) -> None:
        """Raises a `UserError` if what is written is no longer in the run folder."""
        try:
            there = os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except FileNotFoundError:
            there = False
        if not there:
            raise UserError(
                f"{self.path} was removed or replaced while the run was trained: "
                "nothing more can be saved there"
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with disk_errors(self.path):
            self._file.close()


class NoMetrics(contextlib.nullcontext):
    """What a process that does not write has in place of a `MetricsFile`."""

    def __enter__(self):
        return self

    def cut_after(self, *_) -> None:
        pass

    write = check = cut_after


def end_of_step(path: Path, step: int) -> int:
    """Where the last whole line of `step` or an earlier one ends, in bytes; read from the end."""
    size = path.stat().st_size
    if not size or not step:
        return 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = content.rfind(b"\n") + 1  # what comes after it is not whole
        while end:
            start = content.rfind(b"\n", 0, end - 1) + 1
            if (line := parse(content[start:end])) and line["step"] <= step:
                break
            end = start
    return end


def parse(line: bytes) -> dict | None:
    """A line as it was written, or None: cut short by a kill, or foreign."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or type(values.get("step")) is not int:
        return None
    numbers = [v for name, v in values.items() if name not in ("step", "split")]
    numbers = [n for v in numbers for n in (v if isinstance(v, list) else [v])]
    fits = all(isinstance(n, int | float | None) for n in numbers)
    return values if fits and values.get("split") in ("training", "validation") else None


def iterate_metrics(path: Path, split: str | None = None) -> Iterator[dict]:
    """Every line that was written whole, of one split if asked; others are passed over."""
    if not path.exists():
        return
    wanted = b"" if split is None else json.dumps(split).encode()
    with path.open("rb") as file:
        for line in file:
            if wanted in line and (values := parse(line)) and split in (None, values["split"]):
                yield values


def read_metrics(path: Path, most: int | None = None) -> list[dict]:
    """The lines of metrics.jsonl; of training at most so many, each the mean of neighbours.

    A picture needs no more than a thousand or two, however long the run was.
    """
    if most is None:
        return list(iterate_metrics(path))
    with path.open("rb") if path.exists() else io.BytesIO() as file:
        width = -(-sum(b'"training"' in line for line in file) // most)
    return list(thinned(iterate_metrics(path), width))


def thinned(lines: Iterable[dict], width: int) -> Iterator[dict]:
    """Validations as they are, and of so many lines of training, as they come, the mean."""
    group = []
    for line in lines:
        if line["split"] == "validation":
            yield line
            continue
        group.append(line)
        if len(group) >= width:
            yield mean_line(group)
            group = []
    if group:
        yield mean_line(group)


def mean_line(lines: list[dict]) -> dict:
    """One line for several: their last step, and the means of what is known of each value."""
    if len(lines) == 1:
        return lines[0]
    means = {"step": lines[-1]["step"], "split": lines[-1]["split"]}
    for name in lines[0].keys() - means.keys():
        values = [line[name] for line in lines if line.get(name) is not None]
        if not any(isinstance(value, list) for value in values):
            means[name] = _known_mean(values)
        elif len({len(v) if isinstance(v, list) else 0 for v in values}) == 1:
            means[name] = [_known_mean(of_member) for of_member in zip(*values, strict=True)]
    return means


def _known_mean(values: Sequence[float | int | None]) -> float | None:
    """The mean of what was finite; None where nothing was."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _short(value: float) -> float | None:
    return float(f"{value:.8g}") if math.isfinite(value) else None


def split_member(line: dict, member: int) -> dict:
    """A line of several members as the line of one of them."""
    return {
        name: line[f"{name}_members"][member] if f"{name}_members" in line else value
        for name, value in line.items()
        if not name.endswith(("_spread", "_members"))
    }
