"""Where the arrays of training lie, and whether they fit: a mesh, and a table from names to axes.

Small models are replicated: every device has all of the parameters and a part of the batch, and
gradients are summed as one vector. Large ones are sharded: every device has a part of each large
array too, and XLA's partitioner inserts what has to be exchanged (Xu et al. 2021, "GSPMD"). There
are both, as small models train 1.15 to 1.25 times faster with the packed sum in `shard_map`.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from tlite.errors import OutOfMemory, UserError, first_line, lack_of_memory
from tlite.models.parameters import is_stacked, shape_in_block
from tlite.models.sharding import BATCH_AXES
from tlite.training.config import TrainingConfig

AXES = "replica", "data", "model"
SHARDED_FROM = 2**28  # parameters of a model: 4 GiB of them, their gradients and Adam's two means
WHOLE_BELOW = 2**16  # elements of an array: what is smaller is not worth an exchange of its own


def make_mesh(devices: list, config: TrainingConfig, num_parameters: int, examples: int) -> Mesh:
    """Return the mesh ("replica", "data", "model") over as many devices as seeds and batch divide.

    Seeds are spread over the devices first, then the examples of a batch over "data" and "model";
    the parameters of a sharded model lie over these two as well. Each process contributes equally
    many devices.

    Args:
        examples: batch size, or a divisor of all batch sizes.

    Raises:
        UserError: a process would have no device.
    """
    places = sorted({device.process_index for device in devices})
    own = [[d for d in devices if d.process_index == place] for place in places]
    there = min(map(len, own)) * len(places)
    by_replica = math.gcd(there, config.seeds)
    of_batch = math.gcd(there // by_replica, examples)
    divided = is_sharded(config, num_parameters)
    by_model = math.gcd(of_batch, config.fsdp_inner) if divided else 1
    shape = by_replica, of_batch // by_model, by_model
    number = math.prod(shape)
    if number % len(places):
        raise UserError(
            f"a batch of {config.batch_size} can't be divided evenly over {len(places)} processes: "
            "take another number of them, or another --batch-size"
        )
    taken = [device for here in own for device in here[: number // len(places)]]
    return Mesh(np.array(taken).reshape(shape), AXES)


def mesh_warnings(num_devices: int, mesh: Mesh, config: TrainingConfig) -> list[str]:
    """Return one warning for idle devices and one for a `fsdp_inner` that has no effect."""
    warnings, (seeds, data, model) = [], mesh.devices.shape
    if idle := num_devices - mesh.size:
        warnings.append(
            f"batch_size {config.batch_size} is not divisible by {num_devices // seeds} devices: "
            f"{idle} of {num_devices} devices stay idle"
        )
    if config.fsdp_inner != model:
        warnings.append(
            f"fsdp_inner is {model}, not {config.fsdp_inner}: it must divide the "
            f"{data * model} devices that share a batch, and the model must be sharded"
        )
    return warnings


def is_sharded(config: TrainingConfig, num_parameters: int) -> bool:
    """Whether a model of this size is divided over the devices."""
    if config.sharding == "auto":
        return num_parameters >= SHARDED_FROM
    return config.sharding == "fsdp"


def partition(
    shapes: Mapping[str, jax.ShapeDtypeStruct], mesh: Mesh | AbstractMesh
) -> dict[str, PartitionSpec]:
    """For each array by name which of its axes lie over "data" and "model".

    Each of the two gets the longest axis that it divides, and where there are two of these not the
    same one. What is small lies whole on every device, and so does what they do not divide. The
    axis of stacked blocks is not divided: a scan reads one block after the other.
    """
    specs = {n: _partition(shape_in_block(n, a), mesh.shape) for n, a in shapes.items()}
    return {n: PartitionSpec(None, *s) if is_stacked(n) else s for n, s in specs.items()}


def _partition(shape: tuple[int, ...], sizes: Mapping[str, int]) -> PartitionSpec:
    if math.prod(shape) < WHOLE_BELOW:
        return PartitionSpec()
    parts, over = list(shape), [()] * len(shape)
    for mesh_axis in BATCH_AXES:
        size = sizes[mesh_axis]
        fits = [axis for axis, part in enumerate(parts) if size > 1 and part % size == 0]
        if fits:
            axis = max(fits, key=lambda axis: (not over[axis], parts[axis], -axis))
            parts[axis] //= size
            over[axis] += (mesh_axis,)
    return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in over))


def unsharded_arrays(
    shapes: Mapping[str, jax.ShapeDtypeStruct], mesh: Mesh | AbstractMesh
) -> list[str]:
    """The large arrays that no axis of the mesh divides: each device has all of them."""
    specs = partition(shapes, mesh)
    return [
        name
        for name, leaf in shapes.items()
        if math.prod(shape_in_block(name, leaf)) >= WHOLE_BELOW
        and not any(specs[name])
        and mesh.size > 1
    ]


class ShardingStrategy:
    """What a step does to its arrays because of where they lie; here nothing."""

    def unchanged(self, arrays: PyTree) -> PyTree:
        return arrays

    shard_batch = constrain_batch = gather_params = reduce_scatter_grads = unchanged
    psum = all_gather = unchanged


@dataclass(frozen=True)
class DataParallel(ShardingStrategy):
    """Inside `shard_map` over "data": each of the shards takes its part of a batch."""

    num_shards: int

    def shard_batch(self, batch: PyTree) -> PyTree:
        """This shard's rows."""

        def rows(a):
            share = a.shape[0] // self.num_shards
            return jax.lax.dynamic_slice_in_dim(a, jax.lax.axis_index("data") * share, share)

        return jax.tree.map(rows, batch)

    def psum(self, sums: PyTree) -> PyTree:
        """The sums of all shards, in one exchange: what is small is packed into one vector."""
        if self.num_shards == 1:
            return sums
        leaves, structure = jax.tree.flatten(sums)
        small = [leaf for leaf in leaves if leaf.size < WHOLE_BELOW]
        large = [leaf for leaf in leaves if leaf.size >= WHOLE_BELOW]
        vector, unravel = ravel_pytree(small)
        vector, large = jax.lax.psum((vector, large), "data")
        small, large = iter(unravel(vector)), iter(large)
        summed = [next(small if leaf.size < WHOLE_BELOW else large) for leaf in leaves]
        return jax.tree.unflatten(structure, summed)

    def all_gather(self, rows: PyTree) -> PyTree:
        """What every shard has found of its rows (N, B / shards), as of whole batches (N, B)."""
        return jax.lax.all_gather(rows, "data", axis=1, tiled=True)


