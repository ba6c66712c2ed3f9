"""What `test_sharded_checkpoints` starts as processes: they save and load arrays that are divided.

python -m tests.helpers.sharded_program FOLDER COORDINATOR PROCESSES PROCESS COMMAND STEP...
"""

import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tlite.parallel.processes import join, leave
from tlite.training import TrainingConfig
from tlite.training.checkpoints import Checkpoints

SHAPES = {
    "parameters": {
        "rows.kernel": ((2, 16, 24), (None, "model")),
        "columns.kernel": ((2, 6, 16), (None, None, "model")),
        "both.kernel": ((2, 8, 8), (None, "data", "model")),
        "bias": ((2, 5), ()),
        "scale": ((2, 8), ("data",)),
    },
    "optimizer": {"0": ((2,), ()), "1.rows.kernel": ((2, 16, 24), (None, "model", None))},
}


def is_leaf(node) -> bool:
    return isinstance(node, tuple)


def trees(step: int) -> dict:
    """Arrays on the host, of a step."""
    random = np.random.default_rng(step)

    def array(leaf):
        return np.asarray(random.normal(size=leaf[0]), np.float32)

    return jax.tree.map(array, SHAPES, is_leaf=is_leaf)


def shardings() -> dict:
    """On all devices of all processes: two in "data" where there are so many."""
    devices = np.array(jax.devices())
    grid = devices.reshape(2 if len(devices) > 2 else 1, -1)
    mesh = Mesh(grid, ("data", "model"))
    return jax.tree.map(
        lambda leaf: NamedSharding(mesh, PartitionSpec(*leaf[1])), SHAPES, is_leaf=is_leaf
    )


def placed(step: int) -> dict:
    return jax.tree.map(
        lambda a, s: jax.make_array_from_callback(a.shape, s, lambda index: a[index]),
        trees(step),
        shardings(),
    )


def abstract() -> dict:
    return jax.tree.map(
        lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), trees(0), shardings()
    )


def is_right(loaded: dict, step: int) -> bool:
    """Whether the parts that lie here are the step's; those, and no more."""
    return all(
        shard.data.shape == array.sharding.shard_shape(array.shape)
        and np.array_equal(shard.data, right[shard.index])
        for array, right in zip(jax.tree.leaves(loaded), jax.tree.leaves(trees(step)), strict=True)
        for shard in array.addressable_shards
    )


def save(checkpoints: Checkpoints, step: int) -> None:
    """The arrays are used up as soon as they are saved, as the trainer does."""
    arrays = placed(step)
    checkpoints.save(step, arrays, float(-step))
    used_up = jax.jit(lambda arrays: jax.tree.map(lambda a: a * 0, arrays), donate_argnums=0)
    jax.block_until_ready(used_up(arrays))


def main(folder: str, command: str, *steps: str) -> None:
    with Checkpoints(
        Path(folder), TrainingConfig(keep=3, evaluate_every=1), writing=True
    ) as checkpoints:
        if "load" in command:
            found, loaded = checkpoints.load(abstract())
            print("loaded", found, is_right(loaded, found), flush=True)
            checkpoints.put_right(found)
        for step in steps:
            save(checkpoints, int(step))
        checkpoints.wait()
        print("saved", checkpoints.steps(), checkpoints.best_step(), flush=True)


if __name__ == "__main__":
    folder, coordinator, processes, process, *command = sys.argv[1:]
    join(coordinator, int(processes), int(process), heartbeat=10)
    main(folder, *command)
    leave()
