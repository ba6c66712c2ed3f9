"""Checkpoints of a run: a folder for each step, written completely or not at all.

    500/parameters/      arrays (seeds, ...) by name in Orbax's format, and manifest.json
        optimizer/       the same for the state of the optimizer
        metrics/metrics  JSON: the validation score

Orbax's `CheckpointManager` writes in the background into a temporary folder and renames it at the
end; superseded checkpoints are renamed before they are removed. Orbax loads a flipped byte without
an error, so each manifest has the SHA-256 of every file, is written before the renaming, and is
compared at loading. Reading uses no manager and waits for no other process.
"""

import contextlib
import hashlib
import json
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies
from orbax.checkpoint.future import ChainedFuture

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
from tlite.training.run_dir import (
    METRICS,
    NO_SCORE,
    next_free,
    numbered_folders,
    replace_file,
    sha256,
)
from tlite.training.step import TrainState

MANIFEST = "manifest.json"
DELETING = "deleting"  # the manager renames superseded checkpoints into this folder
EVERY_STEP = TrainingConfig(evaluate_every=1)
CHUNK_BYTES = 2**26  # read at once for however small a part of an array
MISSING = FileNotFoundError, NotADirectoryError

Trees = dict[str, dict[str, Any]]


class Checkpoints:
    """The latest scheduled checkpoints and the best one, in one folder.

    A checkpoint outside the schedule (after an interruption, by the clock, at the end) is kept
    until the next one. Of several processes that train, all call the same methods.

    Args:
        config: `evaluate_every` is the schedule, `max_to_keep` the number of latest checkpoints
            that are kept. By default every step is scheduled.
        writing: True for the run that trains; what a kill left unfinished is then removed.
    """

    def __init__(self, folder: Path, config: TrainingConfig = EVERY_STEP, *, writing: bool = False):
        self.folder, self._config, self._writing = folder.absolute(), config, writing
        self._manager: ocp.CheckpointManager | None = None
        self._policy = LatestAndBest(config)
        if writing:
            with disk_errors(folder):
                self.folder.mkdir(exist_ok=True)
                self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        if is_process0():
            for path in (*self.folder.glob("*.orbax-checkpoint-tmp*"), self.folder / DELETING):
                if path.is_dir():
                    shutil.rmtree(path)

    def _open_manager(self) -> ocp.CheckpointManager:
        if self._manager is None:
            scores = broadcast_from_process0(lambda: [*self.scores().items()])
            self._policy.scores = dict(scores)
            options = ocp.CheckpointManagerOptions(
                preservation_policy=self._policy,
                best_fn=lambda metrics: metrics["score"],  # without it no metrics are written
                todelete_subdir=DELETING,
                create=False,
                save_root_metadata=False,
                lightweight_initialize=True,
                single_host_load_and_broadcast=True,
                async_options=ocp.AsyncOptions(barrier_sync_fn=barrier),
            )
            handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
            handlers.add(None, ocp.args.StandardSave, ManifestHandler)
            self._manager = ocp.CheckpointManager(
                self.folder, options=options, handler_registry=handlers
            )
        return self._manager

    def save(self, step: int, trees: Trees, metrics: dict[str, float] | None = None) -> None:
        """Write in the background, after the previous checkpoint is complete.

        Args:
            trees: arrays by name; they are copied to the host and may be donated afterwards.
            metrics: numbers by name; the checkpoint with the lowest "score" is the best.
                `record_metrics` adds them later.
        """
        self.wait()
        with self._writing_errors():
            manager, content = self._open_manager(), metrics_content(step, metrics or {})
            self._policy.scores[step] = content["score"]
            manager.save(step, args=save_arguments(trees), metrics=content, force=True)

    def record_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Write the metrics of a saved checkpoint; delete the previous best one if it is worse."""
        self.wait()
        with self._writing_errors():
            manager, content = self._open_manager(), metrics_content(step, metrics)
            if is_process0():
                replace_file(self.folder / str(step) / METRICS, content)
            self._policy.scores[step] = content["score"]
            self._delete_superseded(manager)

    def _delete_superseded(self, manager: ocp.CheckpointManager) -> None:
        steps = manager.all_steps()
        for step in sorted({*steps} - self._policy.preserved(steps)):
            manager.delete(step)
        self._remove_unfinished()

    def wait(self) -> None:
        """Wait until the last checkpoint is complete and superseded ones are removed."""
        if self._manager:
            with self._writing_errors():
                self._manager.wait_until_finished()
                self._remove_unfinished()

    @contextlib.contextmanager
    def _writing_errors(self) -> Iterator[None]:
        """Raise a `UserError` for what Orbax or the disk refuses; remove what is incomplete."""
        try:
            if is_process0() and not self.folder.is_dir():
                raise FileNotFoundError(self.folder)  # Orbax would create it
            yield
        except Exception as error:
            manager, self._manager = self._manager, None
            with contextlib.suppress(Exception):  # the same error again
                manager.close()
            if not self.folder.is_dir():
                message = f"{self.folder} was removed: nothing more can be saved there"
                raise UserError(message) from error
            with contextlib.suppress(OSError):
                self._remove_unfinished()
            is_final = isinstance(error, UserError) or lack_of_memory(error)
            if is_final or not isinstance(error, OSError | ValueError | RuntimeError):
                raise
            raise write_error(self.folder, error) from error  # TensorStore raises all three

    def close(self) -> None:
        """Wait, and end the background threads."""
        self.wait()
        if self._manager:
            self._manager.close()
            self._manager = None

    def __enter__(self):
        return self

    def __exit__(self, error: type | None, *_):
        # The error that ended the training is raised rather than one that follows from it.
        with contextlib.suppress(Exception) if error else contextlib.nullcontext():
            self.close()

    def steps(self) -> list[int]:
        """Return the steps with a checkpoint, damaged or not, oldest first."""
        return broadcast_from_process0(self._read_steps) if self._writing else self._read_steps()

    def _read_steps(self) -> list[int]:
        with reading_errors(self.folder):
            return numbered_folders(self.folder)

    def best_step(self) -> int | None:
        """Return the scheduled step with the lowest score, of all steps if none is scheduled."""
        scores = self.scores()
        return next(iter(by_score(scores, self._config.eval_steps(scores))), None)

    def eval_steps(self) -> list[int]:
        """Return the scheduled steps, oldest first; all if none is scheduled."""
        return self._config.eval_steps(self.scores()) or self._read_steps()

    def scores(self) -> dict[int, float]:
        """Return the scores of all checkpoints whose metrics are intact, oldest first."""
        metrics = {s: read_signed(self.folder / str(s) / METRICS, s) for s in self._read_steps()}
        return {step: content["score"] for step, content in metrics.items() if content}

    def load(self, abstract: Trees, step: int | None = None) -> tuple[int, Trees]:
        """Return a step and its arrays; warn of a damaged checkpoint and use the nearest other.

        Earlier checkpoints come first.

        Args:
            abstract: names, shapes, types and shardings of the arrays wanted, by tree.
            step: the last one by default.

        Raises:
            UserError: there is none, all are damaged, one can't be read or has other arrays.
        """
        leaves = jax.tree.leaves(abstract)
        is_distributed = not all(leaf.sharding.is_fully_addressable for leaf in leaves)
        find = partial(self._find_intact, step, [*abstract])
        intact = broadcast_from_process0(find) if is_distributed else find()
        folder = self.folder / str(intact)
        try:
            differs = difference(saved_arrays(folder, abstract), abstract)
            trees = {} if differs else _restore(folder, abstract)
        except Exception as error:  # Orbax and TensorStore raise many types
            if not is_distributed and not folder.is_dir():
                return self.load(abstract, step)  # the run that trains has just removed it
            # The files are those that were saved, so the checkpoint is not damaged.
            reason = system_reason(error) or f"{type(error).__name__}: {first_line(error)}"
            raise UserError(f"can't read {folder}: {reason}") from error
        if differs:
            raise UserError(
                f"{self.folder.parent / 'config.json'} does not describe the model in checkpoint "
                f"{intact}: {differs}; was it edited?"
            )
        return intact, trees

    def _find_intact(self, step: int | None, trees: list[str]) -> int:
        """Return the step nearest to `step` whose files of these trees are intact."""
        if not (steps := self._read_steps()):
            raise UserError(f"{self.folder.parent} has no checkpoint yet")
        last = steps[-1] if step is None else step
        order = sorted(steps, key=lambda step: (step > last, abs(step - last)))
        for candidate in order:
            if self._is_intact(candidate, trees):
                if candidate != order[0]:
                    message = f"checkpoint {order[0]} is damaged: using checkpoint {candidate}"
                    print(f"{message} instead", file=sys.stderr)
                return candidate
            if not (self.folder / str(candidate)).is_dir():
                return self._find_intact(step, trees)  # the run that trains has just removed it
        raise UserError(f"every checkpoint in {self.folder} is damaged")

    def _is_intact(self, step: int, trees: Iterable[str]) -> bool:
        folder = self.folder / str(step)
        if not read_signed(folder / METRICS, step):
            return False
        for tree in trees:
            manifest = read_signed(folder / tree / MANIFEST, step)
            files = manifest["files"].items() if manifest else [(MANIFEST, "")]
            if any(_hash(folder / tree / name) != digest for name, digest in files):
                return False
        return True

    def quarantine_damaged(self, step: int) -> None:
        """Rename to `damaged-N` the checkpoints after the intact `step` and other damaged ones.

        Superseded ones that a kill has left are deleted.
        """
        self.close()
        broadcast_from_process0(partial(self._quarantine, step))  # all wait for process 0
        with self._writing_errors():
            self._delete_superseded(self._open_manager())

    def _quarantine(self, step: int) -> None:
        intact = self.scores()
        with disk_errors(self.folder):
            for other in self._read_steps():
                if other > step or other not in intact:
                    path = next_free(self.folder / f"damaged-{other}")
                    print(f"moved to {(self.folder / str(other)).rename(path)}", file=sys.stderr)


@dataclass
class LatestAndBest(policies.PreservationPolicy):
    """Preserve the last checkpoint, and of the scheduled ones the latest and the best.

    Orbax's `BestN` would rank temporary ones too, and has no scores that are recorded later.
    """

    config: TrainingConfig
    scores: dict[int, float] = field(default_factory=dict)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        preserved = self.preserved([checkpoint.step for checkpoint in checkpoints])
        return [checkpoint.step in preserved for checkpoint in checkpoints]

    def preserved(self, steps: Sequence[int]) -> set[int]:
        """Return the steps to keep of these, which are in order."""
        scheduled = [step for step in steps if step % self.config.evaluate_every == 0]
        latest, best = scheduled[-self.config.max_to_keep :], by_score(self.scores, scheduled)[:1]
        return {*steps[-1:], *latest, *best}


def by_score(scores: dict[int, float], steps: Iterable[int]) -> list[int]:
    """Sort steps by their scores, the lowest first, and equal ones by step."""
    return sorted(steps, key=lambda step: (scores.get(step, NO_SCORE), step))


def barrier(*, key: str, timeout_ms: int) -> None:
    """Wait for the other processes, but not while an error is raised.

    The manager waits in a `finally` clause: a process that can't write would wait for 20 minutes
    for those that wait for its files, instead of ending with its error.
    """
    if sys.exc_info()[0] is None:
        ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


class ManifestHandler(ocp.StandardCheckpointHandler):
    """Write a manifest beside the arrays; each process hashes the files that it has written."""

    async def async_save(self, directory, *args, **kwargs):
        futures = await super().async_save(directory, *args, **kwargs)
        if process := jax.process_index():  # process 0 hashes its own files in `finalize`
            futures = [ChainedFuture(futures, partial(hash_part, directory, process))]
        return futures

    def finalize(self, directory) -> None:
        """Hash the other files, when all processes have written and before the renaming."""
        super().finalize(directory)
        folder, files = Path(directory), {}
        for part in folder.glob(f"{MANIFEST}.*"):
            files |= json.loads(part.read_bytes())
            part.unlink()
        paths = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
        files |= {n: sha256(p) for n, p in paths.items() if n not in files and p.is_file()}
        step = int(folder.parent.name.partition(".")[0])  # of 500.orbax-checkpoint-tmp
        replace_file(folder / MANIFEST, signed(step, {"files": files}))


def hash_part(directory: Any, process: int) -> None:
    """Write the hashes of a process's files; process 0 moves them into the manifest."""
    folder, name = Path(directory), f"process_{process}"
    paths = [*folder.glob(f"ocdbt.{name}/**/*"), *folder.glob(f"array_metadatas/{name}")]
    files = {str(path.relative_to(folder)): sha256(path) for path in paths if path.is_file()}
    replace_file(folder / f"{MANIFEST}.{process}", files)


