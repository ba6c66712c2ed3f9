"""What is said of a run: of its members one by one, and of all as one model."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Float

from tlite.models import Ensemble
from tlite.models.parameters import model_maker
from tlite.training import Trainer
from tlite.training.placement import out_of_memory


def spread(values: np.ndarray, style: str) -> str:
    """Mean and standard deviation over the members (M,)."""
    deviation = f" ± {values.std(ddof=1):{style}}" if len(values) > 1 else ""
    return f"{values.mean():{style}}{deviation}"


def interval(table: Float[np.ndarray, "M N"], what: str, style: str) -> str:
    """A line: how far from the truth the mean of all members and examples may be.

    Args:
        table: by member and example, or block of them (`comparison.statistics.variance`).
        what: they are called: texts.
    """
    from tlite.comparison.statistics import Difference, variance  # SciPy is slow to import

    members, number = table.shape
    found = Difference(table.mean(), variance(table), (members, members), examples=number)
    half, (seeds, examples) = found.half_width, found.parts
    if half is None:
        return f"95 % for new {what}, with this seed: ± {examples:{style}}"
    parts = f"(seeds {seeds:{style}}, {what} {examples:{style}})"
    return f"95 % for new seeds and {what}: ± {half:{style}} {parts}"


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

        return jax.lax.map(of_batch, batches)

    examples, devices = jax.tree.leaves(batches)[0].shape[1], jax.local_devices()
    mesh = Mesh(np.array(devices[: math.gcd(examples, len(devices))]), ("data",))
    whole, divided = (NamedSharding(mesh, spec) for spec in (P(), P(None, "data")))
    with out_of_memory("a batch of the evaluation"):
        ensemble = jax.device_put(ensemble_of(trainer, parameters), whole)
        sums = jax.device_get(jax.jit(evaluate)(ensemble, jax.device_put(batches, divided)))
    totals = {name: np.asarray(values, np.float64).sum() for name, values in sums.items()}
    count = totals.pop("count")
    return {name: np.array([total / count]) for name, total in totals.items()}
