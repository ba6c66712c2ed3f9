"""Checkpoints of a run: one folder a step, which is there whole or not at all.

A checkpoint holds arrays by name ("parameters": {"blocks.0.attention.query.kernel": ...}, ...),
each with a leading axis of members, written by Orbax; and checkpoint.json: step, score, and the
SHA-256 of each file and of itself. It is written beside and renamed when whole; one that is no
longer wanted is renamed before it is removed. So a kill at any moment leaves whole ones, and
damage is told from a disk that can't be read: the bytes are there, and they are others.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from tlite.errors import UserError, disk_errors, system_reason

# Orbax logs what it then raises, and each save; of a broken file it leaves a coroutine behind.
logging.getLogger("absl").setLevel(logging.CRITICAL)
warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)

RECORD = "checkpoint.json"
UNFINISHED = re.compile(r"\d+\.(writing|deleting|orbax-checkpoint-tmp)\S*")

Trees = dict[str, dict[str, Any]]


class Damaged(Exception):
    """A checkpoint is not what was saved."""


@dataclass(frozen=True)
class Checkpoint:
    """What checkpoint.json says."""

    step: int
    score: float
    interrupted: bool = False
    """Whether an interruption decided the step."""
    files: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of each file."""
    arrays: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of each tree's arrays: in place of the files' before 22 November 2026."""


def regular(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Those that were not saved by an interruption."""
    return [c for c in checkpoints if not c.interrupted]


def best(checkpoints: Sequence[Checkpoint]) -> Checkpoint:
    """The first with the least score."""
    return min(checkpoints, key=lambda c: (c.score, c.step))


def kept(checkpoints: Sequence[Checkpoint], last: int) -> set[int]:
    """The steps to keep: the newest, the last few and the best, as if never interrupted."""
    counted = regular(checkpoints)
    chosen = [checkpoints[-1], *counted[-last:], *([best(counted)] if counted else [])]
    return {checkpoint.step for checkpoint in chosen}


