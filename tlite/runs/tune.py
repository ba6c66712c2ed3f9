"""Tune values of an experiment by successive halving.

A trial is a run of its own with the experiment's whole schedule, which is stopped at each rung and
resumed if its value is kept: nothing is trained twice, and a trial that is kept to the end equals
a plain run of its experiment bit for bit. Trials have other seeds than the experiment.

A tuning's folder has tuning.json, the ledger `trials.jsonl` with a line for each trial and rung, a
run folder for each trial, and tuning.png. A rung is decided when its lines are written, all at
once: a kill before it leaves trained runs, whose scores are read again.
"""

import dataclasses
import gc
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

import tlite.distributed as distributed
from tlite.comparison.flops import GENERATOR, base_kind
from tlite.comparison.halving import losses_by_example, rungs, survivors
from tlite.comparison.search_space import (
    Change,
    Range,
    SearchSpace,
    describe_change,
    describe_value,
    end_of_range_warnings,
    make_search_space,
    sample_space,
)
from tlite.comparison.study import Variant, reading, variants_from_json
from tlite.comparison.summaries import read_summaries
from tlite.config import override, to_dict
from tlite.errors import RunFailed, UserError, command, disk_errors, printable, show_columns
from tlite.experiment import BaseExperiment
from tlite.runs.reporting import spread
from tlite.runs.run import Run, find_same
from tlite.runs.study import (
    DatasetCache,
    check_variants,
    failure_reason,
    make_variants,
    open_variant,
    resolve_all,
    resolve_precision,
    saved_and_new_variants,
    write_variants,
)
from tlite.training.metrics import ExampleScores, read_example_scores
from tlite.training.run_dir import LEDGER, RUN, TUNING, experiment_fields, replace_file

SEED_OFFSET = 10_000
"""Difference of a tuning's seeds from the experiment's, with which the chosen value is trained."""


@dataclass(frozen=True)
class Tuning:
    """The trials of a tuning in a folder."""

    folder: Path
    name: str
    space: SearchSpace
    changes: dict[str, Change]
    """Change of each trial by its name."""
    variants: tuple[Variant, ...]
    """The trials."""
    rungs: tuple[int, ...]
    """Steps at which values are dropped, and the last step."""
    seeds: tuple[int, ...]
    train_command: tuple[str, ...] = ()
    """Words of the command that trains the experiment, to which the chosen values are added."""

    def write(self, folder: Path) -> None:
        """Write tuning.json."""
        content = vars(self) | {
            "space": {name: axis_to_json(axis) for name, axis in self.space.items()},
            "changes": {name: change_to_json(c) for name, c in self.changes.items()},
            "variants": [vars(variant) for variant in self.variants],
        }
        del content["folder"]
        replace_file(folder / TUNING, content)

    def read_ledger(self) -> list[dict[str, Any]]:
        """Return the lines of the ledger."""
        path = self.folder / LEDGER
        with reading(path):
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            return [json.loads(line) for line in text.splitlines()]

    def best(self) -> dict[str, Any] | None:
        """Return the line of the best trial kept in the latest rung; None if none was kept."""
        ledger = self.read_ledger()
        last = [line for line in ledger if line["kept"] and line["rung"] == ledger[-1]["rung"]]
        return min(last, key=lambda line: np.mean(line["loss"]), default=None)

    @property
    def values(self) -> Change:
        """The chosen values by dotted field, for `tlite.override`."""
        best = self.best()
        return {} if best is None else self.changes[best["trial"]]

    @property
    def warnings(self) -> list[str]:
        """A sentence for each chosen value at an end of its range."""
        return end_of_range_warnings(self.space, self.values, len(self.variants))


def axis_to_json(axis: Range | tuple) -> dict[str, Any]:
    return vars(axis) if isinstance(axis, Range) else {"choices": [to_dict(v) for v in axis]}


def axis_from_json(content: dict[str, Any]) -> Range | tuple:
    return tuple(content["choices"]) if "choices" in content else Range(**content)


