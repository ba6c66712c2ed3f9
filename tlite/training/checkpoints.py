"""Checkpoints of a run: one folder a step, which is there whole or not at all.

A checkpoint holds arrays by name ("parameters": {"blocks.0.attention.query.kernel": ...}, ...),
each with a leading axis of members, written by Orbax; and checkpoint.json: step, score, and what
tells damage. It is written beside and renamed when whole; one that is no longer wanted is renamed
before it is removed. So a kill at any moment leaves whole ones, and damage is told from a disk
that can't be read: the bytes are there, and they are others.

Several processes write one checkpoint, each its parts, into one file system that all see. The
first one alone says what there is, writes checkpoint.json, renames and removes.
"""

import contextlib
import errno
import os
import re
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np

from tlite.errors import UserError, disk_errors, system_reason
from tlite.processes import agree, is_first, told
from tlite.training import storage
from tlite.training.checkpoint_file import (
    Checkpoint,
    Damaged,
    best,
    check_files,
    kept,
    read_checkpoint_file,
    read_large_files,
    reading,
    regular,
    set_interrupted,
    tree_digest,
    write_checkpoint_file,
)
from tlite.training.digest import Digests
from tlite.training.storage import Trees

UNFINISHED = re.compile(r"\d+\.(writing|deleting|orbax-checkpoint-tmp)\S*")

T = TypeVar("T")


