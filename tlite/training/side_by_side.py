"""Variants that differ in numbers only, trained side by side in one program.

A compiled program takes learning rate, weight decay, betas and the like as data, a value for each
member, as it takes their seeds. What a number decides the presence of is decided for all: variants
without clipping get an infinite norm, ones without weight decay a decay of 0, which changes no bit.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Bool, Float

from tlite.errors import RunFailed
from tlite.training.checkpoints import Checkpoints
from tlite.training.config import VARIED, TrainingConfig, Varied
from tlite.training.metrics import iterate_metrics


def merged(configs: Sequence[TrainingConfig]) -> TrainingConfig | None:
    """One config that trains all of these side by side, with every seed; its members are those of
    the first config, then those of the second, ...

    None where they differ in more than the numbers of `Varied`, train several learning rates
    already, or have patience: each would have to end by itself.
    """
    base = next((config for config in configs if config.clip_norm is None), configs[0])
    if any(config.learning_rates or config.varied or config.patience for config in configs):
        return None
    differ = [n for n in VARIED if any(getattr(c, n) != getattr(base, n) for c in configs)]
    varied = tuple(Varied(**{name: getattr(c, name) for name in differ}) for c in configs)
    together = dataclasses.replace(base, varied=varied)
    return together if together.variants == tuple(configs) else None


def in_words(config: TrainingConfig, member: int) -> str:
    """A member and what it has of its own: seed 0 with learning rate 0.001 and weight decay 0.1."""
    alone, own = config.of_member(member), []
    for name in ["learning_rate", *config.numbers]:
        value, words = getattr(alone, name), name.replace("_", " ")
        own.append(f"no {words}" if value is None else f"{words} {value:g}")
    return f"seed {alone.seed} with {' and '.join(own)}"


def scores(config: TrainingConfig, validation: dict) -> list[str]:
    """A sentence for each member: its loss in a validation's line of metrics."""
    losses = validation.get("loss_members", [validation["loss"]])
    found = ["is not finite" if loss is None else f"{loss:.4f}" for loss in losses]
    return [f"{in_words(config, m)}: validation loss {loss}" for m, loss in enumerate(found)]


def is_faster(num_parameters: int, num_variants: int, seeds: int, num_devices: int) -> bool:
    """Whether variants side by side take less time than one after the other.

    On two CPU cores a step of all of them was as fast as their own steps (44k parameters, one seed)
    or took 1.1 to 1.3 times as long (from 0.4M on, or where each core had a seed of its own
    already): what is saved is compilations, of some seconds each. That is more in the runs of tiny
    models, and of small ones whose seeds do not fill the devices. A GPU or TPU is mostly idle with
    a model of up to a million parameters; that was not measured, as there was none.
    """
    if num_variants < 2:
        return False
    if jax.default_backend() != "cpu":
        return num_parameters <= 1_000_000
    return num_parameters <= (50_000 if seeds < num_devices else 20_000)


def failures(metrics: Path, split: str | None = None) -> dict[int, int]:
    """The members whose loss was not finite (null in metrics.jsonl), and since which step."""
    failed = {}
    for line in iterate_metrics(metrics, split):
        for member, loss in enumerate(line.get("loss_members", [line.get("loss")])):
            if loss is None:
                failed.setdefault(member, line["step"])
    return failed


class Finite:
    """Whether losses are finite: a variant that fails is out, and the others go on without it.

    A training loss decides, so that it does not depend on where a run was cut. Members share
    nothing, so no bit of the others changes. Where nothing is `varied` any failure ends it all.

    Args:
        failed: members that are out, and since which step.
    """

    def __init__(self, config: TrainingConfig, checkpoints: Checkpoints, failed: dict[int, int]):
        self._config, self._checkpoints = config, checkpoints
        self._failed, self._told = dict(failed), set(failed)

    @property
    def out(self) -> Bool[np.ndarray, "M"]:
        """Which members are out."""
        return np.isin(np.arange(self._config.num_members), list(self._failed))

    def note(self, losses: Float[np.ndarray, "N M"], step: int) -> Bool[np.ndarray, "N M"]:
        """Which members are out at each of the steps after `step`."""
        rows = np.zeros(losses.shape, bool)
        if self._config.varied:
            rows = np.logical_or.accumulate(~np.isfinite(losses) | self.out)
            for member in np.flatnonzero(rows[-1] & ~self.out):
                self._failed[int(member)] = step + 1 + int(rows[:, member].argmax())
        return rows

    def tell(self) -> None:
        """Print, once, which are out."""
        for member in self._failed.keys() - self._told:
            words, step = in_words(self._config, member), self._failed[member]
            print(f"{words} is out: its loss is not finite since step {step}; the others go on")
        self._told |= self._failed.keys()

    def check(
        self,
        split: str,
        losses: Float[np.ndarray, "N M"],
        step: int,
        out: Bool[np.ndarray, "N M"],
    ) -> None:
        """Raises a `RunFailed` at the first row, from `step` + 1 on, that ends the training: all
        are out, or one has failed where there are no variants."""
        bad = ~np.isfinite(losses)
        ended = np.flatnonzero(out.all(1) if self._config.varied else bad.any(1))
        if not len(ended):
            return
        self._checkpoints.wait()
        row, saved = ended[0], self._checkpoints.steps()
        member = int(bad[row].argmax())
        others = ", and every other variant has failed" if len(self._config.varied) > 1 else ""
        last = (
            f"the last good checkpoint is step {saved[-1]}, in {self._checkpoints.folder}"
            if saved
            else "no checkpoint had been saved"
        )
        raise RunFailed(
            f"the {split} loss of {in_words(self._config, member)} is {losses[row, member]} "
            f"at step {step + row + 1}{others}; {last}"
        )
