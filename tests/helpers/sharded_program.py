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

# Shape, and the axis of the mesh that each of its axes is divided over.
ARRAYS = {
    "parameters": {
        "rows.kernel": ((2, 16, 24), (None, "model")),
        "columns.kernel": ((2, 6, 16), (None, None, "model")),
        "both.kernel": ((2, 8, 8), (None, "data", "model")),
        "bias": ((2, 5), ()),
        "scale": ((2, 8), ("data",)),
    },
    "optimizer": {"0": ((2,), ()), "1.rows.kernel": ((2, 16, 24), (None, "model", None))},
}
TRAINING = TrainingConfig(keep=3, evaluate_every=1)


def trees(make) -> dict:
    """`make` of each shape and its sharding, on all devices: two in "data" where there are four."""
    devices = np.array(jax.devices())
    mesh = Mesh(devices.reshape(2 if len(devices) > 2 else 1, -1), ("data", "model"))
    return {
        name: {n: make(s, NamedSharding(mesh, PartitionSpec(*axes))) for n, (s, axes) in a.items()}
        for name, a in ARRAYS.items()
    }


def on_host(step: int) -> dict:
    random = np.random.default_rng(step)
    return trees(lambda shape, _: np.asarray(random.normal(size=shape), np.float32))


def placed(step: int) -> dict:
    return jax.tree.map(
        lambda a, like: jax.make_array_from_callback(a.shape, like.sharding, lambda at: a[at]),
        on_host(step),
        abstract(),
    )


def abstract() -> dict:
    return trees(lambda shape, over: jax.ShapeDtypeStruct(shape, np.float32, sharding=over))


def is_right(loaded: dict, step: int) -> bool:
    """Whether the parts that lie here are the step's; those, and no more."""
    pairs = zip(jax.tree.leaves(loaded), jax.tree.leaves(on_host(step)), strict=True)
    return all(
        shard.data.shape == array.sharding.shard_shape(array.shape)
        and np.array_equal(shard.data, right[shard.index])
        for array, right in pairs
        for shard in array.addressable_shards
    )


def main(folder: str, command: str, *steps: str) -> None:
    with Checkpoints(Path(folder), TRAINING, writing=True) as checkpoints:
        if "load" in command:
            found, loaded = checkpoints.load(abstract())
            print("loaded", found, is_right(loaded, found), flush=True)
            checkpoints.put_right(found)
        for step in map(int, steps):
            arrays = placed(step)
            checkpoints.save(step, arrays, float(-step))
            # Used up as soon as they are saved, as by the trainer.
            used_up = jax.jit(
                lambda arrays: jax.tree.map(lambda a: a * 0, arrays), donate_argnums=0
            )
            jax.block_until_ready(used_up(arrays))
        checkpoints.wait()
        print("saved", checkpoints.steps(), checkpoints.best_step(), flush=True)


if __name__ == "__main__":
    folder, coordinator, processes, process, *command = sys.argv[1:]
    join(coordinator, int(processes), int(process), heartbeat=10)
    main(folder, *command)
    leave()
