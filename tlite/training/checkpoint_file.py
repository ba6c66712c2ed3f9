"""What a checkpoint says of itself in checkpoint.json, and whether its files are what was written.

`files` has the SHA-256 of each file, or its size where that is more than `LARGE`, and `digests` a
digest of each array (`tlite.training.digest`), so a flipped byte is found wherever it is. Larger
files are of arrays alone, and to read them once more, in one process, would take too long. So a
small checkpoint is known to be whole before Orbax reads it, and a large one when it is loaded; of
arrays that are not wanted only the small files are looked at.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tlite.errors import UserError, system_reason
from tlite.training.digest import Digests

NAME = "checkpoint.json"
LARGE = 2**24  # bytes; a run that trains on a laptop has no larger file


class Damaged(Exception):
    """A checkpoint is not what was saved."""


@dataclass(frozen=True)
class Checkpoint:
    """What checkpoint.json says."""

    step: int
    score: float
    interrupted: bool = False
    """Whether an interruption decided the step."""
    files: dict[str, str | int] = field(default_factory=dict)
    """The SHA-256 of each file, or the size of a large one."""
    digests: Digests = field(default_factory=dict)
    """Of each tree's arrays by name; older checkpoints have none."""
    arrays: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of each tree's arrays: in place of the files' before 22 November 2026."""


def regular(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Those that were not saved by an interruption."""
    return [c for c in checkpoints if not c.interrupted]


def best(checkpoints: Sequence[Checkpoint]) -> Checkpoint:
    """The first with the least score."""
    return min(checkpoints, key=lambda c: (c.score, c.step))


def kept(checkpoints: Sequence[Checkpoint], last: int, *, beside: bool = False) -> set[int]:
    """The steps to keep: the newest, the last few and the best, as if never interrupted.

    If the newest is only `beside` them, all as if it had not been.
    """
    counted = regular(checkpoints[:-1] if beside else checkpoints)
    chosen = [checkpoints[-1], *counted[-last:], *([best(counted)] if counted else [])]
    return {checkpoint.step for checkpoint in chosen}


def write_checkpoint_file(
    folder: Path, step: int, score: float, interrupted: bool, digests: Digests
) -> None:
    """Write checkpoint.json beside the arrays, which are whole by now."""
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    files = {name: _fingerprint(folder / name) for name in names}
    _write(folder / NAME, Checkpoint(step, score, interrupted, files, digests))


def set_interrupted(folder: Path, checkpoint: Checkpoint, interrupted: bool) -> None:
    """Let a checkpoint be as of an interruption, or not, whenever a kill comes: the end of its run
    was moved."""
    path = folder / f"{NAME}.new"
    _write(path, replace(checkpoint, interrupted=interrupted))
    path.replace(folder / NAME)


def _write(path: Path, checkpoint: Checkpoint) -> None:
    content = asdict(checkpoint)
    content = json.dumps(content | {"sha256": _content_digest(content)}, indent=1)
    with path.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # as TensorStore does with the arrays


def read_checkpoint_file(folder: Path) -> Checkpoint:
    """What a checkpoint says of itself; the folder is named by its step.

    Raises:
        Damaged: it is not whole, not what was saved, or of another step.
        UserError: it can't be read.
    """
    content = _read(folder / NAME)
    if content is None:
        return _old_checkpoint_file(folder)
    try:
        content = json.loads(content)
        digest = content.pop("sha256")
        checkpoint = Checkpoint(**content)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise Damaged from error
    if digest != _content_digest(content) or str(checkpoint.step) != folder.name:
        raise Damaged
    return checkpoint


def _old_checkpoint_file(folder: Path) -> Checkpoint:
    """Of a checkpoint from before 22 November 2026: it has two files of Orbax's for that."""
    files = folder / "metrics" / "metrics", folder / "_CHECKPOINT_METADATA"
    try:
        metrics, metadata = (json.loads(_read(path) or "") for path in files)
        arrays = {str(k): str(v) for k, v in metadata["custom_metadata"]["sha256"].items()}
        score, interrupted = float(metrics["score"]), bool(metrics.get("interrupted"))
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise Damaged from error
    return Checkpoint(int(folder.name), score, interrupted, arrays=arrays)


def check_files(folder: Path, checkpoint: Checkpoint) -> None:
    """Raises `Damaged` where a file is not what was written; `UserError` if it can't be read."""
    for name, written in checkpoint.files.items():
        with reading(folder / name):
            try:
                path = folder / name
                # Earlier ones have the SHA-256 of every file.
                size_only = isinstance(written, int)
                damaged = (path.stat().st_size if size_only else _sha256(path)) != written
            except FileNotFoundError:
                damaged = True
        if damaged:
            raise Damaged


def read_large_files(folder: Path, checkpoint: Checkpoint) -> bool:
    """Whether there are files that only the digests of arrays can tell to be whole.

    Raises:
        UserError: one of them can't be read to its end, so nothing is known of it.
    """
    large = [name for name, written in checkpoint.files.items() if isinstance(written, int)]
    for name in large:
        with reading(folder / name):
            _sha256(folder / name)
    return bool(large)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """A file that is there and can't be read, for lack of permission say, is a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"can't read {path}: {system_reason(error)}; nothing was changed, put that right first"
        ) from error


def _read(path: Path) -> bytes | None:
    """A file's content, or None if there is none."""
    with reading(path):
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None


def _fingerprint(path: Path) -> str | int:
    size = path.stat().st_size
    return size if size > LARGE else _sha256(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _content_digest(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def tree_digest(tree: dict[str, Any]) -> str:
    """Of all arrays of a tree, as they were kept until 22 November 2026."""
    digest = hashlib.sha256()
    for name in sorted(tree):
        array = np.asarray(tree[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