def metrics_content(step: int, metrics: dict[str, float]) -> dict[str, Any]:
    """Return metrics as JSON can hold them, with a score."""
    values = {name: float(value) for name, value in ({"score": NO_SCORE} | metrics).items()}
    return signed(step, {n: v if math.isfinite(v) else NO_SCORE for n, v in values.items()})


def signed(step: int, content: dict[str, Any]) -> dict[str, Any]:
    """Add the step and a SHA-256 of all the rest."""
    return (content := {"step": step} | content) | {"sha256": _digest(content)}


def _hash(path: Path) -> str | None:
    """Return the SHA-256 of a file, None if it is missing."""
    with contextlib.suppress(*MISSING), reading_errors(path):
        return sha256(path)
    return None


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_signed(path: Path, step: int) -> dict[str, Any] | None:
    """Return the content of a `signed` file; None if it is missing, damaged or of another step."""
    with reading_errors(path):
        try:
            content = json.loads(path.read_bytes())
            is_intact = content.pop("sha256") == _digest(content) and content["step"] == step
        except (*MISSING, ValueError, TypeError, AttributeError, KeyError, RecursionError):
            return None  # other JSON, or none
    return content if is_intact else None


@contextlib.contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Raise a `UserError` for a file that exists and can't be read: it is not damaged."""
    try:
        yield
    except MISSING:
        raise
    except OSError as error:
        raise UserError(
            f"can't read {path}: {system_reason(error)}; nothing was changed, fix this first"
        ) from error


