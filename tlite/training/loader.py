"""Sources of batches: arrays on the devices, or batches that a thread prefetches.

A batch is a function of (seed, step, row) alone, so that a resumed run sees the same batches.
One call of the compiled program trains several steps. `batches(step, num_steps)` returns the arrays
that it needs; inside the program `at_step` selects those of a step, and the function that
`bind_micro_batches` returns those of a micro-batch.
"""

import abc
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Key, PyTree

from tlite.training.config import TrainingConfig
from tlite.training.sharding import FSDP, DataParallel, replicate

MAX_BUFFER_BYTES = 2**24  # for the batches of one call
MAX_STEPS_PER_CALL = 1000


class Loader(abc.ABC):
    """A `Trainer`'s source of batches."""

    max_steps_per_call: int = MAX_STEPS_PER_CALL
    arrays: PyTree = ()
    """Arrays that stay on the devices between calls."""
    specs: PyTree = PartitionSpec()
    """Partition specs of the result of `batches`."""
    shapes: PyTree
    """Shapes, types and shardings of the result of `batches`."""
    seed_axis: int | None = None
    """Axis of the seeds in the result of `batches`; None if all seeds use the same arrays."""

    @abc.abstractmethod
    def batches(self, step: int, num_steps: int) -> PyTree:
        """Return the arrays of the call for `num_steps` steps, of which `step` is the first."""

    def at_step(self, data: PyTree, index: Int[Array, ""] | int) -> PyTree:
        """Return the part of `data`, from `batches`, for step `index` of the call (traced)."""
        return data

    @abc.abstractmethod
    def bind_micro_batches(
        self,
        function: Callable[[PyTree, Int[Array, "B"]], PyTree],
        task: Any,
        config: TrainingConfig,
        strategy: DataParallel | FSDP,
        data: PyTree,
        rng: Key[Array, ""],
        step: Int[Array, ""],
    ) -> Callable[[Int[Array, ""] | int], PyTree]:
        """Return the function of i that calls `function` on micro-batch i of a step (traced).

        Args:
            function: (batch, indices) -> result, where `batch` has the rows of this device, and
                `indices` (B,) are their positions among all examples of the step.
            data: result of `at_step`.
        """

    def close(self) -> None:  # noqa: B027
        """Stop threads; `batches` may be called again."""


class DeviceDataset(Loader):
    """Arrays, in full on every device, from which `task.draw` draws the batch of each step."""

    def __init__(self, arrays: Any, mesh: Mesh):
        self.shapes = self.arrays = replicate(arrays, mesh)

    def batches(self, step: int, num_steps: int) -> Any:
        return self.arrays

    def bind_micro_batches(self, function, task, config, strategy, data, rng, step):
        # Each device draws the whole batch, which costs next to nothing, and takes its rows.
        num_micro_batches, size = config.gradient_accumulation_steps, config.batch_size

        def apply_to_rows(batch, index):
            rows = jnp.arange(len(jax.tree.leaves(batch)[0]))
            return function(*strategy.take_rows((batch, index * size + rows)))

        def apply_to_bucket(index):
            index_in_run = step * num_micro_batches + index
            branches = [
                lambda draw=draw: apply_to_rows(draw(data, rng, index_in_run), index)
                for draw in task.buckets.draws
            ]
            return jax.lax.switch(task.buckets.choose(data, rng, index_in_run), branches)

        if task.buckets:
            return apply_to_bucket
        examples = task.draw(data, rng, step, num_micro_batches * size)

        def apply_to_slice(index):
            take = partial(jax.lax.dynamic_slice_in_dim, start_index=index * size, slice_size=size)
            return apply_to_rows(jax.tree.map(take, examples), index)

        return apply_to_slice


