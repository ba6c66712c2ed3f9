"""The loop around the compiled steps: validation, metrics, checkpoints, interruption, resume."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tlite.errors import Interrupted, RunFailed, UserError, disk_errors
from tlite.parallel import processes
from tlite.terminal import printable
from tlite.training.checkpoints import Checkpoints, from_named, to_named
from tlite.training.config import TrainingConfig
from tlite.training.metrics import MetricsFile, iterate_metrics, summarise
from tlite.training.step import TrainState
from tlite.training.trainer import Trainer

SECONDS_PER_CALL = 0.5
"""Often enough for the progress bar and Ctrl-C, rarely enough to cost nothing."""
SHORT = 10.0
"""Seconds that nobody needs to be told of."""


def fit(
    trainer: Trainer,
    folder: Path,
    validation: Any,
    tokens_per_example: int,
    start: Callable[[], TrainState] | None = None,
    measure: Callable[[dict, dict], dict[str, np.ndarray]] | None = None,
    profile: int = 0,
) -> TrainState:
    """Train from the folder's last checkpoint, or from the start, to the config's last step.

    The start is `trainer.init()`, or what `start` returns: pre-trained parameters, say. `measure`
    adds to what a validation finds, by member (M,); it is given the parameters and that. Of one
    call of the program `profile` steps are profiled, or as many as are between two validations,
    into the folder's `profile`.

    Every step goes to metrics.jsonl; every `evaluate_every` steps, and at the end, the model is
    validated and saved; after `patience` validations without a better one it ends. Ctrl-C, SIGTERM
    and SIGHUP save and stop. Nothing depends on where a run was cut. Of several processes the first
    writes and decides, and a signal to any stops all at the same step.

    Returns:
        The trained members.

    Raises:
        RunFailed: a training loss is not finite, or no validation's has been.
        UserError: the disk is full, or the folder is not as it was left.
        Interrupted: by one of these signals; all is saved.
    """
    check_resumable(folder)
    with (
        Interrupt() as interrupt,
        MetricsFile(folder / "metrics.jsonl", writing=processes.is_first()) as metrics,
        Checkpoints(folder / "checkpoints", trainer.config, writing=True) as checkpoints,
    ):
        given = validation, tokens_per_example, measure, profile
        loop = Loop(trainer, metrics, checkpoints, interrupt, *given)
        loop.resume(start)
        signal = loop.train()
        checkpoints.wait()
        processes.of_first(metrics.check)  # it has renamed the last checkpoint: all may read it
    loop.tell_end(signal)
    return loop.members


@dataclass
class Loop:
    """What a run is trained with, and where it stands."""

    trainer: Trainer
    metrics: MetricsFile
    checkpoints: Checkpoints
    interrupt: "Interrupt"
    validation: Any
    tokens_per_example: int
    measure: Callable[[dict, dict], dict[str, np.ndarray]] | None
    profile: int
    """Steps to be profiled, if they have not been."""
    members: TrainState | None = None
    step: int = 0
    scores: list[float] = field(default_factory=list)
    """Of the validations that count."""
    steps_per_call: int = 1
    warm: bool = False
    """Whether there has been a call."""

    def resume(self, start: Callable[[], TrainState] | None) -> None:
        """Go to where the run stands, with all put right that a kill has left."""
        self.members, self.step = restore(self.trainer, self.checkpoints, start=start)
        if self.step:
            self.checkpoints.put_right(self.step)
        self.metrics.cut_after(self.step)
        before = iterate_metrics(self.metrics.path, "validation")
        self.scores = processes.of_first(lambda: regular_scores(self.trainer.config, before))

    def train(self) -> int:
        """To the last step, out of patience, or to a signal; returns that, or 0."""
        config, signal = self.trainer.config, self.agreed()
        with TrainingProgress(self.step, config.steps) as progress:
            while not (signal or self.step == config.steps or out_of(config.patience, self.scores)):
                progress.trained(*self.call())
                signal = self.agreed()
                if config.is_regular(self.step) or signal:
                    progress.validated(self.validate_and_save())
                    signal = self.agreed()
        return signal

    def agreed(self) -> int:
        """The signal that any of the processes has got; and the first one's steps of a call.

        With another number in one of them all would go on to a wrong result, and then wait for each
        other for ever.
        """
        arrived = self.interrupt.arrived
        found = processes.gather((arrived[0] if arrived else 0, self.steps_per_call))
        self.steps_per_call = found[0][1]
        return max(signal for signal, _ in found)

    def call(self) -> tuple[int, float, float]:
        """To the next validation at most: the step, its mean loss, and tokens a second.

        Raises:
            RunFailed: a loss is not finite.
        """
        config, trainer, first = self.trainer.config, self.trainer, self.step
        left = min(config.evaluate_every - first % config.evaluate_every, config.steps - first)
        profile = min(self.profile, config.evaluate_every, config.steps - first)
        profile = profile if self.warm and profile <= left else 0  # in a later call
        num_steps = min(profile or self.steps_per_call, left, trainer.feed.most_steps)
        trainer.compile(self.members)  # before the clock starts
        with profiled(self.metrics.path.parent, num_steps if profile else 0):
            began = time.perf_counter()
            self.members, losses = trainer.train(self.members, first, num_steps)
            seconds = (time.perf_counter() - began) / num_steps
        self.step, self.warm, self.profile = first + num_steps, True, 0 if profile else self.profile
        examples = config.accumulate * config.batch_size * config.seeds
        rate = examples * self.tokens_per_example / seconds
        lines = [
            {"step": first + i + 1, "split": "training"}
            | summarise({n: v[i] for n, v in losses.items()}, trainer.task.perplexity)
            | {"tokens_per_second": round(rate)}
            for i in range(num_steps)
        ]
        self.metrics.write(lines)
        self.check_finite(losses["loss"], first)
        # Calls are fitted to the time that a step takes.
        wanted = min(max(SECONDS_PER_CALL / seconds, 1), 4 * self.steps_per_call + 8)
        self.steps_per_call = int(min(wanted, trainer.feed.most_steps))
        return self.step, float(losses["loss"][-1].mean()), rate

    def validate_and_save(self) -> float:
        """The mean loss that is found; infinite where it is not finite."""
        means = validate(self.trainer, self.members.parameters, self.validation)
        means |= self.measure(self.members.parameters, means) if self.measure else {}
        line = summarise(means, self.trainer.task.perplexity)
        line = processes.of_first(lambda: {"step": self.step, "split": "validation"} | line)
        self.metrics.write([line])
        score = score_of(self.trainer.config, line)
        self.checkpoints.save(self.step, to_named(self.members), score)
        if self.trainer.config.is_regular(self.step):
            self.scores.append(score)
        return math.inf if line["loss"] is None else line["loss"]

    def check_finite(self, losses: Float[np.ndarray, "N M"], step: int) -> None:
        """Raises a `RunFailed` where a training loss after `step` is not finite."""
        if np.isfinite(losses).all():
            return
        (row, member), config = np.argwhere(~np.isfinite(losses))[0], self.trainer.config
        self.checkpoints.wait()
        best = self.checkpoints.best_step()
        saved = f"the best checkpoint is step {best}, in {self.checkpoints.folder}"
        raise RunFailed(
            f"the training loss of seed {config.members[member]} with learning rate "
            f"{config.learning_rate:g} is {losses[row, member]} at step {step + row + 1}; "
            f"{saved if best else 'no checkpoint had been saved'}"
        )

    def tell_end(self, signal: int) -> None:
        """Say what has ended the run.

        Raises:
            Interrupted: it was a signal.
            RunFailed: no validation has had a score.
        """
        if self.profile:
            print("nothing was profiled: the run had no second call of its program to make")
        if signal:
            saved = ", and saved" if self.step else ": there is nothing to save yet"
            raise Interrupted(f"stopped at step {self.step}{saved}", signal)
        if self.scores and not np.isfinite(min(self.scores)):
            raise RunFailed(f"no validation loss was finite, the last one at step {self.step}")
        if out_of(patience := self.trainer.config.patience, self.scores):
            print(f"no better validation in the last {patience}: ended at step {self.step}")


def check_resumable(folder: Path) -> None:
    """Raises a `UserError` where a run has been trained, and its checkpoints were removed."""
    checkpoints, metrics = folder / "checkpoints", folder / "metrics.jsonl"
    if not metrics.exists() or not metrics.stat().st_size or Checkpoints(checkpoints).steps():
        return
    # By its third validation a run has saved the checkpoint of its first.
    validations = sum(1 for _ in iterate_metrics(metrics, "validation"))
    if validations > 2 or not checkpoints.is_dir():
        raise UserError(
            f"{folder} has no checkpoints, but {metrics.name} says that it was trained: put "
            f"{checkpoints} back, or remove {metrics} to begin at step 0"
        )
    print(f"{folder} has no checkpoint yet: beginning at step 0")


def out_of(patience: int, scores: list[float]) -> bool:
    """Whether the best (least) of the scores is not among the last `patience`; never with 0."""
    return 0 < patience < len(scores) - int(np.argmin(scores)) if scores else False


def ended(config: TrainingConfig, validations: list[dict]) -> bool:
    """Whether a run with these validations has come to its last step, or out of its patience."""
    if validations and validations[-1]["step"] >= config.steps:
        return True
    return out_of(config.patience, regular_scores(config, validations))


def regular_scores(config: TrainingConfig, validations: Iterable[dict]) -> list[float]:
    """The scores of the validations that count, from their lines of metrics."""
    return [score_of(config, line) for line in validations if config.is_regular(line["step"])]


def score_of(config: TrainingConfig, line: dict) -> float:
    """What the best checkpoint has the least of; where a loss is not finite nothing is worse."""
    if None in (line.get("loss"), found := line.get(config.select)):
        return math.inf
    return found if config.select == "loss" else -found


def restore(
    trainer: Trainer,
    checkpoints: Checkpoints,
    step: int | None = None,
    start: Callable[[], TrainState] | None = None,
) -> tuple[TrainState, int]:
    """The members of a checkpoint (the last unless told) and its step; else new ones and 0."""
    if not checkpoints.steps():
        return (start or trainer.init)(), 0
    members = trainer.member_shapes
    step, trees = checkpoints.load(to_named(members), step)
    return trainer.place(from_named(members, trees)), step


def validate(trainer: Trainer, parameters: dict, batches: Any) -> dict[str, np.ndarray]:
    """Means over all of the batches, (M,) each, of parameters by name (M, ...)."""
    return means_of(trainer.evaluate(parameters, batches))


def means_of(sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Means (M,) of what was summed up, (M, ...) each, beside the `count`."""
    totals = {n: np.asarray(a, np.float64).reshape(len(a), -1).sum(1) for n, a in sums.items()}
    count = totals.pop("count")
    return {name: total / count for name, total in totals.items()}