def save_arguments(trees: Trees) -> ocp.args.Composite:
    """Return Orbax's arguments; process 0 writes arrays that every process has completely."""

    def item(tree: dict[str, Any]) -> ocp.args.StandardSave:
        chunks = {name: ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES) for name in tree}
        return ocp.args.StandardSave(jax.tree.map(_copy_to_host, tree), chunks)

    return ocp.args.Composite(**{name: item(tree) for name, tree in trees.items()})


def _copy_to_host(array: Any) -> Any:
    """Return a copy that Orbax can write while the array is donated.

    An array divided over processes stays one; Orbax copies its shards at once, but not on a CPU.
    """
    if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    if next(iter(array.sharding.device_set)).platform != "cpu":
        return array
    copies = [jax.device_put(np.array(s.data), s.device) for s in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, copies)


def _handler() -> ocp.StandardCheckpointHandler:
    """Return a handler that reads in this process and waits for no other."""
    process = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=process, active_processes={process})
    return ocp.StandardCheckpointHandler(multiprocessing_options=alone)


def _restore(folder: Path, abstract: Trees) -> Trees:
    """Read arrays with the given shapes, types and shardings; each process its shards."""
    handler = _handler()
    return {
        name: handler.restore(folder / name, args=ocp.args.StandardRestore(tree))
        for name, tree in abstract.items()
    }