def change_to_json(change: Change) -> dict[str, Any]:
    return {name: to_dict(value) for name, value in change.items()}


def read_tuning(folder: Path) -> Tuning:
    """Return the tuning in a folder."""
    with reading(path := folder / TUNING):
        content = json.loads(path.read_text(encoding="utf-8"))
        space = {name: axis_from_json(axis) for name, axis in content.pop("space").items()}
        variants = variants_from_json(content.pop("variants"))
        sequences = {name: tuple(content.pop(name)) for name in ("rungs", "seeds", "train_command")}
        return Tuning(folder, space=space, variants=variants, **sequences, **content)


# Create


def tune(
    experiment: BaseExperiment,
    fields: Mapping[str, Any],
    *,
    trials: int = 8,
    seeds: int = 3,
    dir: str | Path | None = None,
    resume: Literal["never", "auto", "must"] = "never",
    train_command: Sequence[str] = (),
) -> Tuning:
    """Try values of an experiment's fields by successive halving, and print the best one.

    A value is dropped only if the interval of its difference from the best one says so.

    >>> tuning = tlite.tune(experiment, {"training.learning_rate": (1e-4, 1e-1)}, trials=8)
    >>> run = tlite.train(tlite.override(experiment, tuning.values))

    Args:
        fields: by dotted name a logarithmic range (low, high), or a list of choices.
        trials: number of points to try: evenly spaced for a single range, all combinations of
            choices if they are at most as many, else scrambled Sobol points.
        seeds: number of seeds of each trial, from the experiment's seed + 10,000 on. With two, few
            values are dropped; with one, intervals are for new examples.
        dir, resume: as in `Run.create`. The inputs of a tuning that has ended are compared too.
        train_command: words of the command that trains the experiment, for the last line printed.

    Raises:
        UserError: it can't be trained or tuned so, or no trial has a finite loss.
    """
    space, path = make_search_space(experiment, fields), None if dir is None else Path(dir)
    datasets, name, words = DatasetCache(), experiment.name, tuple(train_command)
    changes, experiments = make_trials(experiment, space, trials, seeds)
    if resume != "never":
        read, required = partial(saved_and_new_variants, experiments, read_tuning), resume == "must"
        if folder := find_same("tuning", name, path, TUNING, read, required=required):
            tuning = read_tuning(folder)
            check_variants(folder, tuning.variants, datasets)
            return run_tuning(tuning, datasets)
    tuning = create_tuning(name, space, changes, experiments, path, datasets, words)
    return run_tuning(tuning, datasets)


def make_trials(
    experiment: Any, space: SearchSpace, trials: int, seeds: int
) -> tuple[dict[str, Change], dict[str, Any]]:
    """Return the change and the resolved experiment of each trial by its name."""
    if seeds < 1:
        raise UserError(f"the seeds of a tuning must be at least 1, not {seeds}")
    first = experiment.training.seed + SEED_OFFSET
    seed_change = {"training.seed": first, "training.seeds": seeds}
    changes, experiments = {}, {}
    for change in sample_space(space, trials):
        name = describe_change(change)
        name = f"{name} {len(changes)}" if name in changes else name
        try:
            experiments[name] = override(experiment, seed_change | change)
        except ValueError as error:
            raise UserError(f"{name}: {error}") from error
        changes[name] = change
    return changes, resolve_all(experiments)


def create_tuning(
    name: str,
    space: SearchSpace,
    changes: dict[str, Change],
    experiments: Mapping[str, Any],
    dir: Path | None,
    datasets: DatasetCache,
    train_command: tuple[str, ...] = (),
) -> Tuning:
    """Write the folder of a tuning, with tuning.json."""
    experiments = resolve_precision(dict(experiments))
    variants = make_variants(experiments, datasets)
    training = next(iter(experiments.values())).training
    steps = (*rungs(training.steps, len(variants)), training.steps)
    seeds = tuple(training.seed_range)
    tuning = Tuning(Path(), name, space, changes, variants, steps, seeds, train_command)
    return dataclasses.replace(tuning, folder=write_variants(name, dir, variants, tuning.write))


