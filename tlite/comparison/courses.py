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
    """The lines of a run, each step once; entries that were trained side by side share it."""

    validations: list[dict]
    steps: Int[np.ndarray, "S"]
    """Steps of training, rising."""
    rates: Float[np.ndarray, "S"]
    """Tokens a second at each of them, of all of the run's models together."""
    failures: dict[int, int]
    """By member the step from which its loss was never a number again."""


def read_log(path: Path, num_members: int) -> Log:
    """metrics.jsonl of a run; cut and foreign lines, and those of other numbers of models, are
    passed over."""
    validations, steps, rates, failures, last = {}, [], [], {}, 0
    for line in iterate_metrics(path):
        if len(values := _of_members(line, "loss")) != num_members:
            continue
        for member in [m for m, v in enumerate(values) if v is None] if None in values else ():
            failures.setdefault(member, line["step"])
        if failures:
            failures = {m: step for m, step in failures.items() if values[m] is None}
        if line["split"] == "validation":
            validations[line["step"]] = line
        elif line["step"] > last and (line.get("tokens_per_second") or 0) > 0:
            last = line["step"]
            steps.append(last)
            rates.append(line["tokens_per_second"])
    found = [validations[step] for step in sorted(validations)]
    return Log(found, np.array(steps, int), np.array(rates, float), failures)


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
    def failed(self) -> dict[int, int]:
        """By seed the step from which a model was lost."""
        pairs = zip(self.entry.members, self.entry.seeds, strict=True)
        return {seed: self.log.failures[m] for m, seed in pairs if m in self.log.failures}

    @property
    def alive(self) -> list[tuple[int, int]]:
        """(member, seed) of the others."""
        pairs = zip(self.entry.members, self.entry.seeds, strict=True)
        return [(m, seed) for m, seed in pairs if m not in self.log.failures]

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
        """Steps, and the measure by model that did not fail."""
        steps, values = [], []
        for line, row in self._rows(self.measure):
            steps.append(line["step"])
            values.append(row)
        return np.array(steps, int), np.array(values, float).reshape(len(steps), len(self.alive))

    @cached_property
    def best_step(self) -> int | None:
        """Where the mean over the models of what `select` names is best, the first if several.

        Validations of an interruption don't count, as for the best checkpoint.
        """
        config = self.entry.training
        lower, scores = config.select == "loss", {}
        for line, row in self._rows(config.select):
            mean = line.get(config.select)  # by which tlite itself chooses, of a whole run
            if len(row) < config.num_members or not isinstance(mean, int | float):
                mean = float(np.mean(row))
            if line["step"] % config.evaluate_every == 0 or line["step"] >= config.steps:
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
        return dict(zip([seed for _, seed in self.alive], row.tolist(), strict=True))

    def _rows(self, name: str) -> Iterator[tuple[dict, list[float]]]:
        """Validations with what they found of each model; those that lack one are passed over."""
        members = [member for member, _ in self.alive]
        for line in self.log.validations:
            values = _of_members(line, name)
            if len(values) == self.entry.training.num_members:
                row = [values[member] for member in members]
                if row and None not in row:
                    yield line, row

    @property
    def tokens_per_second(self) -> float | None:
        """The median over the steps, of all of the run's models together."""
        return float(np.median(self.log.rates)) if len(self.log.rates) else None

    def minutes(self, tokens_per_step: int) -> Float[np.ndarray, "S"]:
        """Of training, after each of the log's steps; without validations and compilation."""
        taken = tokens_per_step * self.entry.training.num_members / self.log.rates
        return np.cumsum(taken) / 60
