"""examples.npz: what the validation of a run's best checkpoint has found of each of its examples.

Arrays of NumPy: the step, the weight of each example (N,), and by member (M, N) its sums, so that
their total by that of the weights is the mean in metrics.jsonl.
"""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tlite.training.runs import replace_file

FILE = "examples.npz"


class Examples(NamedTuple):
    """The windows, texts or pairs of a validation, in their order."""

    step: int
    """Of the checkpoint."""
    count: Float[np.ndarray, "N"]
    """What each counts: targets of a window or a pair, 1 for a text."""
    sums: dict[str, Float[np.ndarray, "M N"]]
    """By name of the measure; of an example over its targets."""


def save_examples(folder: Path, step: int, sums: dict[str, Float[np.ndarray, "M N"]]) -> None:
    """Write those that count into a run's folder: the file is there whole, or as it was before.

    Args:
        sums: as `Trainer.evaluate` gives those of each, `count` among them.
    """
    counts = sums["count"][0] > 0  # the last batch is filled up
    kept = {name: np.asarray(values)[:, counts] for name, values in sums.items()}
    file = io.BytesIO()
    np.savez(file, step=step, **(kept | {"count": kept["count"][0]}), allow_pickle=False)
    replace_file(folder / FILE, file.getvalue())


def read_examples(folder: Path) -> Examples | None:
    """Those of a run; None where there are none, or what is there can't be read."""
    try:
        with np.load(folder / FILE, allow_pickle=False) as file:
            arrays = dict(file)
        step, count = int(arrays.pop("step")), arrays.pop("count")
        fits = all(a.ndim == 2 and a.shape[1:] == count.shape for a in arrays.values())
    except Exception:  # of zip's and NumPy's, of many types: a damaged file is none
        return None
    return Examples(step, count, arrays) if fits else None