class Checkpoints:
    """The best checkpoint by its score on the validation part and the last few, in one folder.

    Only the process that trains may have it open for `writing`, which clears what a kill left
    half written or half removed.
    """

    def __init__(self, folder: Path, *, writing: bool = False, last: int = 2):
        self.folder, self._last = folder.absolute(), last
        self._writer = ThreadPoolExecutor(1)
        self._pending: Future | None = None
        if writing:
            with disk_errors(folder):
                folder.mkdir(exist_ok=True)
                for path in folder.iterdir():
                    if UNFINISHED.fullmatch(path.name) and path.is_dir():
                        shutil.rmtree(path)

    def save(
        self,
        step: int,
        trees: dict[str, dict[str, np.ndarray]],
        score: float,
        *,
        interrupted: bool = False,
    ) -> None:
        """Write in the background; waits first for the one before. The best has the least score.

        One of an interruption is kept until the next, and is neither the best nor counted among
        the last, unless there is no other.
        """
        self.wait()
        checkpoint = Checkpoint(step, float(score), interrupted)
        self._pending = self._writer.submit(self._write, checkpoint, trees)

    def _write(self, checkpoint: Checkpoint, trees: Trees) -> None:
        temporary = self.folder / f"{checkpoint.step}.writing"
        try:
            if not self.folder.is_dir():
                raise UserError(f"{self.folder} is gone: nothing more can be saved there")
            ocp.save_checkpointables(temporary, trees)
            files = {name: _sha256(temporary / name) for name in _files_in(temporary)}
            record = asdict(checkpoint) | {"files": files}
            content = json.dumps(record | {"sha256": _record_digest(record)}, indent=1)
            with (temporary / RECORD).open("w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # as TensorStore does with the arrays
            temporary.rename(self.folder / str(checkpoint.step))
        except BaseException:
            for path in self.folder.glob(f"{temporary.name}*"):
                shutil.rmtree(path, ignore_errors=True)
            raise
        known = self._known()
        for step in {c.step for c in known} - kept(known, self._last):
            shutil.rmtree(self._rename(step, f"{step}.deleting"), ignore_errors=True)

    def wait(self) -> None:
        """Until everything is written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            with disk_errors(self.folder):
                pending.result()

    def close(self) -> None:
        """Wait, and end the thread that writes."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def steps(self) -> list[int]:
        """The steps there are checkpoints of, oldest first; damaged ones too."""
        with reading(self.folder):
            names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def best_step(self) -> int | None:
        """The step with the least score."""
        known = self._known()
        return best(regular(known) or known).step if known else None

    def regular_steps(self) -> list[int]:
        """The steps that no interruption decided, oldest first; all where there is no such step."""
        return [c.step for c in regular(self._known())] or self.steps()

    def _known(self) -> list[Checkpoint]:
        """What the checkpoints say of themselves, oldest first; damaged ones are passed over."""
        known = []
        for step in self.steps():
            with contextlib.suppress(Damaged):
                known.append(self._record(step))
        return known

    def _record(self, step: int) -> Checkpoint:
        """What a checkpoint says of itself.

        Raises:
            Damaged: it is not whole, not what was saved, or of another step.
            UserError: it can't be read.
        """
        path = self.folder / str(step) / RECORD
        content = _read(path)
        if content is None:
            return self._old_record(step)
        try:
            record = json.loads(content)
            digest = record.pop("sha256")
            checkpoint = Checkpoint(**record)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise Damaged from error
        if digest != _record_digest(record) or checkpoint.step != step:
            raise Damaged
        return checkpoint

    def _old_record(self, step: int) -> Checkpoint:
        """Of a checkpoint from before 22 November 2026: it has two files of Orbax's for that."""
        folder = self.folder / str(step)
        files = folder / "metrics" / "metrics", folder / "_CHECKPOINT_METADATA"
        try:
            metrics, metadata = (json.loads(_read(path) or "") for path in files)
            arrays = {str(k): str(v) for k, v in metadata["custom_metadata"]["sha256"].items()}
            score, interrupted = float(metrics["score"]), bool(metrics.get("interrupted"))
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise Damaged from error
        return Checkpoint(step, score, interrupted, arrays=arrays)

    def load(self, abstract: Trees, step: int | None = None) -> tuple[int, Trees]:
        """The checkpoint of `step`, or the last; a damaged one is reported, the nearest one before
        it used, or else one after it.

        Args:
            abstract: names, shapes, types and shardings of the arrays wanted, by tree.
            step: the last one unless given.

        Raises:
            UserError: there is none, none is whole, one can't be read, or is of another config.
        """
        steps = self.steps()
        if not steps:
            raise UserError(f"{self.folder.parent} has no checkpoint yet")
        before = [s for s in steps if step is None or s <= step]
        order = [*reversed(before), *(s for s in steps if s not in before)]
        for candidate in order:
            try:
                trees = self._load(candidate, abstract)
            except Damaged:
                if (self.folder / str(candidate)).is_dir():
                    continue
                return self.load(abstract, step)  # who trains the run has just removed it
            if candidate != order[0]:
                print(
                    f"checkpoint {order[0]} is damaged: using checkpoint {candidate} instead",
                    file=sys.stderr,
                )
            return candidate, trees
        raise UserError(f"every checkpoint in {self.folder} is damaged")

    def _load(self, step: int, abstract: Trees) -> Trees:
        folder, checkpoint = self.folder / str(step), self._record(step)
        for name, digest in checkpoint.files.items():
            with reading(folder / name):
                try:
                    damaged = _sha256(folder / name) != digest
                except FileNotFoundError:
                    damaged = True
            if damaged:
                raise Damaged
        if checkpoint.arrays and not all((folder / name).is_dir() for name in abstract):
            raise Damaged  # Orbax removed old ones in place, and was killed
        try:
            differs = _difference(ocp.checkpointables_metadata(folder).metadata, abstract)
            trees = None if differs else ocp.load_checkpointables(folder, abstract)
        except Exception as error:  # whatever Orbax and TensorStore make of it
            if checkpoint.arrays and system_reason(error) in ("", os.strerror(errno.ENOENT)):
                raise Damaged from error
            # The bytes are what was saved, so it is not the checkpoint.
            reason = system_reason(error) or f"{type(error).__name__} in Orbax"
            raise UserError(f"can't read {folder}: {reason}") from error
        if differs:
            raise UserError(
                f"{self.folder.parent / 'config.json'} is not of the model in checkpoint {step}: "
                f"{differs}; was it edited?"
            )
        for name, digest in checkpoint.arrays.items():
            if name in trees and _array_digest(jax.device_get(trees[name])) != digest:
                raise Damaged
        return trees

    def set_aside_damaged(self, step: int) -> None:
        """Rename what is damaged to `damaged-N`: all after the whole one of `step`, and others."""
        whole = {checkpoint.step for checkpoint in self._known()}
        for other in self.steps():
            if other > step or other not in whole:
                name = f"damaged-{other}"
                while (self.folder / name).exists():
                    name += "-again"
                print(f"moved to {self._rename(other, name)}", file=sys.stderr)

    def _rename(self, step: int, name: str) -> Path:
        with disk_errors(self.folder):
            return (self.folder / str(step)).rename(self.folder / name)


@contextlib.contextmanager
def reading(path: Path):
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


def _files_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _record_digest(record: dict) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _difference(found: dict, wanted: Trees) -> str:
    """The first array that a checkpoint has otherwise than wanted, as a phrase; "" if none."""
    for tree, arrays in sorted(wanted.items(), reverse=True):  # parameters before the optimizer's
        saved = {name: tuple(array.shape) for name, array in found.get(tree, {}).items()}
        for name, array in arrays.items():
            if saved.get(name) != array.shape:
                return f"its {name} has the shape {saved.get(name, '-')}, not {array.shape}"
        if more := sorted(saved.keys() - arrays.keys()):
            return f"it has {more[0]}, which the config does not"
    return ""


def _array_digest(tree: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tree):
        array = np.asarray(tree[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
