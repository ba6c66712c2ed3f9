"""Checkpoints of a run: one folder per saved step, which is complete or absent.

    500/parameters/      Orbax's files of the arrays (seeds, ...), and manifest.json
        optimizer/       the same for the state of the optimizer
        ema/             the same for the moving average of the parameters, if there is one
        metrics/metrics  JSON with the validation score

Orbax's `AsyncCheckpointer` writes a checkpoint in the background, into a temporary folder that gets
its final name when it is complete. A superseded checkpoint is renamed before it is deleted, so a
half-deleted one is never loaded. Orbax does not detect damaged files: `manifest.json` has the
SHA-256 of each file of its folder, and `load` compares them. Of arrays that several processes hold,
process 0 chooses the checkpoint; each process then reads its part without waiting for the others.
"""

import contextlib
import hashlib
import itertools
import json
import math
import shutil
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from tlite.distributed import broadcast_from_process0, is_process0
from tlite.errors import (
    UserError,
    disk_errors,
    first_line,
    memory_error_message,
    system_reason,
    write_error,
)
from tlite.models.low_rank import B, LowRank, merge_low_rank
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
DELETING = ".deleting"  # suffix of superseded checkpoints while they are removed
EVERY_STEP = TrainingConfig(evaluate_every=1)
CHUNK_BYTES = 2**26  # Orbax reads complete chunks, however small the part that is needed
MISSING = FileNotFoundError, NotADirectoryError

Trees = dict[str, dict[str, Any]]