class Interrupt(processes.Signals):
    """The first of the signals is noted; a second one stops at once."""

    def _note(self, number, frame):
        if self.arrived:
            raise KeyboardInterrupt
        super()._note(number, frame)


@contextlib.contextmanager
def profiled(run: Path, num_steps: int) -> Iterator[None]:
    """Trace these steps, in the first process, for XProf, TensorBoard and Perfetto; not with 0."""
    if not num_steps or not processes.is_first():
        yield
        return
    folder, options = run / "profile", jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # it would slow down what is measured
    with (
        disk_errors(folder),
        jax.profiler.trace(folder, create_perfetto_trace=True, profiler_options=options),
    ):
        yield
    files = folder.glob("plugins/profile/*/perfetto_trace.json.gz")
    newest = max(files, key=lambda path: path.parent.name)
    said = f"profile of {num_steps} steps: xprof {folder} (or tensorboard --logdir), or {newest}"
    print(printable(f"{said} in https://ui.perfetto.dev"))


class TrainingProgress(Progress):
    """A bar on a terminal; elsewhere (a log, CI) a line for each validation."""

    def __init__(self, step: int, steps: int):
        super().__init__(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("validation {task.fields[validation]}"),
            TextColumn("{task.fields[rate]} tokens/s"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(file=sys.stdout),
            disable=not sys.stdout.isatty(),
        )
        fields = dict.fromkeys(("loss", "validation", "rate"), "-")
        self._row, self._last = self.add_task("", completed=step, total=steps, **fields), ""

    def trained(self, step: int, loss: float, rate: float) -> None:
        """Training has come to a step, with this loss and so many tokens a second."""
        self.update(self._row, completed=step, loss=f"{loss:.3f}", rate=f"{rate:,.0f}")
        self._last = f"step {step}  training loss {loss:.4f}  {rate:,.0f} tokens/s"

    def validated(self, loss: float) -> None:
        """A validation has found this loss."""
        self.update(self._row, validation=f"{loss:.3f}")
        if self.disable:
            left = self.tasks[0].time_remaining or 0.0
            left = f"  {timedelta(seconds=left)} left" if left >= SHORT else ""
            print(f"{self._last}  validation loss {loss:.4f}{left}", flush=True)
