"""What a call of training reads where data does not lie on the devices: batches of a stream."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Integer, PyTree

from tlite.models.stack import BATCH_AXES
from tlite.training.config import TrainingConfig

BUFFER_BYTES = 2**24  # of the batches of one call, on a device and beside it
MAX_STEPS = 1000  # of one call


class Streamed(NamedTuple):
    """The batches of one call."""

    first: Int[Array, ""]
    """The step that the first of them is for."""
    batches: PyTree[Array]
    """(N, A, B, ...): for N steps, each of A accumulated batches; with a leading axis of members
    outside of `vmap`."""

    def batch(self, step: Int[Array, ""], index: Int[Array, ""] | int) -> PyTree[Array]:
        """That of a step, and of the accumulated ones the one of this index."""
        return jax.tree.map(lambda a: a[step - self.first, index], self.batches)


STREAMED = Streamed(PartitionSpec(), PartitionSpec("member", None, None, BATCH_AXES))
"""Where streamed data lies."""


def streamed_shapes(shape: tuple[int, ...], dtype: Any, mesh: Mesh) -> Streamed:
    """Batches of this shape (M, N, A, B, ...), for a compilation ahead of time."""
    of_first, of_batches = (NamedSharding(mesh, spec) for spec in STREAMED)
    return Streamed(
        jax.ShapeDtypeStruct((), jnp.int32, sharding=of_first),
        jax.ShapeDtypeStruct(shape, dtype, sharding=of_batches),
    )


class StreamedFeed:
    """Batches that a thread reads for the next call while the last one runs.

    Args:
        read: (seed, step, rows) -> those rows of the A * B examples of a step. It must be a
            function of its arguments alone, so that a run goes on to the same bits.
    """

    specs = STREAMED
    nbytes = 0  # of what lies on the devices all the time

    def __init__(
        self,
        read: Callable[[int, int, slice], Integer[np.ndarray, "R ..."]],
        config: TrainingConfig,
        mesh: Mesh,
    ):
        self._read, self._config = read, config
        one = read(config.seed, 0, slice(0, 1))
        sizes = config.seeds, config.accumulate, config.batch_size
        of_step = one.nbytes * np.prod(sizes)
        self.most_steps = int(max(1, min(MAX_STEPS, BUFFER_BYTES // of_step)))
        shape = sizes[0], self.most_steps, *sizes[1:], *one.shape[1:]
        self.shapes = streamed_shapes(shape, one.dtype, mesh)
        parts = self.shapes.batches.sharding.addressable_devices_indices_map(shape).values()
        self._parts = {self._part(index) for index in parts}
        self._thread = ThreadPoolExecutor(1)
        self._ready: dict[int, Future] = {}

    def at(self, step: int, num_steps: int) -> Streamed:
        """The batches of these steps; those after them are begun to be read.

        Raises:
            UserError: the file can't be read.
        """
        end = min(step + num_steps + self.most_steps, self._config.steps)
        for other in self._ready.keys() - range(step, end):
            self._ready.pop(other).cancel()
        for ahead in range(step, max(end, step + num_steps)):
            if ahead not in self._ready:
                self._ready[ahead] = self._thread.submit(self._read_step, ahead)
        read = [self._ready.pop(s).result() for s in range(step, step + num_steps)]
        first, all_batches = self.shapes

        def of_device(index):
            batches = [arrays[self._part(index)] for arrays in read]
            members, *sizes = batches[0].shape
            buffer = np.zeros((members, self.most_steps, *sizes), all_batches.dtype)
            for place, batch in enumerate(batches):
                buffer[:, place] = batch
            return buffer

        lies = all_batches.sharding
        batches = jax.make_array_from_callback(all_batches.shape, lies, of_device)
        return Streamed(jax.device_put(np.int32(step), first.sharding), batches)

    def _part(self, index: tuple[slice, ...]) -> tuple[int, int, int, int]:
        """What a device has of the members, and of the rows of a batch."""
        shape = self.shapes.batches.shape
        (first, last, _), (start, stop, _) = (index[a].indices(shape[a]) for a in (0, 3))
        return first, last, start, stop

    def _read_step(self, step: int) -> dict[tuple, Integer[np.ndarray, "M A R ..."]]:
        size = self._config.batch_size
        batches = range(0, self._config.accumulate * size, size)

        def read(first, last, start, stop):
            rows = [slice(batch + start, batch + stop) for batch in batches]
            seeds = self._config.members[first:last]
            return np.array([[self._read(seed, step, part) for part in rows] for seed in seeds])

        return {part: read(*part) for part in self._parts}

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)
