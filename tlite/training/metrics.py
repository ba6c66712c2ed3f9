"""What training finds: metrics.jsonl has a line for each step and each validation, appended as they
happen; examples.npz the scores of each example of the validation part at the last validation.

Of these it has arrays of NumPy: the step, the weight of each example (N,), and by seed (M, N) its
sums, so that their total by that of the weights is the mean in metrics.jsonl.
"""

import contextlib
import fcntl
import io
import json
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tlite.errors import UserError, disk_errors
from tlite.training.run_dir import replace_file

EXAMPLES = "examples.npz"


@np.errstate(invalid="ignore", over="ignore")  # the loop warns of what is not finite
def summarise(
    losses: dict[str, np.ndarray], perplexity: bool = True, alive: np.ndarray | None = None
) -> dict:
    """Mean over seeds (M,) of each loss and, for several, the spread and each seed's value.

    Args:
        losses: values of each loss by seed (M,); what is not finite becomes null.
        perplexity: add exp(loss), for a loss that is the mean over tokens.
        alive: (M,), False for the diverged seeds, which mean and spread leave out.
    """
    line = {}
    if perplexity and "loss" in losses:
        losses = {**losses, "perplexity": np.exp(np.minimum(losses["loss"], 700.0))}
    for name, values in losses.items():
        values = np.asarray(values, np.float64)
        chosen = values if alive is None or not alive.any() else values[alive]
        line[name] = _short(chosen.mean())
        if len(values) > 1:
            line[f"{name}_spread"] = _short(chosen.std(ddof=1)) if len(chosen) > 1 else None
            line[f"{name}_replicas"] = list(map(_short, values))
    return line


def _short(value: float) -> float | None:
    return float(f"{value:.8g}") if np.isfinite(value) else None


class MetricsFile:
    """Appends to metrics.jsonl; with several processes only in the one that is `writing`.

    Raises:
        UserError: another process has it open for writing, or it can't be written.
    """

    def __init__(self, path: Path, *, writing: bool = True):
        self.path, self._file = path, None
        if not writing:
            return
        with disk_errors(path):
            self._file = path.open("ab")
        # The lock ends with the process, however that ends. Where the file system has no locks,
        # `check` notices what another process writes.
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{path.parent} is being trained by another process") from None
        self._size = self._file.tell()

    def cut_after(self, step: int) -> None:
        """Drop the lines of later steps."""
        if self._file:
            with disk_errors(self.path):
                self._size = self._file.truncate(end_of_step(self.path, step))

    def write(self, lines: list[dict]) -> None:
        """All of the lines; a process that is killed after this does not lose them.

        Raises:
            UserError: the disk is full, or the run folder was removed or moved.
        """
        if self._file:
            with disk_errors(self.path):
                content = "".join(json.dumps(line) + "\n" for line in lines).encode()
                self._size += self._file.write(content)
                self._file.flush()
            self.check()

    def check(self) -> None:
        """Raise a `UserError` if the file is not what this process has written."""
        status = os.fstat(self._file.fileno())
        try:
            there = os.path.samestat(status, self.path.stat())
        except FileNotFoundError:
            there = False
        if not there or status.st_size != self._size:
            how = "written by another process" if there else "removed or replaced"
            raise UserError(
                f"{self.path} was {how} during training: nothing more can be saved there"
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._file:
            with disk_errors(self.path):
                self._file.close()


def lines_backwards(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file from the last to the first, each with the offset of its end."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = len(content)
        while end:
            start = content.rfind(b"\n", 0, end - 1) + 1
            yield end, content[start:end]
            end = start


def end_of_step(path: Path, step: int) -> int:
    """Return the offset in bytes after the last complete line of `step` or an earlier one."""
    if not step:
        return 0
    for end, text in lines_backwards(path):
        if text.endswith(b"\n") and (line := parse(text)) and line["step"] <= step:
            return end
    return 0


def last_training_line(path: Path) -> dict:
    """Return the last complete training line; {} if there is none."""
    lines = (parse(text) for _, text in lines_backwards(path))
    return next((line for line in lines if line and line["split"] == "training"), {})


def parse(text: bytes) -> dict | None:
    """A line as it was written, or None: cut short by a kill, or foreign."""
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
    """Every line that was written whole, of one split if asked; others are passed over."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for text in file:
            if split.encode() in text and (line := parse(text)) and split in ("", line["split"]):
                yield line


def read_metrics(path: Path, most: int | None = None) -> list[dict]:
    """The lines of metrics.jsonl; of training at most so many, each the mean of neighbours.

    A picture needs no more than a thousand or two, however long the run was.
    """
    if most is None or not path.exists():
        return list(iterate_metrics(path))
    with path.open("rb") as file:
        width = -(-sum(b'"training"' in text for text in file) // most)
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
    mean = lines[-1].copy()
    for name in [name for name in mean if name not in ("step", "split")]:
        with contextlib.suppress(ValueError):  # a foreign line has other replicas
            values = np.array([line.get(name) for line in lines], np.float64)
            known = np.isfinite(values)
            with np.errstate(invalid="ignore"):
                means = np.where(known, values, 0.0).sum(0) / known.sum(0)
            mean[name] = np.where(np.isfinite(means), means, None).tolist()  # NaN is null
    return mean


def split_replica(line: dict, replica: int) -> dict:
    """A line of several replicas as the line of one of them."""
    return {
        name: line[f"{name}_replicas"][replica] if f"{name}_replicas" in line else value
        for name, value in line.items()
        if not name.endswith(("_spread", "_replicas"))
    }


class Examples(NamedTuple):
    """The windows, texts or pairs of a validation, in their order."""

    step: int
    """Of the checkpoint."""
    count: Float[np.ndarray, "N"]
    """What each counts: targets of a window or a pair, 1 for a text."""
    sums: dict[str, Float[np.ndarray, "M N"]]
    """By name of the measure; of an example over its targets."""


def save_examples(folder: Path, step: int, sums: dict[str, Float[np.ndarray, "M N"]]) -> None:
    """Write `examples_of` into a run's folder: the file is complete, or as it was before."""
    examples, file = examples_of(step, sums), io.BytesIO()
    np.savez(file, step=step, count=examples.count, **examples.sums, allow_pickle=False)
    replace_file(folder / EXAMPLES, file.getvalue())


def examples_of(step: int, sums: dict[str, Float[np.ndarray, "M E"]]) -> Examples:
    """The examples among the rows of all batches, the last of which is padded.

    Args:
        sums: by name and row, as `Trainer.evaluate(each=True)` returns them, `count` among them.
    """
    counts = sums["count"][0] > 0
    kept = {name: np.asarray(values)[:, counts] for name, values in sums.items()}
    return Examples(step, kept.pop("count")[0], kept)


def read_examples(folder: Path) -> Examples | None:
    """Those of a run; None where there are none, or what is there can't be read."""
    try:
        with np.load(folder / EXAMPLES, allow_pickle=False) as file:
            arrays = dict(file)
        step, count = int(arrays.pop("step")), arrays.pop("count")
        fits = all(a.ndim == 2 and a.shape[1:] == count.shape for a in arrays.values())
    except Exception:  # of zip's and NumPy's, of many types: a damaged file is none
        return None
    return Examples(step, count, arrays) if fits else None