@dataclass(frozen=True)
class FSDP(ShardingStrategy):
    """Whole arrays, of which XLA is told how they are divided."""

    mesh: Mesh
    specs: dict[str, PartitionSpec]

    def shard_batch(self, batch: PyTree) -> PyTree:
        """The whole batch, divided over the devices."""
        spec = lambda a: PartitionSpec(BATCH_AXES, *[None] * (a.ndim - 1))  # noqa: E731
        return jax.tree.map(lambda a: self._put(a, spec(a)), batch)

    constrain_batch = shard_batch  # also of what was divided before it came here

    def gather_params(self, parameters: dict) -> dict:
        """Tables whole: else XLA gathers the activations of all the batch around a look-up."""
        return {
            name: self._put(a, PartitionSpec()) if name.endswith("table") else a
            for name, a in parameters.items()
        }

    def reduce_scatter_grads(self, gradient: dict) -> dict:
        """Divided as the parameters are."""
        return {name: self._put(a, self.specs[name]) for name, a in gradient.items()}

    def _put(self, a, spec: PartitionSpec):
        return jax.lax.with_sharding_constraint(a, NamedSharding(self.mesh, spec))


def put(tree: PyTree, mesh: Mesh, spec: PartitionSpec) -> PyTree:
    """Arrays that every process has whole as arrays of the mesh: each device gets its part.

    What lies there already stays as it is.
    """
    sharding = NamedSharding(mesh, spec)

    def one(a):
        if isinstance(a, jax.Array) and a.sharding.is_equivalent_to(sharding, a.ndim):
            return a
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key) or jax.process_count() == 1:
            return jax.device_put(a, sharding)
        host = np.asarray(a)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(one, tree)


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
    """Arrays on every device of the mesh. The devices of a CPU share one copy in its memory."""
    if mesh.local_devices[0].platform != "cpu":
        return put(tree, mesh, PartitionSpec())
    sharding = NamedSharding(mesh, PartitionSpec())

    def one(a):
        # XLA uses a host's buffer as it is where its alignment is XLA's own.
        host = np.asarray(jax.device_put(a, mesh.local_devices[0]))
        shards = [jax.device_put(host, device, may_alias=True) for device in mesh.local_devices]
        return jax.make_array_from_single_device_arrays(host.shape, sharding, shards)

    return jax.tree.map(one, tree)


def bytes_per_device(tree: PyTree) -> int:
    """Of arrays, or of shapes, of which all devices have as much."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(a.sharding.shard_shape(a.shape)) * a.dtype.itemsize for a in leaves)


def check_fits(what: str, needed: int, devices: Sequence, *, replicated: int = 0) -> None:
    """Raise if `what` needs more memory than is free; nothing is checked where that is unknown.

    Args:
        needed: bytes on each of the devices. The devices of a CPU share its memory.
        replicated: bytes of arrays from `replicate`, which a CPU holds once for all its devices.

    Raises:
        OutOfMemory: with what is needed and what is free, in GiB.
    """
    if devices[0].platform == "cpu":
        needed, free = needed * len(devices) + replicated, free_memory()
    else:
        needed += replicated
        stats = devices[0].memory_stats() or {}
        free = stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0) or None
    if free is not None and needed > free:
        raise OutOfMemory(
            f"{what} would need {in_gib(needed)} of memory, and {in_gib(free)} are free"
        )


@contextlib.contextmanager
def out_of_memory(what: str) -> Iterator[None]:
    """Turn a lack of memory that only the allocation shows into an `OutOfMemory`."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not lack_of_memory(error):
            raise
        reason = first_line(error)
        raise OutOfMemory(f"not enough memory for {what} ({reason}): make it smaller") from error


def free_memory() -> int | None:
    """Bytes this process can still get: of the machine, or of its control group if that is less."""
    found, group = [], Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = dict(line.split()[:2] for line in lines)
        found.append(int(sizes["MemAvailable:"]) * 1024)
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
        parts = dict(line.split() for line in lines)
        # The cache of files counts as used, and is given up where memory is wanted.
        free = int(parts["inactive_file"]) + int(parts["active_file"])
        free -= int((group / "memory.current").read_text(encoding="ascii"))
        found.append(int((group / "memory.max").read_text(encoding="ascii")) + free)
    return min(found, default=None)


def in_gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
