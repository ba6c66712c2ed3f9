"""Checkpoints of a run: one folder a step, which is there whole or not at all.

A checkpoint holds arrays by name ("parameters": {"blocks.0.attention.query.kernel": ...}, ...),
each with a leading axis of replicas, and checkpoint.json, its seal: the step, the score, and the
SHA-256 of each file. Orbax's AsyncCheckpointer writes it beside, in the background, and of several
processes each its parts, which go to one file system that all see; it renames it when whole. What
is no longer wanted is renamed before it is removed. So a kill at any moment leaves whole ones.

Ours is what Orbax does not do: it loads a flipped byte without complaint, so the seal is written
just before the renaming; and with a score that is NaN its manager of several checkpoints deletes
the best, so what is kept is decided here.
"""

import contextlib
import hashlib
import json
import math
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from tlite.distributed import broadcast_from_process0, is_process0
from tlite.errors import (
    UserError,
    disk_errors,
    first_line,
    lack_of_memory,
    system_reason,
    write_error,
)
from tlite.training.config import TrainingConfig
from tlite.training.run_dir import next_free, numbered_folders, replace_file, sha256
from tlite.training.step import TrainState

SEAL = "checkpoint.json"
WRITTEN_LATER = {"_CHECKPOINT_METADATA", "commit_success.txt"}
"""What Orbax writes of the renaming itself, after the seal; nothing of it is read here."""
TEMPORARY = ".orbax-checkpoint-tmp"
UNFINISHED = re.compile(rf"\d+({re.escape(TEMPORARY)}|\.deleting)\S*")
EACH = TrainingConfig(evaluate_every=1)
CHUNK = 2**26  # bytes that are read at once at the most, for however small a part

MISSING = FileNotFoundError, NotADirectoryError

Trees = dict[str, dict[str, Any]]


