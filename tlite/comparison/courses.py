"""What metrics.jsonl says of the models that are compared: their validations, speed and time."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from tlite.comparison.entries import Entry
from tlite.training.loop import ended
from tlite.training.metrics import iterate_metrics


@dataclass(frozen=True)
class Log:
    """The lines of a run, each step once."""

    validations: list[dict]
    steps: Int[np.ndarray, "S"]
    """Steps of training, rising."""
    rates: Float[np.ndarray, "S"]
    """Tokens a second at each of them, of all of the run's models together."""
    failed: int | None
    """The step at which a training loss was not finite: that ends a run."""


def read_log(path: Path, seeds: int) -> Log:
    """metrics.jsonl of a run; cut and foreign lines, and those of other numbers of models, are
    passed over."""
    validations, steps, rates, failed, last = {}, [], [], None, 0
    for line in iterate_metrics(path):
        if len(values := _of_members(line, "loss")) != seeds:
            continue
        if line["split"] == "validation":
            validations[line["step"]] = line
            continue
        if None in values and failed is None:
            failed = line["step"]
        if line["step"] > last and (line.get("tokens_per_second") or 0) > 0:
            last = line["step"]
            steps.append(last)
            rates.append(line["tokens_per_second"])
    found = [validations[step] for step in sorted(validations)]
    return Log(found, np.array(steps, int), np.array(rates, float), failed)


def _of_members(line: dict, name: str) -> list[float | None]:
    values = line.get(f"{name}_members", [line.get(name)])
    values = values if isinstance(values, list) else [values]
    return [v if v is not None and np.isfinite(v) else None for v in values]


@dataclass(frozen=True)
class Course:
    """How an entry has gone so far, by a measure on the validation part."""

    entry: Entry
    log: Log
    measure: str
    """The name of what is compared, in metrics.jsonl."""

    @property
    def step(self) -> int:
        """The last one."""
        last = [line["step"] for line in self.log.validations[-1:]]
        return max([0, *last, *self.log.steps[-1:].tolist()])

    @property
    def finished(self) -> bool:
        """Whether it was validated at the config's last step, or patience has ended it."""
        return ended(self.entry.training, self.log.validations)

    @cached_property
    def validated(self) -> tuple[Int[np.ndarray, "N"], Float[np.ndarray, "N M"]]:
        """Steps, and the measure by model."""
        steps, values = [], []
        for line, row in self._rows(self.measure):
            steps.append(line["step"])
            values.append(row)
        shape = len(steps), self.entry.training.seeds
        return np.array(steps, int), np.array(values, float).reshape(shape)

    @cached_property
    def best_step(self) -> int | None:
        """Where the mean over the models of what `select` names is best, the first if several.

        Validations of an interruption don't count, as for the best checkpoint; a run that has
        failed has none.
        """
        config = self.entry.training
        lower, scores = config.select == "loss", {}
        for line, row in self._rows(config.select):
            mean = line.get(config.select)  # by which tlite itself chooses, of a whole run
            mean = mean if isinstance(mean, int | float) else float(np.mean(row))
            if config.is_regular(line["step"]):
                scores[line["step"]] = mean if lower else -mean
        with_values = set(self.validated[0].tolist())
        scores = {step: score for step, score in scores.items() if step in with_values}
        return min(scores, key=scores.get) if scores else None

    @property
    def best(self) -> dict[int, float]:
        """The measure by seed at the best step; nothing if there is none."""
        if self.best_step is None:
            return {}
        steps, values = self.validated
        (row,) = values[steps == self.best_step]
        return dict(zip(self.entry.seeds, row.tolist(), strict=True))

    def _rows(self, name: str) -> Iterator[tuple[dict, list[float]]]:
        """Validations with what they found of each model; those that lack one are passed over."""
        for line in self.log.validations if self.log.failed is None else ():
            row = _of_members(line, name)
            if len(row) == self.entry.training.seeds and None not in row:
                yield line, row

    @property
    def tokens_per_second(self) -> float | None:
        """The median over the steps, of all of the run's models together."""
        return float(np.median(self.log.rates)) if len(self.log.rates) else None

    def minutes(self, tokens_per_step: int) -> Float[np.ndarray, "S"]:
        """Of training, after each of the log's steps; without validations and compilation."""
        taken = tokens_per_step * self.entry.training.seeds / self.log.rates
        return np.cumsum(taken) / 60