class Checkpoints:
    """The best checkpoint by its score on the validation part and the last few, in one folder.

    Only who trains may have it open for `writing`, which clears what a kill left half written or
    half removed. Of several processes that train all have it open, and call the same at the same
    time; who reads waits for no one, unless what is loaded is divided over processes.
    """

    def __init__(self, folder: Path, *, writing: bool = False, last: int = 2):
        self.folder, self._last, self._writing = folder.absolute(), last, writing
        self._writer = ThreadPoolExecutor(1)
        self._pending: Future | None = None
        if writing and is_first():
            with disk_errors(folder):
                folder.mkdir(exist_ok=True)
                for path in folder.iterdir():
                    if UNFINISHED.fullmatch(path.name) and path.is_dir():
                        shutil.rmtree(path)

    def save(
        self,
        step: int,
        trees: Trees,
        score: float,
        *,
        interrupted: bool = False,
        beside: bool = False,
    ) -> None:
        """Write in the background; waits first for the one before. The best has the least score.

        The arrays may be used up afterwards: they have been copied to the host.

        One of an interruption is kept until the next, and is neither the best nor counted among
        the last, unless there is no other. One `beside` the others is kept as well as these: the
        run may go on as if it had not been.
        """
        self.wait()
        temporary = self.folder / f"{step}.writing"
        with disk_errors(self.folder):
            if is_first() and not self.folder.is_dir():
                raise UserError(f"{self.folder} is gone: nothing more can be saved there")
            write = storage.begin_save(temporary, trees)
        about = step, float(score), interrupted
        self._pending = self._writer.submit(self._write, temporary, write, about, beside)

    def _write(
        self, temporary: Path, write: Callable[[], Digests], about: tuple, beside: bool
    ) -> None:
        try:
            digests = write()
            if is_first():
                write_checkpoint_file(temporary, *about, digests)
                temporary.rename(self.folder / str(about[0]))
        except BaseException:
            for path in self.folder.glob(f"{temporary.name}*") if is_first() else ():
                shutil.rmtree(path, ignore_errors=True)
            raise
        if is_first():
            known = self._known()
            for step in {c.step for c in known} - kept(known, self._last, beside=beside):
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

    def __exit__(self, error: type | None, *_):
        # What ended the training is told, rather than what came of it.
        with contextlib.suppress(UserError) if error else contextlib.nullcontext():
            self.close()

    def steps(self) -> list[int]:
        """The steps there are checkpoints of, oldest first; damaged ones too."""
        return _decided(self._steps, self._writing)

    def _steps(self) -> list[int]:
        with reading(self.folder):
            names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def best_step(self) -> int | None:
        """The step with the least score."""

        def find() -> int | None:
            known = self._known()
            return best(regular(known) or known).step if known else None

        return _decided(find, self._writing)

    def regular_steps(self) -> list[int]:
        """The steps that no interruption decided, oldest first; all where there is no such step."""

        def find() -> list[int]:
            return [c.step for c in regular(self._known())] or self._steps()

        return _decided(find, self._writing)

    def set_interrupted(self, steps: Callable[[int], bool]) -> None:
        """Let the checkpoints of such steps be as of interruptions, and no others."""
        for checkpoint in self._known() if is_first() else ():
            if (interrupted := steps(checkpoint.step)) != checkpoint.interrupted:
                with disk_errors(self.folder):
                    set_interrupted(self.folder / str(checkpoint.step), checkpoint, interrupted)

    def _known(self) -> list[Checkpoint]:
        """What the checkpoints say of themselves, oldest first; damaged ones are passed over."""
        known = []
        for step in self._steps():
            with contextlib.suppress(Damaged):
                known.append(read_checkpoint_file(self.folder / str(step)))
        return known

    def load(self, abstract: Trees, step: int | None = None) -> tuple[int, Trees]:
        """The checkpoint of `step`, or the last; a damaged one is reported, the nearest one before
        it used, or else one after it.

        Args:
            abstract: names, shapes, types and shardings of the arrays wanted, by tree.
            step: the last one unless given.

        Raises:
            UserError: there is none, none is whole, one can't be read, or is of another config.
        """
        leaves = jax.tree.leaves(abstract)
        together = not all(leaf.sharding.is_fully_addressable for leaf in leaves)
        steps, step = _decided(lambda: (self._steps(), step), together)
        if not steps:
            raise UserError(f"{self.folder.parent} has no checkpoint yet")
        before = [s for s in steps if step is None or s <= step]
        order = [*reversed(before), *(s for s in steps if s not in before)]
        for candidate in order:
            try:
                trees = self._load(candidate, abstract, together)
            except Damaged:
                if _decided((self.folder / str(candidate)).is_dir, together):
                    continue
                return self.load(abstract, step)  # who trains the run has just removed it
            if candidate != order[0] and (is_first() or not together):
                print(
                    f"checkpoint {order[0]} is damaged: using checkpoint {candidate} instead",
                    file=sys.stderr,
                )
            return candidate, trees
        raise UserError(f"every checkpoint in {self.folder} is damaged")

    def _load(self, step: int, abstract: Trees, together: bool) -> Trees:
        folder = self.folder / str(step)

        def look() -> Checkpoint:
            checkpoint = read_checkpoint_file(folder)
            if is_first() or not together:
                check_files(folder, checkpoint)
            return checkpoint

        def check() -> None:
            if any(found[tree] != checkpoint.digests.get(tree) for tree in found):
                raise Damaged

        checkpoint = _as_one(look, together)
        trees = _as_one(lambda: self._read(folder, checkpoint, abstract), together)
        found = storage.digests(trees, together) if checkpoint.digests else {}
        _as_one(check, together)
        return trees

    def _read(self, folder: Path, checkpoint: Checkpoint, abstract: Trees) -> Trees:
        """The arrays of a checkpoint whose files are what was written, as far as is known."""
        if checkpoint.arrays and not all((folder / name).is_dir() for name in abstract):
            raise Damaged  # Orbax removed old ones in place, and was killed
        try:
            differs = storage.difference(storage.shapes(folder), abstract)
            trees = None if differs else storage.load(folder, abstract)
            if trees and checkpoint.arrays:
                whole = storage.load(folder, jax.tree.map(_on_the_host, abstract))
        except Exception as error:  # whatever Orbax and TensorStore make of it
            if system_reason(error) in ("", os.strerror(errno.ENOENT)) and (
                checkpoint.arrays or read_large_files(folder, checkpoint)
            ):
                raise Damaged from error
            # The bytes are what was saved, so it is not the checkpoint.
            reason = system_reason(error) or f"{type(error).__name__} in Orbax"
            raise UserError(f"can't read {folder}: {reason}") from error
        if differs:
            raise UserError(
                f"{self.folder.parent / 'config.json'} is not of the model in checkpoint "
                f"{folder.name}: {differs}; was it edited?"
            )
        for tree, digest in checkpoint.arrays.items():
            if tree in abstract and tree_digest(whole[tree]) != digest:
                raise Damaged
        return trees

    def set_aside_damaged(self, step: int) -> None:
        """Rename what is damaged to `damaged-N`: all after the whole one of `step`, and others."""
        if not is_first():
            return
        whole = {checkpoint.step for checkpoint in self._known()}
        for other in self._steps():
            if other > step or other not in whole:
                name = f"damaged-{other}"
                while (self.folder / name).exists():
                    name += "-again"
                print(f"moved to {self._rename(other, name)}", file=sys.stderr)

    def _rename(self, step: int, name: str) -> Path:
        with disk_errors(self.folder):
            return (self.folder / str(step)).rename(self.folder / name)


def _decided(find: Callable[[], T], together: bool) -> T:
    """What `find` gives: in the first process, where all are at it together."""
    if not together:
        return find()
    return told(find() if is_first() else None)


def _as_one(work: Callable[[], T], together: bool) -> T:
    """What `work` gives, or what it raises in any of the processes: in every one of them."""
    if not together:
        return work()
    result, error = None, None
    try:
        result = work()
    except (Damaged, UserError) as raised:
        error = raised
    damaged, unread = agree(np.array([isinstance(error, e) for e in (Damaged, UserError)])).any(0)
    if unread:
        elsewhere = UserError("another process can't read what this one can: see its message")
        raise error if isinstance(error, UserError) else elsewhere
    if damaged:
        raise error or Damaged
    return result


def _on_the_host(wanted: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    host = jax.local_devices(backend="cpu")[0]
    return wanted.update(sharding=jax.sharding.SingleDeviceSharding(host))