class Checkpoints:
    """The best checkpoint by its score on the validation part and the last few, in one folder.

    Only who trains may have it open for `writing`, which clears what a kill left half written or
    half removed. Of several processes that train all have it open, and call the same at the same
    time; who reads waits for no one, unless what is loaded is divided over processes.

    Args:
        config: says how many are kept beside the best, and which count: one in between is of an
            interruption, or of the end of a run that may be given more steps. It is kept until the
            next, as if it had not been. Unless given each counts.
    """

    def __init__(self, folder: Path, config: TrainingConfig = EACH, *, writing: bool = False):
        self.folder, self._config, self._writing = folder.absolute(), config, writing
        self._writer: ocp.AsyncCheckpointer | None = None
        self._saving: tuple[int, float | None] | None = None
        if writing and is_process0():
            with disk_errors(folder):
                folder.mkdir(exist_ok=True)
                self._clear()

    def _clear(self) -> None:
        for path in self.folder.iterdir():
            if UNFINISHED.fullmatch(path.name) and path.is_dir():
                shutil.rmtree(path)

    def save(self, step: int, trees: Trees, score: float | None = None) -> None:
        """Write in the background, after the previous checkpoint is complete.

        Args:
            trees: arrays by name; they are copied to the host and may be donated afterwards.
            score: lower is better; None if not known yet (`record_score`): never the best.
        """
        self.wait()
        with self._writing_errors():
            if self._writer is None:
                # Called in the first process when all have written, before the folder is renamed.
                sealing = ocp.AsyncOptions(post_finalization_callback=self._seal)
                handler = ocp.CompositeCheckpointHandler()
                self._writer = ocp.AsyncCheckpointer(handler, async_options=sealing)
            self._saving = step, score if score is None else float(score)
            self._writer.save(self.folder / str(step), args=save_arguments(trees))

    def _seal(self) -> None:
        step, score = self._saving
        folder = self.folder / f"{step}{TEMPORARY}"
        if not folder.is_dir():  # it may be called after the renaming too, by its name
            folder = self.folder / str(step)
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        files = {str(path.relative_to(folder)): path for path in paths}
        files = {n: sha256(path) for n, path in files.items() if n not in WRITTEN_LATER}
        _write_seal(folder, {"step": step, "score": score, "files": files})

    def record_score(self, step: int, score: float) -> None:
        """Record the score of a checkpoint that was saved without one."""
        self.wait()
        if is_process0() and (seal := self._read_seal(step)) and seal["score"] is None:
            _write_seal(self.folder / str(step), seal | {"score": score})

    def wait(self) -> None:
        """Until everything is written, and what is no longer wanted removed."""
        if self._writer:
            with self._writing_errors():
                self._writer.wait_until_finished()
                if is_process0():
                    self._remove_unwanted(self._scores())

    @contextlib.contextmanager
    def _writing_errors(self) -> Iterator[None]:
        """Turn what Orbax or the disk refuses into a `UserError`, and remove what is incomplete."""
        try:
            if is_process0() and not self.folder.is_dir():
                raise FileNotFoundError(self.folder)  # Orbax would make it anew
            yield
        except Exception as error:
            writer, self._writer = self._writer, None
            with contextlib.suppress(Exception):  # of what is still written, if there is one
                writer.close()
            if is_process0():
                with contextlib.suppress(OSError):
                    self._clear()
            if not self.folder.is_dir():
                gone = f"{self.folder} was removed: nothing more can be saved there"
                raise UserError(gone) from error
            ours = isinstance(error, UserError) or lack_of_memory(error)
            if ours or not isinstance(error, OSError | ValueError | RuntimeError):
                raise
            raise write_error(self.folder, error) from error  # TensorStore raises all three

    def close(self) -> None:
        """Wait, and end what writes."""
        self.wait()
        if self._writer:
            self._writer.close()
            self._writer = None

    def __enter__(self):
        return self

    def __exit__(self, error: type | None, *_):
        # What ended the training is told, rather than what came of it.
        with contextlib.suppress(Exception) if error else contextlib.nullcontext():
            self.close()

    def steps(self) -> list[int]:
        """The steps there are checkpoints of, oldest first; damaged ones too."""
        return broadcast_from_process0(self._steps) if self._writing else self._steps()

    def _steps(self) -> list[int]:
        with reading(self.folder):
            return numbered_folders(self.folder)

    def best_step(self) -> int | None:
        """The step with the least score, of those that count; of all where none does."""
        scores = self._scores()
        return least(scores, self._config.regular(scores)) if scores else None

    def regular_steps(self) -> list[int]:
        """The steps that count, oldest first; all where none does."""
        return self._config.regular(self._scores()) or self._steps()

    def _scores(self) -> dict[int, float | None]:
        """The scores of all intact checkpoints by step, oldest first."""
        return {step: seal["score"] for step in self._steps() if (seal := self._read_seal(step))}

    def _read_seal(self, step: int) -> dict[str, Any] | None:
        """None where it is damaged."""
        with reading(path := self.folder / str(step) / SEAL):
            try:
                seal = json.loads(path.read_bytes())
                whole = seal.pop("sha256") == _content_digest(seal) and seal["step"] == step
            except (*MISSING, ValueError, TypeError, AttributeError, KeyError, RecursionError):
                return None  # another JSON, or none
        return seal if whole else None

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
        find = partial(self._find_whole, step, abstract.keys())
        found = broadcast_from_process0(find) if together else find()
        folder = self.folder / str(found)
        try:
            differs = difference(saved_arrays(folder, abstract), abstract)
            trees = {} if differs else _restore(folder, abstract)
        except Exception as error:  # of Orbax's and TensorStore's, of many types
            if not together and not folder.is_dir():
                return self.load(abstract, step)  # who trains the run has just removed it
            # The bytes are what was saved, so it is not the checkpoint.
            reason = system_reason(error) or f"{type(error).__name__}: {first_line(error)}"
            raise UserError(f"can't read {folder}: {reason}") from error
        if differs:
            raise UserError(
                f"{self.folder.parent / 'config.json'} is not of the model in checkpoint "
                f"{found}: {differs}; was it edited?"
            )
        return found, trees

    def _find_whole(self, step: int | None, trees: Iterable[str]) -> int:
        """Return the step nearest to `step` whose files of these trees are intact.

        A warning names the checkpoint that is damaged.
        """
        if not (steps := self._steps()):
            raise UserError(f"{self.folder.parent} has no checkpoint yet")
        last = steps[-1] if step is None else step
        order = sorted(steps, key=lambda step: (step > last, abs(step - last)))
        for candidate in order:
            if self._is_whole(candidate, trees):
                if candidate != order[0]:
                    damaged = f"checkpoint {order[0]} is damaged"
                    print(f"{damaged}: using checkpoint {candidate} instead", file=sys.stderr)
                return candidate
            if not (self.folder / str(candidate)).is_dir():
                return self._find_whole(step, trees)  # the training process has just removed it
        raise UserError(f"every checkpoint in {self.folder} is damaged")

    def _is_whole(self, step: int, trees: Iterable[str]) -> bool:
        if (seal := self._read_seal(step)) is None:
            return False
        try:
            for name, written in seal["files"].items():
                if "/" in name and name.partition("/")[0] not in trees:
                    continue
                with reading(path := self.folder / str(step) / name):
                    if sha256(path) != written:
                        return False
        except MISSING:
            return False
        return True

    def put_right(self, step: int) -> None:
        """Rename what is damaged to `damaged-N`: all after the whole one of `step`, and others;
        and remove what was no longer wanted when a kill came between its save and the removal."""
        self.wait()
        broadcast_from_process0(lambda: self._put_right(step))  # in all when the first has done it

    def _put_right(self, step: int) -> None:
        whole = {other: score for other, score in self._scores().items() if other <= step}
        with disk_errors(self.folder):
            for other in self._steps():
                if other not in whole:
                    aside = next_free(self.folder / f"damaged-{other}")
                    print(f"moved to {(self.folder / str(other)).rename(aside)}", file=sys.stderr)
            self._remove_unwanted(whole)

    def _remove_unwanted(self, scores: dict[int, float | None]) -> None:
        """All but the newest, and the last few and the best of those that count."""
        counted = [step for step in scores if step % self._config.evaluate_every == 0]
        best = {least(scores, counted)} if counted else set()
        for step in scores.keys() - {
            max(scores, default=0),
            *counted[-self._config.max_to_keep :],
            *best,
        }:
            path = self.folder / str(step)
            shutil.rmtree(path.rename(path.with_name(f"{step}.deleting")))