def describe_tuning(
    experiments: Mapping[str, Any], fields: Mapping[str, Any], trials: int, seeds: int
) -> dict[str, Any]:
    """Return the tuning of variants as JSON; raise a `UserError` if one can't be tuned."""
    space: SearchSpace = {}
    for name, experiment in experiments.items():
        try:
            space = make_search_space(experiment, fields)
            make_trials(experiment, space, trials, seeds)
        except UserError as error:
            raise UserError(f"variant {name}: {error}") from error
    axes = {name: axis_to_json(axis) for name, axis in space.items()}
    return json.loads(json.dumps({"space": axes, "trials": trials, "seeds": seeds}))


def tune_experiment(
    experiment: Any, tuning: dict[str, Any], folder: Path, datasets: DatasetCache
) -> tuple[dict[str, Any], list[str]]:
    """Tune a study's variant in a folder, or resume it; return the values as JSON, and warnings.

    Args:
        tuning: result of `describe_tuning`.
    """
    if distributed.broadcast_from_process0((folder / TUNING).is_file):
        result = run_tuning(read_tuning(folder), datasets)
    else:
        space = {name: axis_from_json(axis) for name, axis in tuning["space"].items()}
        trials = make_trials(experiment, space, tuning["trials"], tuning["seeds"])
        created = create_tuning(experiment.name, space, *trials, folder, datasets)
        result = run_tuning(created, datasets)
    values = distributed.broadcast_from_process0(lambda: change_to_json(result.values))
    return values, distributed.broadcast_from_process0(lambda: result.warnings)


def resume_tuning(folder: Path) -> Tuning:
    """Resume a tuning; of a finished one print the result again, which needs no data."""
    return run_tuning(read_tuning(folder), DatasetCache())


def drop_failed_rung(folder: Path) -> None:
    """Drop the lines of the last rung from a tuning's ledger if all its trials have failed.

    These trials are then trained again. A tuning that has not failed is not changed.
    """
    if not (folder / LEDGER).is_file():
        return
    ledger = read_tuning(folder).read_ledger()
    last = max((line["rung"] for line in ledger), default=0)
    if not any(line["kept"] for line in ledger if line["rung"] == last):
        write_ledger(folder, [line for line in ledger if line["rung"] < last])


# Train


def run_tuning(tuning: Tuning, datasets: DatasetCache) -> Tuning:
    """Train the trials from rung to rung, dropping the worse ones, and print the best one."""
    seeds = ", ".join(map(str, tuning.seeds))
    print(f"tuning trials={len(tuning.variants)} seeds={seeds} dir={tuning.folder}", flush=True)
    ledger = distributed.broadcast_from_process0(tuning.read_ledger)
    alive, trainer = [*tuning.variants], TrialTrainer(tuning, datasets)
    for rung, step in enumerate(tuning.rungs, 1):
        lines = [line for line in ledger if line["rung"] == rung]
        if not lines:
            failures = trainer.train(alive, rung)
            decide = partial(decide_rung, tuning, alive, failures, rung, ledger)
            lines = distributed.broadcast_from_process0(decide)
            ledger = [*ledger, *lines]
            print_rung(lines, step)
        kept = {line["trial"] for line in lines if line["kept"]}
        alive = [trial for trial in alive if trial.name in kept]
        trainer.forget(kept)
        if len(alive) < 2:
            break
    if distributed.is_process0():
        print_result(tuning, ledger)
    if not alive:
        raise RunFailed(f"all {len(tuning.variants)} trials failed: see {tuning.folder / LEDGER}")
    return tuning