class Checkpoints(contextlib.AbstractContextManager):
    """The latest scheduled checkpoints, the best one and the trunk's, in one folder.

    The trunk is the step at which a WSD decay begins (`TrainingConfig.trunk`). A checkpoint outside
    of the evaluation schedule (after an interruption, by the clock, at the end) is kept until the
    next one. When several processes train, all of them must call the same methods.

    Args:
        config: `evaluate_every` is the schedule, `max_to_keep` the number of latest checkpoints
            that are kept. By default every step is scheduled.
        writing: True in the run that trains: unfinished checkpoints of a killed one are deleted.
    """

    def __init__(self, folder: Path, config: TrainingConfig = EVERY_STEP, *, writing: bool = False):
        self.folder, self._config, self._writing = folder.absolute(), config, writing
        self._writer: ocp.AsyncCheckpointer | None = None
        if writing:
            with disk_errors(folder):
                self.folder.mkdir(exist_ok=True)
                self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        for pattern in ("*.orbax-checkpoint-tmp*", f"*{DELETING}") if is_process0() else ():
            for path in self.folder.glob(pattern):
                shutil.rmtree(path)

    def save(self, step: int, trees: Trees) -> None:
        """Write arrays by name in the background, after the previous checkpoint is complete.

        They are copied to the host, and may be donated afterwards.
        """
        self.wait()
        chunks = ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES)
        with self._writing_errors():
            self._writer = self._writer or make_writer()
            metrics = ocp.args.JsonSave(score_content(step, NO_SCORE))
            arguments: dict[str, Any] = {"metrics": metrics}
            for name, tree in trees.items():
                copy = jax.tree.map(_copy_to_host, tree)
                arguments[name] = ocp.args.StandardSave(copy, dict.fromkeys(tree, chunks))
            self._writer.save(self.folder / str(step), args=ocp.args.Composite(**arguments))

    def record_score(self, step: int, score: float) -> None:
        """Write the score of a checkpoint, the lowest is the best; delete superseded ones."""
        self.wait()
        with self._writing_errors():
            if is_process0():
                replace_file(self.folder / str(step) / METRICS, score_content(step, score))
            self._delete_superseded()

    def _delete_superseded(self) -> None:
        """Delete intact checkpoints, except those needed now or at the trunk."""
        if is_process0():
            scores = self.scores()
            steps = [*scores]  # damaged ones are not deleted
            needed, trunk = self._needed(scores, steps), self._config.trunk
            if trunk in steps:  # a run may branch off there, and needs what was needed then
                needed |= self._needed(scores, [s for s in steps if s <= trunk]) | {trunk}
            for step in {*steps} - needed:
                path = self.folder / str(step)
                path.rename(path.with_suffix(DELETING))
            self._remove_unfinished()

    def _needed(self, scores: dict[int, float], steps: list[int]) -> set[int]:
        """Return the last step, the latest scheduled ones, the best, and those averaged in it."""
        config = self._config
        # The end of a run counts as unscheduled: the run may be extended.
        scheduled = [step for step in steps if step % config.evaluate_every == 0]
        latest = scheduled[-max(config.max_to_keep, config.average_last) :]
        needed = {*steps[-1:], *latest}
        if best := best_of(scores, scheduled):
            needed.add(best)
            needed.update(config.average_steps(best) if config.best_weights == "average" else ())
        return needed

    def wait(self) -> None:
        """Wait until the last checkpoint is complete, and delete superseded ones."""
        if self._writer:
            with self._writing_errors():
                self._writer.wait_until_finished()
                self._delete_superseded()

    @contextlib.contextmanager
    def _writing_errors(self) -> Iterator[None]:
        """Raise a `UserError` if Orbax or the disk fails, and remove incomplete checkpoints."""
        try:
            if is_process0() and not self.folder.is_dir():
                # Orbax would create the folder again.
                raise UserError(f"{self.folder} was removed: nothing more can be saved there")
            yield
        except Exception as error:
            writer, self._writer = self._writer, None
            with contextlib.suppress(Exception):  # the same error again
                writer.close()
            with contextlib.suppress(OSError):
                self._remove_unfinished()
            is_final = isinstance(error, UserError) or memory_error_message(error)
            if is_final or not isinstance(error, OSError | ValueError | RuntimeError):
                raise
            raise write_error(self.folder, error) from error  # TensorStore raises all three

    def close(self) -> None:
        """Wait, and end the background threads."""
        self.wait()
        if self._writer:
            self._writer.close()
            self._writer = None

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
        return best_of(scores, self._config.eval_steps(scores))

    def eval_steps(self) -> list[int]:
        """Return the scheduled steps, oldest first; all if none is scheduled."""
        return self._config.eval_steps(self.scores()) or self._read_steps()

    def scores(self) -> dict[int, float]:
        """Return the scores of all checkpoints whose metrics are intact, oldest first."""
        steps = self._read_steps()
        metrics = {s: read_checksummed(self.folder / str(s) / METRICS, s) for s in steps}
        return {step: content["score"] for step, content in metrics.items() if content}

    def load(
        self, abstract: Trees, step: int | None = None, *, exact: bool = False
    ) -> tuple[int, Trees]:
        """Return the step of an intact checkpoint, and its arrays.

        If that checkpoint is damaged or was removed, load the nearest intact one before it, or else
        after it, with a warning; with `exact`, raise.

        Args:
            abstract: names, shapes, types and shardings of the arrays wanted, by tree.
            step: the last one by default.
            exact: raise instead of loading another checkpoint.

        Raises:
            UserError: there is no checkpoint, all are damaged, one can't be read, or its arrays
                are not those of `abstract`.
        """
        leaves = jax.tree.leaves(abstract)
        is_distributed = not all(leaf.sharding.is_fully_addressable for leaf in leaves)
        find = partial(self._find_intact, step, [*abstract], exact)
        intact = broadcast_from_process0(find) if is_distributed else find()
        folder = self.folder / str(intact)
        try:
            differs = difference(saved_arrays(folder, abstract), abstract)
            trees = {} if differs else _restore(folder, abstract)
        except Exception as error:  # Orbax and TensorStore raise many types
            if not is_distributed and not folder.is_dir():
                return self.load(
                    abstract, step, exact=exact
                )  # the run that trains has just removed it
            # The files are those that were saved, so the checkpoint is not damaged.
            reason = system_reason(error) or f"{type(error).__name__}: {first_line(error)}"
            raise UserError(f"can't read {folder}: {reason}") from error
        if differs:
            raise UserError(
                f"{self.folder.parent / 'config.json'} does not describe the model in checkpoint "
                f"{intact}: {differs}; was it edited?"
            )
        return intact, trees

    def load_mean(
        self, abstract: dict[str, Any], steps: list[int], low_rank: LowRank | None = None
    ) -> dict[str, jax.Array]:
        """Return the mean of the parameters of several checkpoints.

        Low-rank updates are first merged into their matrices, as the product of the means of A and
        B is not the mean of their products. The result has the A of the last step, and B = 0.

        Args:
            abstract: shapes, types and shardings of the parameters by name.

        Raises:
            UserError: a checkpoint is damaged or removed, or can't be read.
        """
        total: dict[str, jax.Array] = {}
        for step in steps:
            _, trees = self.load({"parameters": abstract}, step, exact=True)
            with jax.default_matmul_precision("float32"):
                merged = merge_low_rank(low_rank, trees["parameters"])
            total = {name: total[name] + a if total else a for name, a in merged.items()}
        updates = trees["parameters"].keys() - total.keys()
        mean = {name: a / len(steps) for name, a in total.items()}
        for name in updates:
            a = trees["parameters"][name]
            mean[name] = jnp.zeros_like(a) if name.endswith(f".{B}") else a
        return {name: jax.device_put(mean[name], a.sharding) for name, a in abstract.items()}

    def _find_intact(self, step: int | None, trees: list[str], exact: bool) -> int:
        """Return the last step up to `step` with intact `trees`, or else the first after it."""
        if not (steps := self._read_steps()):
            raise UserError(f"{self.folder.parent} has no checkpoint yet")
        last = steps[-1] if step is None else step
        order = sorted(steps, key=lambda s: (s > last, abs(s - last)))
        if exact:
            if self._is_intact(last, trees):
                return last
            raise UserError(
                f"checkpoint {last} in {self.folder} is damaged or missing: to average the others, "
                "delete its folder if it is there"
            )
        for candidate in order:
            if self._is_intact(candidate, trees):
                if candidate != last:
                    state = "damaged" if last in steps else "no longer there"
                    message = f"checkpoint {last} is {state}: using checkpoint {candidate} instead"
                    print(message, file=sys.stderr)
                return candidate
            if not (self.folder / str(candidate)).is_dir():
                # The run that trains has just removed it.
                return self._find_intact(step, trees, exact)
        raise UserError(f"every checkpoint in {self.folder} is damaged")

    def _is_intact(self, step: int, trees: Iterable[str]) -> bool:
        folder = self.folder / str(step)
        manifests = {tree: read_checksummed(folder / tree / MANIFEST, step) for tree in trees}
        if not read_checksummed(folder / METRICS, step) or None in manifests.values():
            return False
        return all(
            has_hash(folder / tree / name, digest)
            for tree, manifest in manifests.items()
            for name, digest in manifest["files"].items()
        )

    def quarantine_damaged(self, step: int) -> None:
        """Rename to `damaged-N` the checkpoints after `step`, and those without intact metrics.

        Superseded ones that a killed process has left are deleted.
        """

        def quarantine() -> None:
            intact = self.scores()
            for other in self._read_steps():
                if other > step or other not in intact:
                    path = next_free(self.folder / f"damaged-{other}")
                    (self.folder / str(other)).rename(path)
                    print(f"checkpoint {other} is damaged: moved to {path}", file=sys.stderr)
            self._delete_superseded()

        self.wait()
        with disk_errors(self.folder):
            broadcast_from_process0(quarantine)  # all wait for process 0