class PrefetchingLoader(Loader):
    """Batches that a thread reads for the next call while the devices compute.

    `batches` returns arrays (M, N, A, B, ...): M seeds, N = `max_steps_per_call` steps of A
    micro-batches of B examples. A shorter call fills only its first steps.

    `task.draw` and the draws of `task.buckets` are not used.

    Args:
        read: (seed, step, rows) -> these rows of the A * B examples of a step, a pytree of arrays
            (R, ...). It must be a function of its arguments alone.
        max_steps: largest number of steps of a call.
    """

    specs, seed_axis = PartitionSpec("replica", None, None, "data"), 0

    def __init__(
        self,
        read: Callable[[int, int, slice], PyTree],
        config: TrainingConfig,
        mesh: Mesh,
        max_steps: int = MAX_STEPS_PER_CALL,
    ):
        self._read, self._config = read, config
        example = read(config.seed, 0, slice(0, 1))
        num_micro_batches, size = config.gradient_accumulation_steps, config.batch_size
        example_bytes = sum(a.nbytes for a in jax.tree.leaves(example))
        step_bytes = example_bytes * config.seeds * num_micro_batches * size
        self.max_steps_per_call = int(max(1, min(max_steps, MAX_BUFFER_BYTES // step_bytes)))
        self._shape = config.seeds, self.max_steps_per_call, num_micro_batches, size
        sharding = NamedSharding(mesh, self.specs)

        def with_axes(a):
            return jax.ShapeDtypeStruct((*self._shape, *a.shape[1:]), a.dtype, sharding=sharding)

        self.shapes = jax.tree.map(with_axes, example)
        indices = sharding.addressable_devices_indices_map(self._shape).values()
        self._local_shards = {self._shard_bounds(index) for index in indices}
        self._thread: ThreadPoolExecutor | None = None  # from the first call until `close`
        self._pending: dict[int, Future] = {}  # shards of a step, by step

    def _shard_bounds(self, index: tuple[slice, ...]) -> tuple[int, int, int, int]:
        """Return (first seed, last seed + 1, first row, last row + 1) of a device's shard."""
        return *index[0].indices(self._shape[0])[:2], *index[3].indices(self._shape[3])[:2]

    def batches(self, step: int, num_steps: int) -> PyTree:
        """Return the batches of these steps, and start to read those of the next call.

        Raises:
            UserError: a file can't be read.
        """
        self._thread = self._thread or ThreadPoolExecutor(1)
        end = min(step + num_steps + self.max_steps_per_call, self._config.steps)
        for skipped_step in self._pending.keys() - range(step, end):
            self._pending.pop(skipped_step).cancel()
        for next_step in range(step, max(end, step + num_steps)):
            if next_step not in self._pending:
                self._pending[next_step] = self._thread.submit(self._read_step, next_step)
        steps = [self._pending.pop(s).result() for s in range(step, step + num_steps)]

        def make_array(shape: jax.ShapeDtypeStruct, *shards_by_step: dict):
            def make_shard(index):
                bounds = self._shard_bounds(index)
                shards = [by_bounds[bounds] for by_bounds in shards_by_step]
                num_seeds, *axes = shards[0].shape
                buffer = np.zeros((num_seeds, self.max_steps_per_call, *axes), shape.dtype)
                np.stack(shards, axis=1, out=buffer[:, : len(shards)])
                return buffer

            return jax.make_array_from_callback(shape.shape, shape.sharding, make_shard)

        return jax.tree.map(make_array, self.shapes, *steps)

    def _read_step(self, step: int) -> PyTree:
        """Return a pytree of {`_shard_bounds`: shard (M, A, R, ...)} of one step."""
        _, _, num_micro_batches, size = self._shape

        def read_shard(first_seed, end_seed, first_row, end_row):
            batches = [
                self._read(seed, step, slice(i * size + first_row, i * size + end_row))
                for seed in self._config.seed_range[first_seed:end_seed]
                for i in range(num_micro_batches)
            ]
            axes = end_seed - first_seed, num_micro_batches
            return jax.tree.map(lambda *a: np.stack(a).reshape(*axes, *a[0].shape), *batches)

        shards = {bounds: read_shard(*bounds) for bounds in self._local_shards}
        return jax.tree.map(lambda *a: dict(zip(shards, a, strict=True)), *shards.values())

    def at_step(self, data: PyTree, index: Any) -> PyTree:
        return jax.tree.map(lambda a: a[:, index], data)

    def bind_micro_batches(self, function, task, config, strategy, data, rng, step):
        def apply_to_micro_batch(index):
            rows, size = jax.tree.map(lambda a: a[index], data), config.batch_size
            batch = strategy.constrain_batch(task.unpack_rows(rows))
            return function(batch, strategy.take_rows(index * size + jnp.arange(size)))

        return apply_to_micro_batch

    def close(self) -> None:
        """End the thread; another call of `batches` starts a new one."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self._thread, self._pending = None, {}


def map_dataset(make: Callable[[int], Sequence[Any]]) -> Callable[..., PrefetchingLoader]:
    """Return a source for `Trainer` from random-access datasets, such as Grain's `MapDataset`.

    Example r of step s is `make(seed)[s * A * B + r]`, for A micro-batches of B examples. The
    dataset shuffles, mixes and transforms; it must be as long as the run, or repeat.

    Example, for windows of context + 1 tokens (`pip install ".[grain]"`):
        def mixture(seed):
            plays = grain.MapDataset.source(play_windows).shuffle(seed=seed).repeat()
            prose = grain.MapDataset.source(prose_windows).shuffle(seed=seed).repeat()
            return grain.MapDataset.mix([plays, prose], weights=[0.7, 0.3])

        trainer = Trainer(generator_task(config), training, map_dataset(mixture))

    Args:
        make: seed -> dataset, whose examples are pytrees of arrays of equal shapes. An example
            must not be None: filter the source, not the `MapDataset`.
    """
    dataset = cache(make)

    def load(config: TrainingConfig, mesh: Mesh) -> PrefetchingLoader:
        size = config.gradient_accumulation_steps * config.batch_size

        def read(seed: int, step: int, rows: slice) -> PyTree:
            examples = [dataset(seed)[step * size + row] for row in range(rows.start, rows.stop)]
            return jax.tree.map(lambda *a: np.stack([np.asarray(x) for x in a]), *examples)

        return PrefetchingLoader(read, config, mesh)

    return load
