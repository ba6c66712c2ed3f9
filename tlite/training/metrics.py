"""Metrics of a run: metrics.jsonl, and the score of each validation example in examples.npz.

metrics.jsonl has a line for each training step and each validation, in order. examples.npz has the
step of the last validation, the weight of each example (N,), and for each metric the weighted
scores by seed (M, N): their sum over the sum of the weights is the mean in metrics.jsonl.
"""

import contextlib
import fcntl
import io
import itertools
import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tlite.distributed import is_process0
from tlite.errors import UserError, disk_errors
from tlite.training.config import TrainingConfig
from tlite.training.run_dir import replace_file

EXAMPLES_FILE = "examples.npz"


@np.errstate(invalid="ignore", over="ignore")  # the loop warns about values that are not finite
def summarize_seeds(
    values: dict[str, np.ndarray], has_perplexity: bool = True, alive: np.ndarray | None = None
) -> dict:
    """Return each metric's mean over seeds and, with several seeds, its SD and each seed's value.

    Args:
        values: values of each metric by seed (M,); those that are not finite become null.
        has_perplexity: add exp(loss), for a loss that is a mean over tokens.
        alive: (M,), False for diverged seeds, which mean and SD exclude.
    """
    line = {}
    if has_perplexity and "loss" in values:
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


class MetricsFile(contextlib.AbstractContextManager):
    """Append lines to metrics.jsonl in process 0; do nothing in the others.

    Raises:
        UserError: another process has it open for writing, or it can't be written.
    """

    def __init__(self, path: Path):
        self.path, self._file = path, None
        if not is_process0():
            return
        with disk_errors(path):
            self._file = path.open("ab")
        # The lock ends with the process, however that ends. On a file system without locks,
        # `check_unchanged` detects another writer.
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{path.parent} is being trained by another process") from None
        except OSError:
            pass
        self._size = self._file.tell()

    def truncate_after(self, step: int) -> None:
        """Remove the lines of later steps."""
        if self._file:
            with disk_errors(self.path):
                ends = (end for end, line in _lines_from_end(self.path) if line["step"] <= step)
                self._size = self._file.truncate(next(ends, 0))

    def write(self, lines: list[dict]) -> None:
        """Append lines; they survive a kill of this process from here on."""
        if self._file:
            with disk_errors(self.path):
                content = "".join(json.dumps(line) + "\n" for line in lines).encode()
                self._size += self._file.write(content)
                self._file.flush()
            self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise a `UserError` if the file is not the one that this process has written."""
        file = self._file.fileno()
        is_same = self.path.exists() and os.path.samefile(self.path, file)
        if not is_same or os.fstat(file).st_size != self._size:
            what = "was removed, or written by another process: nothing more can be saved there"
            raise UserError(f"{self.path} {what}")

    def __exit__(self, *_):
        if self._file:
            with disk_errors(self.path):
                self._file.close()


def _lines_from_end(path: Path) -> Iterator[tuple[int, dict]]:
    """Yield the complete lines from the last to the first, each with the offset of its end."""
    content = path.read_bytes() if path.exists() else b""
    end = len(content)
    while end:
        start = content.rfind(b"\n", 0, end - 1) + 1
        line = parse_line(content[start:end]) if content[end - 1] == ord("\n") else None
        if line:
            yield end, line
        end = start


def last_training_line(path: Path) -> dict:
    """Return the last complete training line; {} if there is none."""
    return next((line for _, line in _lines_from_end(path) if line["split"] == "training"), {})


def parse_line(text: bytes) -> dict | None:
    """Return a line as a dict; None if it is incomplete (after a kill) or no line of metrics."""
    with contextlib.suppress(ValueError, RecursionError, AttributeError, KeyError):
        line = json.loads(text)
        values = [value for name, value in line.items() if name not in ("step", "split")]
        numbers = [n for v in values for n in (v if isinstance(v, list) else [v])]
        is_metrics = type(line["step"]) is int and line["split"] in ("training", "validation")
        if is_metrics and all(isinstance(number, int | float | None) for number in numbers):
            return line
    return None


def iterate_metrics(path: Path, split: str = "", substring: bytes = b"") -> Iterator[dict]:
    """Yield every complete line, of `split` and with `substring` if these are not empty."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for text in file:
            line = parse_line(text) if split.encode() in text and substring in text else None
            if line and split in ("", line["split"]):
                yield line


