"""Summaries of runs, from config.json and metrics.jsonl; no user code runs, no data is read."""

import dataclasses
import itertools
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from tlite.comparison.flops import (
    TRANSLATOR,
    base_kind,
    flops_per_token,
    parameter_shapes,
    without_gradient,
)
from tlite.comparison.search_space import describe_change
from tlite.comparison.study import is_study, read_study
from tlite.config import from_dict, to_dict
from tlite.errors import UserError, printable
from tlite.experiment import Experiment
from tlite.training.checkpoints import Checkpoints, saved_arrays
from tlite.training.config import TrainingConfig, read_training
from tlite.training.metrics import is_finished, iterate_metrics, validation_score
from tlite.training.run_dir import RUN, component_fields, experiment_fields, read_config


class Metric(NamedTuple):
    """A validation metric, by its name in metrics.jsonl."""

    name: str
    title: str
    unit: str
    """Unit of differences."""
    lower: bool = True
    """True if lower values are better."""
    scale: float = 1.0
    """Factor from a value in metrics.jsonl to the unit."""

    def better(self, difference: float) -> bool:
        """Return True if a run with this difference from the reference is better."""
        return difference < 0 if self.lower else difference > 0


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """A run: models that differ in their seed only."""

    label: str
    folder: Path
    content: dict[str, Any]
    """Content of config.json, with the experiment in today's form."""
    training: TrainingConfig
    sizes: dict[str, int]
    """Number of parameters of each array of one model; empty if unknown."""
    tokens_per_step: int
    """Tokens of one model's step, with padding."""
    flops_per_step: float | None
    """FLOPs of one model's step; None if unknown."""
    validations: dict[int, dict]
    """Lines of metrics.jsonl by step; none if the run failed."""
    rates: dict[int, float]
    """Tokens per second of all models together, by step."""
    step: int
    """Last step."""
    best_step: int | None
    """Step of the best checkpoint."""
    last_validation: int | None
    """Step of the last scheduled validation."""
    finished: bool
    """True if the run was validated at its last step, or ended by patience."""
    diverged: tuple[int, list[int]] | None
    """Step at which training losses were not finite, and the seeds whose losses they were."""
    failed: str
    """Reason of a failure, or ""."""

    @property
    def experiment(self) -> dict[str, Any]:
        return experiment_fields(self.content["experiment"])

    @property
    def parameters(self) -> int | None:
        """Parameters of one model; None if unknown."""
        return sum(self.sizes.values()) or None

    @property
    def minutes(self) -> Float[np.ndarray, "S"]:
        """Minutes of training after each step, without validations and compilation."""
        tokens = self.tokens_per_step * self.training.seeds
        return np.cumsum(tokens / np.array([*self.rates.values()])) / 60

    def values(self, metric: Metric, step: int | None = None) -> dict[int, float]:
        """Return scores by seed, at a step or the last validation; {} if unknown.

        The score at the best step is biased: the same validation has chosen that step.
        """
        line = self.validations.get(self.last_validation if step is None else step, {})
        values = _by_replica(line, metric.name)
        pairs = zip(self.training.seed_range, values, strict=False)
        return {} if None in values else {seed: metric.scale * value for seed, value in pairs}

    def curve(self, metric: Metric) -> tuple[Int[np.ndarray, "N"], Float[np.ndarray, "N M"]]:
        """Return the steps of validations, and a metric by step and model, unscaled."""
        lines = {step: _by_replica(line, metric.name) for step, line in self.validations.items()}
        lines = {step: values for step, values in lines.items() if None not in values}
        values = np.array([*lines.values()], float).reshape(-1, self.training.seeds)
        return np.array([*lines], int), values


def common_steps(run: RunSummary, reference: RunSummary) -> tuple[int | None, int | None]:
    """Return the steps at which two runs are compared, independent of their scores.

    Each run's last validation if both have ended; else the last step at which both were validated.
    """
    if run.finished and reference.finished:
        return run.last_validation, reference.last_validation
    regular = ({*filter(r.training.is_eval_step, r.validations)} for r in (run, reference))
    step = max(set.intersection(*regular), default=None)
    return step, step


def shares_initial_values(run: RunSummary, reference: RunSummary) -> bool:
    """True if models of one seed draw the same initial values.

    These are arrays of the same names and sizes, with the same `init`, groups of it and rank of
    low-rank updates. Seeds are paired only then. What is drawn depends on the seed and the arrays;
    other models take other numbers from the same seed, and pairing would cost half of the degrees
    of freedom.
    """
    same_init = _initial_values(run) == _initial_values(reference)
    return run.sizes == reference.sizes and bool(run.sizes) and same_init


def _initial_values(run: RunSummary) -> tuple:
    """Return the settings of training that decide the initial values, as JSON."""
    training = run.experiment["training"]
    groups = [(group["pattern"], group["init"]) for group in training.get("groups", ())]
    groups = groups if any(init is not None for _, init in groups) else []
    low_rank = training.get("low_rank")
    low_rank = low_rank and (low_rank["pattern"], low_rank["rank"])
    return training.get("init", "default"), groups, low_rank


