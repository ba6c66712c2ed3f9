"""An experiment that trains nothing, for tests of how several processes end.

Its name selects the behaviour: "end" stops after ten steps, "loop" never, "pause" sleeps first,
"fault-N" and "bug-N" raise a UserError or a KeyError in process N. Files in
the run's folder show the progress of each process.
"""

import signal
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tlite import distributed
from tlite.errors import Interrupted, UserError
from tlite.experiment import GeneratorExperiment
from tlite.runs import Run

experiment = GeneratorExperiment("end")


def train(experiment, folder: Path) -> None:
    name, number = experiment.name, str(jax.process_index())
    (folder / f"joined-{number}").touch()
    if name == "pause":
        time.sleep(60)
    assert distributed.all_gather("numbers", [number]) == [
        [str(i)] for i in range(distributed.process_count())
    ]
    assert distributed.broadcast_from_process0(lambda: {"a": [number, None]}) == {"a": ["0", None]}
    print("printed once", flush=True)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    ones, sharding = np.ones(8 * jax.device_count()), NamedSharding(mesh, PartitionSpec("data"))
    x = jax.make_array_from_callback(ones.shape, sharding, lambda index: ones[index])
    step, signals = jax.jit(lambda x: x / x.sum()), [0]
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda signum, _: signals.append(signum))
    for k in range(10 if name == "end" else 10**9):
        x = step(x)
        float(jnp.sum(x.addressable_data(0)))
        (folder / f"looping-{number}").touch()
        if name == f"fault-{number}" and k == 5:
            raise UserError("the disk is full")
        if name == f"bug-{number}" and k == 5:
            raise KeyError("ours")
        if k % 20 == 0 and (agreed := max(distributed.all_gather("signals", signals[-1]))):
            (folder / f"saved-{number}").write_text(str(k))
            raise Interrupted(f"stopped at step {k}", agreed)


class LoopingRun:
    def __init__(self, experiment, folder, *, resume):
        self.arguments = experiment, folder

    def train(self, *, profile):
        train(*self.arguments)


Run.create = staticmethod(LoopingRun)