def read_metrics(path: Path, max_training_lines: int | None = None) -> list[dict]:
    """Return the lines of metrics.jsonl.

    Args:
        max_training_lines: average neighbouring training lines until there are no more than these,
            which suffices for a plot of a long run; the validations then follow all of them.
            None: return every line.
    """
    if max_training_lines is None:
        return list(iterate_metrics(path))
    num_lines = path.read_bytes().count(b'"training"') if path.exists() else 0
    size, lines = math.ceil(num_lines / max_training_lines), iterate_metrics(path, "training")
    groups = iter(lambda: list(itertools.islice(lines, size)), [])
    return [*map(average_lines, groups), *iterate_metrics(path, "validation")]


def average_lines(lines: list[dict]) -> dict:
    """Return one line with the last step and the mean of each metric's values that are not null."""
    mean = lines[-1].copy()
    for name in mean.keys() - {"step", "split"}:
        with contextlib.suppress(ValueError):  # lines with another number of seeds
            values = np.array([line.get(name) for line in lines], np.float64)
            with warnings.catch_warnings(action="ignore"):  # of values that are all null
                means = np.nanmean(values, axis=0)
            mean[name] = np.where(np.isfinite(means), means, None).tolist()
    return mean


def select_replica(line: dict, replica: int) -> dict:
    """Return the line of one replica from that of several."""
    names = [name for name in line if not name.endswith(("_spread", "_replicas"))]
    replicas = {n: line[f"{n}_replicas"][replica] for n in names if f"{n}_replicas" in line}
    return {name: line[name] for name in names} | replicas


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
    return value if config.best_metric.endswith("loss") else -value


def eval_scores(config: TrainingConfig, validations: Iterable[dict]) -> dict[int, float]:
    """Return the scores of the scheduled validations by step, from their lines."""
    lines = (line for line in validations if config.is_eval_step(line["step"]))
    return {line["step"]: validation_score(config, line) for line in lines}


def is_out_of_patience(patience: int, scores: list[float]) -> bool:
    """Return True if the lowest score is not among the last `patience`; False if that is 0."""
    return 0 < patience < len(scores) - int(np.argmin(scores)) if scores else False


def is_finished(config: TrainingConfig, validations: list[dict]) -> bool:
    """Return True if a run with these validations is at its last step or out of patience."""
    if validations and validations[-1]["step"] >= config.steps:
        return True
    return is_out_of_patience(config.patience, [*eval_scores(config, validations).values()])


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
            sums: result of `Trainer.evaluate(by_example=True)`, with `count`.
        """
        is_example = sums["count"][0] > 0
        scores = {name: np.asarray(values)[:, is_example] for name, values in sums.items()}
        return cls(step, scores.pop("count")[0], scores)


def save_example_scores(folder: Path, step: int, sums: dict[str, Float[np.ndarray, "M E"]]) -> None:
    """Write `ExampleScores.from_rows(step, sums)` into a run folder, atomically."""
    scores, file = ExampleScores.from_rows(step, sums), io.BytesIO()
    np.savez(file, step=step, count=scores.count, **scores.sums)
    replace_file(folder / EXAMPLES_FILE, file.getvalue())


def read_example_scores(folder: Path) -> ExampleScores | None:
    """Return the scores of a run; None if their file is missing or damaged."""
    # zipfile and NumPy raise errors of many types for a damaged file.
    with contextlib.suppress(Exception), np.load(folder / EXAMPLES_FILE) as file:
        arrays = dict(file)
        step, count = int(arrays.pop("step")), arrays.pop("count")
        if all(a.ndim == 2 and a.shape[1:] == count.shape for a in arrays.values()):
            return ExampleScores(step, count, arrays)
    return None