class TrialTrainer:
    """Trains trials to a rung; keeps their compiled runs, and predicts the time left."""

    def __init__(self, tuning: Tuning, datasets: DatasetCache):
        self.tuning, self.datasets = tuning, datasets
        self.runs: dict[str, Run] = {}
        self.seconds, self.steps = 0.0, 0  # of training in this process

    def forget(self, kept: set[str]) -> None:
        """Free the memory of the runs that are not trained further."""
        self.runs = {name: run for name, run in self.runs.items() if name in kept}
        gc.collect()

    def train(self, trials: Sequence[Variant], rung: int) -> dict[str, str]:
        """Train trials to a rung; return the reason by name of those that have failed."""
        step, before = self.tuning.rungs[rung - 1], (0, *self.tuning.rungs)[rung - 1]
        failures = {}
        for number, trial in enumerate(trials, 1):
            left = self.time_left((len(trials) - number + 1) * (step - before), rung)
            print(printable(
                f"\ntrial {number} of {len(trials)}: {trial.name}, step {before:,} to {step:,} of "
                f"{self.tuning.rungs[-1]:,}{left}"
            ), flush=True)  # fmt: skip
            start = time.monotonic()
            if failure := self.train_trial(trial, step):
                failures[trial.name] = failure
            elif trial.name in self.runs:  # it was trained here
                self.seconds += time.monotonic() - start
                self.steps += step - before
        return failures

    def time_left(self, steps: int, rung: int) -> str:
        """Return the time for the steps left in a rung, and for half of the trials in each later
        one, as text; "" before the first trial has been timed."""
        if not self.steps:
            return ""
        for later in range(rung, len(self.tuning.rungs)):
            further = self.tuning.rungs[later] - self.tuning.rungs[later - 1]
            steps += num_kept(self.tuning, later) * further
        seconds = round(steps * self.seconds / self.steps)
        return f"; about {timedelta(seconds=seconds)} left"

    def train_trial(self, trial: Variant, step: int) -> str | None:
        """Train a trial to a step unless its scores there are known; return why it has failed."""
        folder = self.tuning.folder / trial.run
        if distributed.broadcast_from_process0(lambda: has_scores(folder, step)):
            return None

        def train() -> None:
            if trial.name not in self.runs:
                self.runs[trial.name] = open_variant(self.tuning.folder, trial, self.datasets)
            self.runs[trial.name].train_until(step)

        return failure_reason(f"trial {trial.name}", train)


def has_scores(folder: Path, step: int) -> bool:
    """Return True if a trial was trained to this step, and its scores there were saved.

    Raises:
        UserError: it was trained further.
    """
    scores = read_example_scores(folder)
    if scores is not None and scores.step > step:
        raise UserError(
            f"{folder} is at step {scores.step:,}, but the other trials at step {step:,}: it was "
            "trained by another command; remove it to train it again"
        )
    return scores is not None and scores.step == step


