"""Metrics of a run: metrics.jsonl, and the score of each validation example in examples.npz.

metrics.jsonl has a line for each training step and each validation, in order. examples.npz has the
step of the last validation, the weight of each example (N,), and for each metric the weighted
scores by seed (M, N): their sum over the sum of the weights is the mean in metrics.jsonl.
"""

import contextlib
import fcntl
import io
import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tlite.errors import UserError, disk_errors
from tlite.training.config import TrainingConfig
from tlite.training.run_dir import replace_file

EXAMPLES_FILE = "examples.npz"


@np.errstate(invalid="ignore", over="ignore")  # the loop warns about values that are not finite
def summarize_seeds(
    values: dict[str, np.ndarray], perplexity: bool = True, alive: np.ndarray | None = None
) -> dict:
    """Return each metric's mean over seeds and, with several seeds, its SD and each seed's value.

    Args:
        values: values of each metric by seed (M,); those that are not finite become null.
        perplexity: add exp(loss), for a loss that is a mean over tokens.
        alive: (M,), False for diverged seeds, which mean and SD exclude.
    """
    line = {}
    if perplexity and "loss" in values:
        values = {**values, "perplexity": np.exp(np.minimum(values["loss"], 700.0))}
    for name, by_seed in values.items():
        by_seed = np.asarray(by_seed, np.float64)
        selected = by_seed if alive is None or not alive.any() else by_seed[alive]
        line[name] = _round(selected.mean())
        if len(by_seed) > 1:
            line[f"{name}_spread"] = _round(selected.std(ddof=1)) if len(selected) > 1 else None
            line[f"{name}_replicas"] = list(map(_round, by_seed))
    return line


def _round(value: float) -> float | None:
    return float(f"{value:.8g}") if np.isfinite(value) else None


class MetricsFile:
    """Appends to metrics.jsonl, in the process that is `writing`; does nothing in the others.

    Raises:
        UserError: another process has it open for writing, or it can't be written.
    """

    def __init__(self, path: Path, *, writing: bool = True):
        self.path, self._file = path, None
        if not writing:
            return
        with disk_errors(path):
            self._file = path.open("ab")
        # The lock ends with the process, however that ends. On a file system without locks,
        # `check_unchanged` detects another writer.
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{path.parent} is being trained by another process") from None
        self._size = self._file.tell()

    def truncate_after(self, step: int) -> None:
        """Remove the lines of later steps."""
        if self._file:
            with disk_errors(self.path):
                self._size = self._file.truncate(_end_of_step(self.path, step))

    def write(self, lines: list[dict]) -> None:
        """Append lines; they survive a kill of this process from here on.

        Raises:
            UserError: the disk is full, or the run folder was removed or moved.
        """
        if self._file:
            with disk_errors(self.path):
                content = "".join(json.dumps(line) + "\n" for line in lines).encode()
                self._size += self._file.write(content)
                self._file.flush()
            self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise a `UserError` if the file is not the one that this process has written."""
        status = os.fstat(self._file.fileno())
        try:
            is_same = os.path.samestat(status, self.path.stat())
        except FileNotFoundError:
            is_same = False
        if not is_same or status.st_size != self._size:
            event = "written by another process" if is_same else "removed or replaced"
            raise UserError(
                f"{self.path} was {event} during training: nothing more can be saved there"
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._file:
            with disk_errors(self.path):
                self._file.close()


def _lines_from_end(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file from the last to the first, each with the offset of its end."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = len(content)
        while end:
            start = content.rfind(b"\n", 0, end - 1) + 1
            yield end, content[start:end]
            end = start


def _end_of_step(path: Path, step: int) -> int:
    """Return the offset in bytes after the last complete line of `step` or an earlier one."""
    if not step:
        return 0
    for end, text in _lines_from_end(path):
        if text.endswith(b"\n") and (line := parse_line(text)) and line["step"] <= step:
            return end
    return 0


def last_training_line(path: Path) -> dict:
    """Return the last complete training line; {} if there is none."""
    lines = (parse_line(text) for _, text in _lines_from_end(path))
    return next((line for line in lines if line and line["split"] == "training"), {})


def parse_line(text: bytes) -> dict | None:
    """Return a line as a dict; None if it is incomplete (after a kill) or no line of metrics."""
    try:
        line = json.loads(text)
        values = [value for name, value in line.items() if name not in ("step", "split")]
        numbers = [n for v in values for n in (v if isinstance(v, list) else [v])]
        fits = type(line["step"]) is int and line["split"] in ("training", "validation")
        fits = fits and all(isinstance(number, int | float | None) for number in numbers)
    except (ValueError, RecursionError, AttributeError, KeyError):
        return None
    return line if fits else None


def iterate_metrics(path: Path, split: str = "") -> Iterator[dict]:
    """Yield every complete line, of one split if `split` is not empty; skip all others."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for text in file:
            line = parse_line(text) if split.encode() in text else None
            if line and split in ("", line["split"]):
                yield line