def least(scores: dict[int, float | None], steps: Iterable[int]) -> int:
    """Return the first of the steps with the lowest score; NaN and None are the highest."""

    def key(step: int) -> tuple[float, int]:
        score = scores[step]
        return (math.inf if score is None or math.isnan(score) else score, step)

    return min(steps, key=key)


def save_arguments(trees: Trees) -> ocp.args.Composite:
    """What Orbax is to write; of arrays that every process has whole, the first one does."""

    def item(tree: dict[str, Any]) -> ocp.args.StandardSave:
        chunks = {name: ocp.SaveArgs(chunk_byte_size=CHUNK) for name in tree}
        return ocp.args.StandardSave(jax.tree.map(_to_write, tree), chunks)

    return ocp.args.Composite(**{name: item(tree) for name, tree in trees.items()})


def _to_write(array: Any) -> Any:
    """On the host, where Orbax copies it at once; or, divided over processes, a copy of the parts.

    On a CPU what it would copy later may be used up by then.
    """
    if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    if next(iter(array.sharding.device_set)).platform != "cpu":
        return array
    copies = [jax.device_put(np.array(s.data), s.device) for s in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, copies)


def _handler() -> ocp.StandardCheckpointHandler:
    """What reads in this process, waiting for no other."""
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me})
    return ocp.StandardCheckpointHandler(multiprocessing_options=alone)


def _restore(folder: Path, abstract: Trees) -> Trees:
    """The arrays with the shapes, types and shardings wanted; of each what belongs here."""
    handler = _handler()
    return {
        name: handler.restore(folder / name, args=ocp.args.StandardRestore(tree))
        for name, tree in abstract.items()
    }


def saved_arrays(folder: Path, names: Iterable[str]) -> Trees:
    """The arrays of a checkpoint's trees of these names, by shape and type."""
    handler = _handler()
    return {name: handler.metadata(folder / name).tree for name in names}


def difference(saved: Trees, expected: Trees) -> str:
    """Return the first array with another shape or type than expected, as a phrase; "" if none."""
    for tree in sorted(expected, reverse=True):  # parameters before the optimizer's
        for name in expected[tree] | saved[tree]:
            arrays = (trees[tree].get(name) for trees in (saved, expected))
            there, here = (f"{a.dtype}{[*a.shape]}" if a is not None else "-" for a in arrays)
            if there != here:
                return f"its {name} is {there}, not {here}"
    return ""


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """A file that is there and can't be read, for lack of permission say, is a `UserError`."""
    try:
        yield
    except MISSING:
        raise
    except OSError as error:
        raise UserError(
            f"can't read {path}: {system_reason(error)}; nothing was changed, put that right first"
        ) from error


def _write_seal(folder: Path, content: dict) -> None:
    replace_file(folder / SEAL, content | {"sha256": _content_digest(content)})


def _content_digest(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def to_named(replicas: TrainState) -> Trees:
    """{"parameters": {name: (M, ...)}, "optimizer": {...}}.

    Each array of the optimizer is under its number, those that it has for every parameter under
    number.name.
    """
    names = jax.tree.leaves(_optimizer_names(replicas))
    optimizer = dict(zip(names, jax.tree.leaves(replicas.optimizer), strict=True))
    return {"parameters": dict(replicas.parameters), "optimizer": optimizer}


def from_named(replicas: TrainState, trees: Trees) -> TrainState:
    """The inverse: `replicas`, of which shapes are enough, with the arrays of `trees`."""
    optimizer = jax.tree.map(trees["optimizer"].get, _optimizer_names(replicas))
    parameters = {name: trees["parameters"][name] for name in replicas.parameters}
    return replicas._replace(parameters=parameters, optimizer=optimizer)


def _optimizer_names(replicas: TrainState) -> Any:
    """The optimizer's state with names in place of arrays; what it has by parameter has a number
    of its own."""
    is_by_parameter = lambda part: (  # noqa: E731
        isinstance(part, dict) and part.keys() == replicas.parameters.keys()
    )
    parts, structure = jax.tree.flatten(replicas.optimizer, is_leaf=is_by_parameter)
    names = [
        # Of a parameter that another rule updates there is no array.
        {name: f"{i}.{name}" if jax.tree.leaves(a) else a for name, a in part.items()}
        if isinstance(part, dict)
        else f"{i}"
        for i, part in enumerate(parts)
    ]
    return jax.tree.unflatten(structure, names)