def num_kept(tuning: Tuning, rung: int) -> int:
    """Return the number of trials that no interval drops at a rung, counted from 1."""
    return max(len(tuning.variants) // 2**rung, 1)


def decide_rung(
    tuning: Tuning,
    trials: Sequence[Variant],
    failures: Mapping[str, str],
    rung: int,
    ledger: Sequence[dict],
) -> list[dict[str, Any]]:
    """Choose the trials to train further; append a line for each trial to the ledger."""
    scores = {t.name: read_example_scores(tuning.folder / t.run) for t in trials}
    scores = {name: s for name, s in scores.items() if s is not None and name not in failures}
    kind = base_kind(experiment_fields(trials[0].experiment))
    losses = losses_by_example(scores, contiguous=kind == GENERATOR)
    kept = survivors(losses, num_kept(tuning, rung))
    lines = []
    for trial in trials:
        reason = "" if trial.name in kept else "diverged" if trial.name not in losses else "worse"
        reason = failures.get(trial.name, reason)
        lines.append(make_line(tuning, trial, scores.get(trial.name), rung, reason))
    write_ledger(tuning.folder, [*ledger, *lines])
    return lines


def write_ledger(folder: Path, lines: Sequence[dict]) -> None:
    """Write the ledger, or replace it in one step."""
    content = "".join(f"{json.dumps(line, allow_nan=False)}\n" for line in lines)
    replace_file(folder / LEDGER, content)


def make_line(
    tuning: Tuning, trial: Variant, scores: ExampleScores | None, rung: int, reason: str
) -> dict[str, Any]:
    """Return the ledger's line of a trial at a rung.

    Args:
        reason: why it is dropped; "" if it is kept.
    """
    change, loss, folder = tuning.changes[trial.name], None, tuning.folder / trial.run
    change = change_to_json(change)
    digest = hashlib.sha256(json.dumps(change, sort_keys=True).encode()).hexdigest()
    if scores is not None:
        by_seed = (scores.sums["loss"].sum(1) / scores.count.sum()).tolist()
        loss = by_seed if np.isfinite(by_seed).all() else None
    row = read_summaries([folder])[0][0] if (folder / RUN).is_file() else None
    step = scores.step if scores is not None else row.step if row else 0
    flops = row and row.flops_per_step and row.flops_per_step * step * len(tuning.seeds)
    seconds = 60 * float(row.minutes[-1]) if row and row.rates else None
    return {
        "trial": trial.name,
        "hash": digest[:12],
        "change": change,
        "seeds": list(tuning.seeds),
        "rung": rung,
        "step": step,
        "loss": loss,
        "flops": flops,
        "seconds": seconds and round(seconds, 3),
        "kept": not reason,
        "reason": reason,
    }


# Report


def print_rung(lines: Sequence[dict], step: int) -> None:
    """Print which trials a rung has kept."""
    kept = [line["trial"] for line in lines if line["kept"]]
    names = ", ".join(kept) or "none"
    print(printable(f"\nstep {step:,}: kept {len(kept)} of {len(lines)} trials: {names}"))


def draw_trials(tuning: Tuning, ledger: Sequence[dict]) -> None:
    """Write tuning.png, the losses of the values at each rung."""
    from tlite.pictures import isolate_figures, plot_trials  # matplotlib is slow to import

    logarithmic = {name: isinstance(axis, Range) for name, axis in tuning.space.items()}
    trials = []
    for line in ledger:
        values = line["change"].items()
        change = {name: v if logarithmic[name] else describe_value(v) for name, v in values}
        trials.append(line | {"change": change})
    path = tuning.folder / "tuning.png"
    with isolate_figures(), disk_errors(path):
        plot_trials(trials, logarithmic).figure.savefig(path, dpi=120)


def print_result(tuning: Tuning, ledger: Sequence[dict]) -> None:
    """Print and draw the trials, what they cost, and how to train with the chosen values."""
    last = {line["trial"]: line for line in ledger}
    best = tuning.best()
    rows = [("trial", "steps", "validation loss", "")]
    for trial, line in last.items():
        state = "kept" if line["kept"] else f"dropped ({line['reason']})"
        state = "best" if best and trial == best["trial"] else state
        losses = line["loss"] and spread(np.array(line["loss"]), ".4f")
        rows.append((trial, f"{line['step']:,}", losses or "\N{EN DASH}", state))
    print()
    show_columns(rows)
    steps, everything = sum(line["step"] for line in last.values()), len(last) * tuning.rungs[-1]
    print(f"trained {steps:,} steps, {steps / everything:.0%} of all trials' {everything:,}")
    if best is None:
        return
    for warning in tuning.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    draw_trials(tuning, ledger)
    print(f"ledger: {tuning.folder / LEDGER}; picture: {tuning.folder / 'tuning.png'}")
    print(f"best: {describe_change(tuning.values)}")
    if tuning.train_command:
        print(f"to train with it: {command(*tuning.train_command, *as_options(tuning.values))}")


def as_options(change: Change) -> list[str]:
    """Return values as options of `tlite train`: --learning-rate 0.00316."""
    words = []
    for name, value in change.items():
        option = name.removeprefix("training.").removeprefix("model.").replace("_", "-")
        text = repr(value) if isinstance(value, float) else describe_value(value)
        words += [f"--{option}", text]
    return words