def read_summaries(folders: Sequence[Path]) -> tuple[list[RunSummary], list[str]]:
    """Return runs and variants of studies in order, with notes on the variants.

    The notes name variants without a run, and the values that tuning has chosen.

    Raises:
        UserError: a folder is neither a run nor a study, or can't be read.
    """
    runs, notes = [], []
    for folder, name in zip(folders, _short_names(folders), strict=True):
        if not is_study(folder):
            runs.append(_read(folder, name))
            continue
        study = f"{name}/" if len(folders) > 1 else ""
        for variant in read_study(folder).variants:
            label, run_folder = study + variant.name, folder / variant.run
            if (run_folder / RUN).is_file():
                runs.append(_read(run_folder, label, variant.failed or ""))
                if variant.tuned is not None:
                    notes.append(f"{label} was tuned: {describe_change(variant.tuned)}")
                notes += [f"{label}: {warning}" for warning in variant.tuning_warnings]
            else:
                why = "has not begun" if variant.failed is None else f"failed: {variant.failed}"
                notes.append(f"{label} {why}")
    return runs, notes


def _short_names(folders: Sequence[Path]) -> list[str]:
    """Return as many last parts of each path as distinguish the folders."""
    paths = [folder.resolve() for folder in folders]
    for number in itertools.count(1):
        names = ["/".join(path.parts[-number:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            return names


def _read(folder: Path, label: str, failed: str = "") -> RunSummary:
    """Return the summary of a run; incomplete lines of its metrics are skipped."""
    config = _read_config(folder)
    training, validations, rates, diverged = config["training"], {}, {}, None
    for line in iterate_metrics(folder / "metrics.jsonl"):
        step, losses = line["step"], _by_replica(line, "loss")
        if line["split"] == "validation":
            validations[step] = line
            continue
        if None in losses and diverged is None:
            seeds = zip(training.seed_range, losses, strict=False)
            diverged = step, [seed for seed, loss in seeds if loss is None]
        if rate := line.get("tokens_per_second"):
            rates[step] = float(rate)
    if diverged:
        step, seeds = diverged
        which = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        failed = f"the training loss of {which} is not finite at step {step:,}"
    lines = [validations[step] for step in sorted(validations)]
    regular = [line for line in lines if training.is_eval_step(line["step"]) and not failed]
    scores = [(validation_score(training, line), line["step"]) for line in regular]
    finite = [pair for pair in scores if pair[0] < math.inf]
    return RunSummary(
        label=printable(" ".join(label.split())),
        folder=folder,
        **config,
        validations={} if failed else {line["step"]: line for line in lines},
        rates=rates,
        step=max([0, *validations, *rates]),
        best_step=min(finite, default=(math.inf, None))[1],
        last_validation=max(
            (r["step"] for r in regular if training.best_metric in r), default=None
        ),
        finished=is_finished(training, lines),
        diverged=diverged,
        failed=failed,
    )


def _read_config(folder: Path) -> dict[str, Any]:
    """Return the fields of a `RunSummary` that config.json determines."""
    if not os.path.isfile(folder / RUN):
        lacks = "has neither config.json nor study.json" if folder.is_dir() else "is no folder"
        raise UserError(f"{folder} {lacks}: name folders of runs or of studies")
    try:
        content = read_config(folder / RUN)
        experiment = experiment_fields(content["experiment"])
        training = read_training(experiment.get("training"))
        try:
            opened = from_dict(Experiment, content["experiment"])
            experiment, shapes = experiment_fields(to_dict(opened)), parameter_shapes(opened.model)
        except UserError:  # user code
            shapes = _saved_shapes(folder / "checkpoints")
    except ValueError as error:
        raise UserError(f"{folder} can't be compared: {error}") from error
    model, kind = component_fields(experiment["model"]), base_kind(experiment)
    tokens = training.batch_size * training.gradient_accumulation_steps
    if kind != TRANSLATOR:  # whose batches are counted in tokens
        tokens *= model["context"] * max(experiment.get("sentences", 0), 1)
    sizes = {name: a.size for name, a in shapes.items()}
    flops = flops_per_token(model, sizes, kind, without_gradient(training, shapes))
    return {
        "content": content | {"experiment": json.loads(json.dumps(experiment))},  # no tuples
        "training": training,
        "sizes": sizes,
        "tokens_per_step": tokens,
        "flops_per_step": (sizes and flops * tokens) or None,
    }


def _saved_shapes(checkpoints: Path) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shape of each array of the last checkpoint, for one of its models."""
    try:
        last = checkpoints.absolute() / str(max(Checkpoints(checkpoints).steps()))
        arrays = saved_arrays(last, ["parameters"])["parameters"]
    except Exception:  # Orbax raises many types for a damaged checkpoint
        return {}
    return {n: jax.ShapeDtypeStruct(leaf.shape[1:], np.float32) for n, leaf in arrays.items()}


def _by_replica(line: dict, name: str) -> list[float | None]:
    """Return a value by model; None if it is unknown or not finite."""
    return line.get(f"{name}_replicas", [line.get(name)])