def saved_arrays(folder: Path, names: Iterable[str]) -> Trees:
    """Return shapes and types of the arrays in these trees of a checkpoint."""
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


def to_named(replicas: TrainState) -> Trees:
    """Return {"parameters": {name: (seeds, ...)}, "optimizer": {...}}.

    The optimizer's arrays are named by number; those for each parameter by number.parameter.
    """
    names = jax.tree.leaves(_optimizer_names(replicas))
    optimizer = dict(zip(names, jax.tree.leaves(replicas.optimizer), strict=True))
    return {"parameters": dict(replicas.parameters), "optimizer": optimizer}


def from_named(replicas: TrainState, trees: Trees) -> TrainState:
    """Invert `to_named`: return `replicas`, whose shapes suffice, with the arrays of `trees`."""
    optimizer = jax.tree.map(trees["optimizer"].get, _optimizer_names(replicas))
    parameters = {name: trees["parameters"][name] for name in replicas.parameters}
    return replicas._replace(parameters=parameters, optimizer=optimizer)


def _optimizer_names(replicas: TrainState) -> Any:
    """Return the optimizer's state with a name in place of each array."""

    def is_by_parameter(node: Any) -> bool:
        return isinstance(node, dict) and node.keys() == replicas.parameters.keys()

    nodes, structure = jax.tree.flatten(replicas.optimizer, is_leaf=is_by_parameter)
    names = [
        # A parameter that another rule updates has no array here.
        {name: f"{i}.{name}" if jax.tree.leaves(a) else a for name, a in node.items()}
        if isinstance(node, dict)
        else f"{i}"
        for i, node in enumerate(nodes)
    ]
    return jax.tree.unflatten(structure, names)
