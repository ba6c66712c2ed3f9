"""All members of a run as one model, and its score on a part of the data."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tlite.models import Ensemble
from tlite.models.parameters import model_maker
from tlite.training import Trainer, TrainingConfig
from tlite.training.memory import out_of_memory


def ensemble_of(trainer: Trainer, parameters: dict) -> Ensemble:
    """The members as one model, whole in this process."""
    arrays = trainer.on_host(parameters)
    return Ensemble(jax.tree.map(jnp.asarray, model_maker(trainer.model)(arrays)))


def ensemble_means(trainer: Trainer, parameters: dict, batches: Any) -> dict[str, np.ndarray]:
    """`training.loop.validate` of the members as one model: means over all batches, (1,) each.

    The examples of a batch are divided over the devices, and on each of them the members come one
    after the other.
    """

    def evaluate(ensemble, batches):
        def of_batch(batch):
            return jax.tree.map(lambda a: a.sum(0), trainer.task.evaluate(ensemble, batch))

        return jax.tree.map(lambda a: a.sum(0), jax.lax.map(of_batch, batches))

    examples, devices = jax.tree.leaves(batches)[0].shape[1], jax.local_devices()
    mesh = Mesh(np.array(devices[: math.gcd(examples, len(devices))]), ("data",))
    with out_of_memory("a batch of the evaluation"):
        ensemble = jax.device_put(
            ensemble_of(trainer, parameters), NamedSharding(mesh, PartitionSpec())
        )
        batches = jax.device_put(batches, NamedSharding(mesh, PartitionSpec(None, "data")))
        sums = jax.device_get(jax.jit(evaluate)(ensemble, batches))
    totals = {name: np.asarray(values, np.float64).sum() for name, values in sums.items()}
    count = totals.pop("count")
    return {name: np.array([total / count]) for name, total in totals.items()}


def describe_ensemble(config: TrainingConfig) -> str:
    """Which members it has: "the ensemble of all 3 members"."""
    return f"the ensemble of all {config.seeds} members"
