"""Sequences of different lengths as one array."""

from collections.abc import Iterable, Sequence

import numpy as np

PADDING = -1  # no token has this id, so what is padding can be seen in the ids themselves


def pad(rows: Iterable[Sequence[int] | np.ndarray], length: int | None, pad_id: int) -> np.ndarray:
    """The rows, filled up with `pad_id` to `length` or the longest row: int32 (B, T)."""
    rows = [np.asarray(row, np.int32) for row in rows]
    if length is None:
        length = max(map(len, rows), default=0)
    padded = np.full((len(rows), length), pad_id, np.int32)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row[:length]
    return padded
