"""Checkpoints of a run: Orbax's v1 API behind what tlite needs of it.

A checkpoint holds arrays by name ("parameters": {"blocks.0.attention.query.kernel": ...}, ...),
each with a leading axis of members. Orbax writes it beside and renames it when whole, so a kill
leaves the ones before; a SHA-256 of the arrays tells a damaged one, which Orbax alone would not.
"""

import contextlib
import hashlib
import logging
import shutil
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from tlite.errors import UserError, disk_errors

# Orbax logs what it then raises, and each save; of a broken file it leaves a coroutine behind.
logging.getLogger("absl").setLevel(logging.CRITICAL)
warnings.filterwarnings("ignore", "coroutine 'PyTreeHandler", RuntimeWarning)


@dataclass(frozen=True)
class Keep:
    """Orbax's policy: the newest, the last few and the best, as if never interrupted."""

    last: int

    def should_preserve(self, checkpoints, *, context) -> list[bool]:
        checkpoints = sorted(checkpoints, key=lambda c: c.step)
        counted = regular(checkpoints)
        kept = [checkpoints[-1], *counted[-self.last :], *([best(counted)] if counted else [])]
        return [c in kept for c in checkpoints]


def regular(checkpoints: Sequence) -> list:
    """Those that were not saved by an interruption."""
    return [c for c in checkpoints if not (c.metrics or {}).get("interrupted")]


def best(checkpoints: Sequence):
    """The first with the least score."""
    return min(checkpoints, key=lambda c: (c.metrics["score"], c.step))


class Checkpoints:
    """The best checkpoint by its score on the validation part and the last few, in one folder.

    Only the process that trains may have it open for `writing`, which clears what a kill left
    half written.
    """

    def __init__(self, folder: Path, *, writing: bool = False, last: int = 2):
        self.folder = folder
        self._orbax = ocp.training.Checkpointer(
            folder.absolute(), preservation_policy=Keep(last), cleanup_tmp_directories=writing
        )

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
        digests = {name: _digest(tree) for name, tree in trees.items()}
        with disk_errors(self.folder):
            self._orbax.wait()
            self._orbax.save_checkpointables_async(
                step,
                trees,
                force=True,  # Orbax skips a save that comes while another is under way
                metrics={"score": score, "interrupted": interrupted},
                custom_metadata={"sha256": digests},
            )

    def wait(self) -> None:
        """Until everything is written."""
        with disk_errors(self.folder):
            self._orbax.wait()

    def steps(self) -> list[int]:
        """The steps there are checkpoints of, oldest first."""
        return sorted(checkpoint.step for checkpoint in self._orbax.checkpoints)

    def best_step(self) -> int | None:
        """The step with the least score."""
        known = [c for c in self._orbax.checkpoints if c.metrics]
        return best(regular(known) or known).step if known else None

    def regular_steps(self) -> list[int]:
        """The steps that no interruption decided, oldest first; all where there is no such step."""
        return sorted(c.step for c in regular(self._orbax.checkpoints)) or self.steps()

    def load(
        self, abstract: dict[str, dict[str, jax.ShapeDtypeStruct]], step: int | None = None
    ) -> tuple[int, dict[str, dict[str, Any]]]:
        """The checkpoint of `step`, or the last; a damaged one is reported, the one before used.

        Args:
            abstract: names, shapes, types and shardings of the arrays wanted, by tree.
            step: the last one unless given.

        Raises:
            UserError: there is none that can be read.
        """
        steps = [s for s in self.steps() if step is None or s <= step]
        if not steps:
            raise UserError(f"{self.folder.parent} has no checkpoint yet")
        for candidate in reversed(steps):
            if (trees := self._load(candidate, abstract)) is None:
                continue
            if candidate != steps[-1]:
                print(
                    f"checkpoint {steps[-1]} is damaged: using checkpoint {candidate} instead",
                    file=sys.stderr,
                )
            return candidate, trees
        some = "" if steps == self.steps() else f" up to {steps[-1]}"
        raise UserError(f"every checkpoint in {self.folder}{some} is damaged")

    def _load(self, step: int, abstract: dict) -> dict | None:
        """The trees of a checkpoint, or None if one is not what was saved."""
        with contextlib.suppress(Exception):  # whatever Orbax and TensorStore make of broken files
            trees = self._orbax.load_checkpointables(step, abstract)
            digests = self._orbax.metadata(step).custom_metadata["sha256"]
            if all(_digest(jax.device_get(tree)) == digests[n] for n, tree in trees.items()):
                return trees
        return None

    def drop_after(self, step: int) -> None:
        """Forget the checkpoints after `step`: they are damaged, or of another future."""
        for later in self.steps():
            if later > step:
                shutil.rmtree(self.folder / str(later), ignore_errors=True)
        self._orbax.reload()

    def close(self) -> None:
        self._orbax.close()


def _digest(tree: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tree):
        array = np.asarray(tree[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
