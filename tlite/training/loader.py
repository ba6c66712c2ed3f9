"""What a call of training reads: data that lies on the devices, or batches of a stream.

A feed has `specs` and `shapes` of what it gives, the bytes (`nbytes`) that it keeps on a device,
how many steps a call may have at most (`most_steps`), `at(step, num_steps)` and `close()`.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Integer, PyTree

from tlite.models.sharding import BATCH_AXES
from tlite.training.config import TrainingConfig
from tlite.training.sharding import bytes_per_device, replicate

BUFFER_BYTES = 2**24  # of the batches of one call, on a device and beside it
MAX_STEPS = 1000  # of one call


class Streamed(NamedTuple):
    """The batches of one call."""

    batches: PyTree[Array]
    """(M, N, A, B, ...): by replica, for N steps, each of A accumulated batches; of one step of one
    replica (A, B, ...)."""


STREAMED = Streamed(PartitionSpec("replica", None, None, BATCH_AXES))
"""Where streamed data lies."""


class Resident:
    """Arrays that lie whole on every device: each step of each call draws its batch from them."""

    most_steps, specs = MAX_STEPS, PartitionSpec()

    def __init__(self, data: Any, mesh: Mesh):
        self.shapes = self._data = replicate(data, mesh)
        self.nbytes = bytes_per_device(self._data)

    def at(self, step: int, num_steps: int) -> Any:
        """What the call for these steps reads."""
        return self._data

    def close(self) -> None:
        pass


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
        sizes = config.seeds, config.gradient_accumulation_steps, config.batch_size
        of_step = one.nbytes * np.prod(sizes)
        self.most_steps = int(max(1, min(MAX_STEPS, BUFFER_BYTES // of_step)))
        shape = sizes[0], self.most_steps, *sizes[1:], *one.shape[1:]
        lies = NamedSharding(mesh, self.specs.batches)
        self.shapes = Streamed(jax.ShapeDtypeStruct(shape, one.dtype, sharding=lies))
        parts = lies.addressable_devices_indices_map(shape).values()
        self._parts = {self._part(index) for index in parts}
        self._thread: ThreadPoolExecutor | None = None  # from the first call until `close`
        self._ready: dict[int, Future] = {}

    def at(self, step: int, num_steps: int) -> Streamed:
        """The batches of these steps; those after them are begun to be read.

        Raises:
            UserError: the file can't be read.
        """
        self._thread = self._thread or ThreadPoolExecutor(1)
        end = min(step + num_steps + self.most_steps, self._config.steps)
        for other in self._ready.keys() - range(step, end):
            self._ready.pop(other).cancel()
        for ahead in range(step, max(end, step + num_steps)):
            if ahead not in self._ready:
                self._ready[ahead] = self._thread.submit(self._read_step, ahead)
        read = [self._ready.pop(s).result() for s in range(step, step + num_steps)]
        whole = self.shapes.batches

        def of_device(index):
            batches = [arrays[self._part(index)] for arrays in read]
            replicas, *sizes = batches[0].shape
            buffer = np.zeros((replicas, self.most_steps, *sizes), whole.dtype)
            for place, batch in enumerate(batches):
                buffer[:, place] = batch
            return buffer

        return Streamed(jax.make_array_from_callback(whole.shape, whole.sharding, of_device))

    def _part(self, index: tuple[slice, ...]) -> tuple[int, int, int, int]:
        """What a device has of the replicas, and of the rows of a batch."""
        shape = self.shapes.batches.shape
        (first, last, _), (start, stop, _) = (index[a].indices(shape[a]) for a in (0, 3))
        return first, last, start, stop

    def _read_step(self, step: int) -> dict[tuple, Integer[np.ndarray, "M A R ..."]]:
        size = self._config.batch_size
        batches = range(0, self._config.gradient_accumulation_steps * size, size)

        def read(first, last, start, stop):
            rows = [slice(batch + start, batch + stop) for batch in batches]
            seeds = self._config.seed_range[first:last]
            return np.array([[self._read(seed, step, part) for part in rows] for seed in seeds])

        return {part: read(*part) for part in self._parts}

    def close(self) -> None:
        """End the thread; another call of `at` starts a new one."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self._thread, self._ready = None, {}
