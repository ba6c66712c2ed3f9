"""How each run has gone so far, by one measure of its validations; as config and metrics say it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from tlite.comparison.comparable import Measure
from tlite.comparison.entries import Entry
from tlite.comparison.examples import Blocks
from tlite.comparison.flops import Cost, cost
from tlite.comparison.statistics import Difference, spread
from tlite.training.config import TrainingConfig
from tlite.training.examples import Examples, read_examples
from tlite.training.loop import ended
from tlite.training.metrics import iterate_metrics


@dataclass(frozen=True)
class Row:
    """A run among those that are compared."""

    entry: Entry
    measure: Measure
    cost: Cost
    validations: list[dict]
    """The lines of metrics.jsonl, each step once."""
    trained: Int[np.ndarray, "S"]
    """Steps of training, rising."""
    rates: Float[np.ndarray, "S"]
    """Tokens a second at each of them, of all of the run's models together."""
    diverged: tuple[int, list[int]] | None
    """The step at which a training loss was not finite, and of which seeds: that ends a run."""
    difference: Difference | None = None
    """From the reference, which has none itself."""
    blocks: Blocks | None = None
    """What both have found of each example, where it is known."""

    @property
    def label(self) -> str:
        return self.entry.label

    @property
    def failed(self) -> str:
        """Why there is no value of it, and never will be; "" where there may be."""
        if self.diverged is None:
            return self.entry.failed
        step, seeds = self.diverged
        which = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        return f"the training loss of {which} is not finite at step {step:,}"

    @property
    def step(self) -> int:
        """The last one."""
        last = [line["step"] for line in self.validations[-1:]]
        return max([0, *last, *self.trained[-1:].tolist()])

    @property
    def finished(self) -> bool:
        """Whether it was validated at the config's last step, or patience has ended it."""
        return ended(self.entry.training, self.validations)

    @cached_property
    def curve(self) -> tuple[Int[np.ndarray, "N"], Float[np.ndarray, "N M"]]:
        """Steps of validations, and the measure by model as metrics.jsonl has it; nothing of what
        has failed."""
        lines = [] if self.failed else self.validations
        found = by_step(self.entry.training, lines, self.measure.name)
        values = np.array([*found.values()], float).reshape(-1, self.entry.training.seeds)
        return np.array([*found], int), values

    @cached_property
    def best_step(self) -> int | None:
        """That of the best checkpoint; None before there is one."""
        steps = set(self.curve[0].tolist())
        lines = [line for line in self.validations if line["step"] in steps]
        return best_step(self.entry.training, lines)

    @cached_property
    def values(self) -> dict[int, float]:
        """The measure by seed at the best step, as it is told (`Measure.scale`); nothing if there
        is none."""
        steps, values = self.curve
        best = self.measure.scale * values[steps == self.best_step]
        return dict(zip(self.entry.seeds, best[0].tolist(), strict=True)) if len(best) else {}

    @property
    def mean(self) -> float | None:
        return float(np.mean([*self.values.values()])) if self.values else None

    @property
    def spread(self) -> float | None:
        return spread(np.array([*self.values.values()]))

    @cached_property
    def examples(self) -> Examples | None:
        """What was found of each example at the best step, of all of its seeds."""
        found = read_examples(self.entry.folder)
        if found is None or found.step != self.best_step:
            return None
        seeds = self.entry.training.seeds
        return found if all(len(sums) == seeds for sums in found.sums.values()) else None

    @property
    def tokens_per_second(self) -> float | None:
        """The median over the steps, of all of the run's models together."""
        return float(np.median(self.rates)) if len(self.rates) else None

    @property
    def flops(self) -> float | None:
        """Of one model, up to the last step."""
        of_step = self.cost.flops_per_step
        return None if of_step is None else of_step * self.step

    @property
    def minutes(self) -> Float[np.ndarray, "S"]:
        """Of training, after each of its steps; without validations and compilation."""
        taken = self.cost.tokens_per_step * self.entry.training.seeds / self.rates
        return np.cumsum(taken) / 60


def read_row(entry: Entry, measure: Measure) -> Row:
    """By what a run has written; cut and foreign lines of metrics.jsonl, and those of another
    number of models, are passed over."""
    validations, steps, rates, diverged, last = {}, [], [], None, 0
    for line in iterate_metrics(entry.folder / "metrics.jsonl"):
        if len(values := _of_members(line, "loss")) != entry.training.seeds:
            continue
        if line["split"] == "validation":
            validations[line["step"]] = line
            continue
        if None in values and diverged is None:
            pairs = zip(entry.seeds, values, strict=True)
            diverged = line["step"], [seed for seed, value in pairs if value is None]
        if line["step"] > last and (line.get("tokens_per_second") or 0) > 0:
            last = line["step"]
            steps.append(last)
            rates.append(line["tokens_per_second"])
    found = [validations[step] for step in sorted(validations)]
    speed = np.array(steps, int), np.array(rates, float)
    return Row(entry, measure, cost(entry), found, *speed, diverged)


def by_step(training: TrainingConfig, lines: list[dict], name: str) -> dict[int, list[float]]:
    """What validations have found of each model; those that lack one are passed over."""
    found = ((line["step"], _of_members(line, name)) for line in lines)
    return {s: row for s, row in found if len(row) == training.seeds and None not in row}


def best_step(training: TrainingConfig, lines: list[dict]) -> int | None:
    """Where the mean over the models of what `select` names is best, the first if several.

    Validations of an interruption don't count, as for the best checkpoint.
    """
    sign = 1 if training.select == "loss" else -1
    found, scores = by_step(training, lines, training.select), {}
    for line in lines:
        step, mean = line["step"], line.get(training.select)  # by which tlite itself chooses
        if step in found and training.is_regular(step):
            known = isinstance(mean, int | float)
            scores[step] = sign * (mean if known else float(np.mean(found[step])))
    return min(scores, key=scores.get) if scores else None


def _of_members(line: dict, name: str) -> list[float | None]:
    values = line.get(f"{name}_members", [line.get(name)])
    values = values if isinstance(values, list) else [values]
    return [v if v is not None and np.isfinite(v) else None for v in values]