def read_metrics(path: Path, max_training_lines: int | None = None) -> list[dict]:
    """Return the lines of metrics.jsonl.

    Args:
        max_training_lines: average neighbouring training lines until there are no more than these:
            enough for a plot of a long run. None: return every line.
    """
    if max_training_lines is None or not path.exists():
        return list(iterate_metrics(path))
    with path.open("rb") as file:
        num_lines = sum(b'"training"' in text for text in file)
    return list(_average_groups(iterate_metrics(path), -(-num_lines // max_training_lines)))


def _average_groups(lines: Iterable[dict], size: int) -> Iterator[dict]:
    """Yield validation lines unchanged, and the average of every `size` training lines."""
    group = []
    for line in lines:
        if line["split"] == "validation":
            yield line
            continue
        group.append(line)
        if len(group) >= size:
            yield average_lines(group)
            group = []
    if group:
        yield average_lines(group)


def average_lines(lines: list[dict]) -> dict:
    """Return one line with the last step and the mean of each metric's values that are not null."""
    mean = lines[-1].copy()
    for name in [name for name in mean if name not in ("step", "split")]:
        with contextlib.suppress(ValueError):  # lines with another number of seeds
            values = np.array([line.get(name) for line in lines], np.float64)
            finite = np.isfinite(values)
            with np.errstate(invalid="ignore"):
                means = np.where(finite, values, 0.0).sum(0) / finite.sum(0)
            mean[name] = np.where(np.isfinite(means), means, None).tolist()
    return mean


def select_replica(line: dict, replica: int) -> dict:
    """Return the line of one replica from that of several."""
    return {
        name: line[f"{name}_replicas"][replica] if f"{name}_replicas" in line else value
        for name, value in line.items()
        if not name.endswith(("_spread", "_replicas"))
    }


# Scores of validations


def means_from_sums(sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the means (M,) of sums (M, ...), which are divided by the sums of `count`."""
    totals = {n: np.asarray(a, np.float64).reshape(len(a), -1).sum(1) for n, a in sums.items()}
    count = totals.pop("count")
    return {name: total / count for name, total in totals.items()}


def validation_score(config: TrainingConfig, line: dict) -> float:
    """Return the score of a validation, lower is better; infinity if its loss is not finite."""
    if None in (line.get("loss"), value := line.get(config.best_metric)):
        return math.inf
    return value if config.best_metric == "loss" else -value


def scheduled_scores(config: TrainingConfig, validations: Iterable[dict]) -> list[float]:
    """Return the scores of the scheduled validations from their lines."""
    return [
        validation_score(config, line) for line in validations if config.is_eval_step(line["step"])
    ]


def is_out_of_patience(patience: int, scores: list[float]) -> bool:
    """Return True if the lowest score is not among the last `patience`; False if that is 0."""
    return 0 < patience < len(scores) - int(np.argmin(scores)) if scores else False


def is_finished(config: TrainingConfig, validations: list[dict]) -> bool:
    """Return True if a run with these validations is at its last step or out of patience."""
    if validations and validations[-1]["step"] >= config.steps:
        return True
    return is_out_of_patience(config.patience, scheduled_scores(config, validations))


# Scores of examples


class ExampleScores(NamedTuple):
    """Scores of the validation examples (windows, texts or pairs), in their order."""

    step: int
    """Step of the checkpoint."""
    count: Float[np.ndarray, "N"]
    """Weight of each example: the number of its targets; 1 for a text."""
    sums: dict[str, Float[np.ndarray, "M N"]]
    """For each metric the sum over each example's targets, by seed."""

    @classmethod
    def from_rows(cls, step: int, sums: dict[str, Float[np.ndarray, "M E"]]) -> "ExampleScores":
        """Return the scores without the padding of the last batch.

        Args:
            sums: result of `Trainer.evaluate(each=True)`, with `count`.
        """
        is_example = sums["count"][0] > 0
        scores = {name: np.asarray(values)[:, is_example] for name, values in sums.items()}
        return cls(step, scores.pop("count")[0], scores)


def save_example_scores(folder: Path, step: int, sums: dict[str, Float[np.ndarray, "M E"]]) -> None:
    """Write `ExampleScores.from_rows(step, sums)` into a run folder, atomically."""
    scores, file = ExampleScores.from_rows(step, sums), io.BytesIO()
    np.savez(file, step=step, count=scores.count, **scores.sums, allow_pickle=False)
    replace_file(folder / EXAMPLES_FILE, file.getvalue())


def read_example_scores(folder: Path) -> ExampleScores | None:
    """Return the scores of a run; None if their file is missing or damaged."""
    try:
        with np.load(folder / EXAMPLES_FILE, allow_pickle=False) as file:
            arrays = dict(file)
        step, count = int(arrays.pop("step")), arrays.pop("count")
        fits = all(a.ndim == 2 and a.shape[1:] == count.shape for a in arrays.values())
    except Exception:  # zipfile and NumPy raise errors of many types for a damaged file
        return None
    return ExampleScores(step, count, arrays) if fits else None