def best_of(scores: dict[int, float], steps: Iterable[int]) -> int | None:
    """Return the step with the lowest score, the first of equal ones; None without steps."""
    return min(steps, key=lambda step: (scores.get(step, NO_SCORE), step), default=None)


def make_writer() -> ocp.AsyncCheckpointer:
    """Return a writer of arrays with manifests, and of metrics."""
    handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
    handlers.add(None, ocp.args.StandardSave, ManifestHandler)
    handlers.add("metrics", ocp.args.JsonSave, ocp.JsonCheckpointHandler(Path(METRICS).name))
    return ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(handler_registry=handlers))


class ManifestHandler(ocp.StandardCheckpointHandler):
    """Write a manifest beside the arrays."""

    def finalize(self, directory) -> None:
        """Hash the files in process 0, after all processes have written and before the renaming."""
        super().finalize(directory)
        folder = Path(directory)
        files = {str(p.relative_to(folder)): sha256(p) for p in folder.rglob("*") if p.is_file()}
        step = int(folder.parent.name.partition(".")[0])  # of 500.orbax-checkpoint-tmp
        replace_file(folder / MANIFEST, with_checksum(step, {"files": files}))


def score_content(step: int, score: float) -> dict[str, Any]:
    """Return the content of the metrics file; JSON has no NaN."""
    return with_checksum(step, {"score": float(score) if math.isfinite(score) else NO_SCORE})


