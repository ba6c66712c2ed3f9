"""What is said of a run: of its members one by one, of all as one model, and of how it went."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float

from tlite.models import Ensemble
from tlite.models.parameters import model_maker
from tlite.training import Trainer
from tlite.training.placement import out_of_memory

FEW = {"texts": 100, "pairs": 100}  # so few scored say little
FEW_TOKENS = 2000
WORSE = 1.02  # the last loss, as a multiple of the best


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


def few_scored(number: int, what: str) -> str:
    """A warning where so few texts, pairs or tokens are scored that it says little; else ""."""
    if number >= FEW.get(what, FEW_TOKENS):
        return ""
    told = f"warning: the validation part has {number:,} {what}"
    return f"{told}: differences of a few percent mean nothing"


def overfitted(lines: Sequence[dict]) -> str:
    """A sentence where the validation loss has risen clearly since its best; else "".

    Args:
        lines: those of metrics.jsonl.
    """
    known = [line for line in lines if line.get("loss") is not None]
    validations = [line for line in known if line["split"] == "validation"]
    if len(validations) < 2:
        return ""
    best, last = min(validations, key=lambda line: line["loss"]), validations[-1]
    if best["step"] > 0.8 * last["step"] or last["loss"] < WORSE * best["loss"]:
        return ""
    training = [line for line in known if line["split"] == "training"]

    def mean_before(index: int) -> float | None:
        """The mean training loss between the validation before and this one."""
        start = validations[index - 1]["step"] if index else 0
        end = validations[index]["step"]
        found = [line["loss"] for line in training if start < line["step"] <= end]
        return fmean(found) if found else None

    then, now = mean_before(validations.index(best)), mean_before(len(validations) - 1)
    if then is not None and now is not None and now >= then:
        return ""  # it diverges
    told = f"validation is best at step {best['step']:,} (loss {best['loss']:.2f})"
    went_on = "" if now is None else f"training went on to {now:.2f}, "
    return f"{told}; {went_on}validation to {last['loss']:.2f}: the model overfits"