def with_checksum(step: int, content: dict[str, Any]) -> dict[str, Any]:
    """Return the content with the step, and a SHA-256 of both."""
    return (content := {"step": step} | content) | {"sha256": _digest(content)}


def has_hash(path: Path, digest: str) -> bool:
    """Return True if the file exists and has this SHA-256."""
    with contextlib.suppress(*MISSING), reading_errors(path):
        return sha256(path) == digest
    return False


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_checksummed(path: Path, step: int) -> dict[str, Any] | None:
    """Return what `with_checksum` wrote; None if it is missing, damaged or of another step."""
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


def _copy_to_host(array: Any) -> Any:
    """Return a copy that Orbax can write while the array is donated.

    Process 0 writes arrays that every process has completely. One divided over processes stays
    divided: Orbax copies its shards at once, except on a CPU, where they are copied here.
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
            found, wanted = (f"{a.dtype}{[*a.shape]}" if a is not None else "-" for a in arrays)
            if found != wanted:
                return f"its {name} is {found}, not {wanted}"
    return ""


def to_named(replicas: TrainState) -> Trees:
    """Return {"parameters": {name: (seeds, ...)}, "optimizer": {...}}, and "ema" if there is one.

    The optimizer's arrays are named by number; those for each parameter by number.parameter,
    and if it has several, by number.parameter.index.
    """
    names = jax.tree.leaves(_optimizer_names(replicas))
    optimizer = dict(zip(names, jax.tree.leaves(replicas.optimizer), strict=True))
    trees = {"parameters": dict(replicas.parameters)}
    trees |= {"ema": dict(replicas.ema)} if replicas.ema else {}
    return trees | ({"optimizer": optimizer} if optimizer else {})  # Orbax writes no empty one


def from_named(replicas: TrainState, trees: Trees) -> TrainState:
    """Invert `to_named`: return `replicas`, whose shapes suffice, with the arrays of `trees`."""
    optimizer = jax.tree.map(trees.get("optimizer", {}).get, _optimizer_names(replicas))
    parameters = {name: trees["parameters"][name] for name in replicas.parameters}
    ema = None if replicas.ema is None else {name: trees["ema"][name] for name in replicas.ema}
    return replicas._replace(parameters=parameters, optimizer=optimizer, ema=ema)


def _optimizer_names(replicas: TrainState) -> Any:
    """Return the optimizer's state with a name in place of each array."""
    numbers = itertools.count()

    def is_by_parameter(node: Any) -> bool:
        return isinstance(node, dict) and node.keys() <= replicas.parameters.keys()

    def name_arrays(node: Any) -> Any:
        number = next(numbers)
        if not is_by_parameter(node):
            return f"{number}"
        return {name: name_leaves(f"{number}.{name}", arrays) for name, arrays in node.items()}

    def name_leaves(name: str, arrays: Any) -> Any:  # none if another optimizer has the parameter
        leaves, structure = jax.tree.flatten(arrays)
        names = [name] if len(leaves) == 1 else [f"{name}.{i}" for i in range(len(leaves))]
        return structure.unflatten(names)

    return jax.tree.map(name_arrays, replicas.optimizer, is_leaf=is_by_parameter)
