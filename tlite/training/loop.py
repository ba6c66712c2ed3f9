"""The loop around the compiled steps: validation, metrics, checkpoints, interruption, resume."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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
MEASURED, SHORT = 2.0, 10.0
"""Seconds of steps from which the time of a run is estimated, and that nobody needs to be told."""


def fit(
    trainer: Trainer,
    folder: Path,
    validation: Any,
    tokens_per_example: int,
    start: Callable[[], TrainState] | None = None,
    measure: Callable[[dict, dict], dict[str, np.ndarray]] | None = None,
    profile: int = 0,
    later: int = 0,
) -> TrainState:
    """Train from the folder's last checkpoint, or from the start, to the config's last step.

    The start is `trainer.init()`, or what `start` returns: pre-trained parameters, say. `measure`
    adds to what a validation finds, by member (M,); it is given the parameters and that. Of one
    call of the program `profile` steps are profiled, or as many as are between two validations,
    into the folder's `profile`. `later` steps of other runs are to come: an estimate counts them.

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
    config, path, first = trainer.config, folder / "metrics.jsonl", processes.is_first()
    check_resumable(folder)
    with (
        Interrupt() as interrupt,
        MetricsFile(path, writing=first) as metrics,
        Checkpoints(folder / "checkpoints", config, writing=True) as checkpoints,
    ):
        given = validation, tokens_per_example, measure, profile, later
        loop = Loop(trainer, metrics, checkpoints, *given)
        members, step, scores = loop.resume(start)
        members, step, signal = loop.train(interrupt, members, step, scores)
        checkpoints.wait()
        processes.of_first(lambda: None)  # it has renamed the last checkpoint: all may read it
        if first:
            metrics.check()
    if loop.profile:
        print("nothing was profiled: the run had no second call of its program to make")
    check_end(config, step, scores, signal)
    return members


@dataclass
class Loop:
    """What a run is trained with, and how many steps a call of the compiled program takes."""

    trainer: Trainer
    metrics: MetricsFile
    checkpoints: Checkpoints
    validation: Any
    tokens_per_example: int
    measure: Callable[[dict, dict], dict[str, np.ndarray]] | None
    profile: int = 0
    """Steps to be profiled, if they have not been."""
    later: int = 0
    """Steps of other runs that come after this one."""
    steps_per_call: int = 1
    warm: bool = False
    """Whether there has been a call."""

    def resume(self, start: Callable[[], TrainState] | None) -> tuple[TrainState, int, list[float]]:
        """The members and the step where a run stands, with all put right that a kill has left.

        And the scores of its validations that count.
        """
        members, step = restore(self.trainer, self.checkpoints, start=start)
        if self.checkpoints.steps():
            self.checkpoints.put_right(step)
        self.metrics.cut_after(step)
        path = self.checkpoints.folder.parent / "metrics.jsonl"
        before, config = iterate_metrics(path, "validation"), self.trainer.config
        return members, step, processes.of_first(lambda: regular_scores(config, before))

    def train(
        self, interrupt: "Interrupt", members: TrainState, step: int, scores: list[float]
    ) -> tuple[TrainState, int, int]:
        """To the last step, out of patience, or to a signal: members, step, and the signal or 0.

        The scores of validations are added to `scores`.
        """
        config, (signal, _) = self.trainer.config, agreed(interrupt)
        with TrainingProgress(step, config.steps, self.later) as progress:
            while step < config.steps and not signal and not out_of(config.patience, scores):
                members, step, loss, rate = self.call(members, step)
                progress.update(step, loss, rate)
                signal, self.steps_per_call = agreed(interrupt, self.steps_per_call)
                if config.is_regular(step) or signal:
                    loss, score = self.validate_and_save(members, step)
                    progress.validated(loss)  # after the save: nobody may be reading
                    if config.is_regular(step):
                        scores.append(score)
                    signal, _ = agreed(interrupt)
        return members, step, signal

    def call(self, members: TrainState, step: int) -> tuple[TrainState, int, float, float]:
        """To the next validation at most: members, step, mean loss and tokens a second.

        Raises:
            RunFailed: a loss is not finite.
        """
        config, trainer = self.trainer.config, self.trainer
        left = min(config.evaluate_every - step % config.evaluate_every, config.steps - step)
        profile = min(self.profile, config.evaluate_every, config.steps - step)
        if profile > left or not self.warm:
            profile = 0  # in a later call
        num_steps = min(profile or self.steps_per_call, left, trainer.feed.most_steps)
        trainer.compile(members)  # before the clock starts
        with profiled(self.checkpoints.folder.parent, num_steps if profile else 0):
            began = time.perf_counter()
            members, losses = trainer.train(members, step, num_steps)
            seconds = (time.perf_counter() - began) / num_steps
        self.profile, self.warm = 0 if profile else self.profile, True
        examples = config.accumulate * config.batch_size * config.seeds
        rate = examples * self.tokens_per_example / seconds
        lines = [
            {"step": step + i + 1, "split": "training"}
            | summarise({n: v[i] for n, v in losses.items()}, trainer.task.perplexity)
            | {"tokens_per_second": round(rate)}
            for i in range(num_steps)
        ]
        self.metrics.write(lines)
        self.check_finite(losses["loss"], step)
        # Calls are fitted to the time that a step takes.
        wanted = min(max(SECONDS_PER_CALL / seconds, 1), 4 * self.steps_per_call + 8)
        self.steps_per_call = int(min(wanted, trainer.feed.most_steps))
        return members, step + num_steps, float(losses["loss"][-1].mean()), rate

    def validate_and_save(self, members: TrainState, step: int) -> tuple[float | None, float]:
        """The mean loss, None if it is not finite, and the score of a validation."""
        means = validate(self.trainer, members.parameters, self.validation)
        means |= self.measure(members.parameters, means) if self.measure else {}
        line = summarise(means, self.trainer.task.perplexity)
        line = processes.of_first(lambda: {"step": step, "split": "validation"} | line)
        self.metrics.write([line])
        (score,) = selection_scores(self.trainer.config, [line])
        self.checkpoints.save(step, to_named(members), score)
        return line["loss"], score

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


def check_end(config: TrainingConfig, step: int, scores: list[float], signal: int) -> None:
    """Raises `Interrupted` after a signal, `RunFailed` where no validation has had a score; says
    where patience has ended the run."""
    if signal:
        saved = ", and saved" if step else ": there is nothing to save yet"
        raise Interrupted(f"stopped at step {step}{saved}", signal)
    if scores and not np.isfinite(min(scores)):
        raise RunFailed(f"no validation loss was finite, the last one at step {step}")
    if out_of(config.patience, scores):
        print(f"no better validation in the last {config.patience}: ended at step {step}")


def check_resumable(folder: Path) -> None:
    """Raises a `UserError` where a run has been trained, and its checkpoints were removed."""
    if not (folder / "metrics.jsonl").exists():
        return
    checkpoints, metrics = folder / "checkpoints", folder / "metrics.jsonl"
    if checkpoints.is_dir() and Checkpoints(checkpoints).steps():
        return
    # By its third validation a run has saved the checkpoint of its first.
    validations = sum(1 for _ in iterate_metrics(metrics, "validation"))
    if validations > 2 or (not checkpoints.is_dir() and metrics.stat().st_size):
        raise UserError(
            f"{folder} has no checkpoints, but {metrics.name} says that it was trained: put "
            f"{checkpoints} back, or remove {metrics} to begin at step 0"
        )
    if metrics.stat().st_size:
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
    """The scores of the validations that count."""
    regular = (line for line in validations if config.is_regular(line["step"]))
    return selection_scores(config, regular)


def selection_scores(config: TrainingConfig, validations: Iterable[dict]) -> list[float]:
    """What the best checkpoint has the least of, from validations' lines of metrics.

    Where a loss is not finite nothing is worse.
    """
    sign = 1 if config.select == "loss" else -1
    found = ((line.get("loss"), line.get(config.select)) for line in validations)
    return [math.inf if None in pair else sign * pair[1] for pair in found]


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


def agreed(interrupt: "Interrupt", steps_per_call: int = 0) -> tuple[int, int]:
    """The signal that any of the processes has got, and the first one's number of steps.

    With another number of steps in one of them all would go on to a wrong result, and then wait for
    each other for ever.
    """
    found = processes.gather((interrupt.signal, steps_per_call))
    return max(signal for signal, _ in found), found[0][1]


class Interrupt(processes.Signals):
    """Has the first of the signals in `signal`, or 0; a second one stops at once."""

    @property
    def signal(self) -> int:
        return self.arrived[0] if self.arrived else 0

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


class TrainingProgress:
    """A bar on a terminal; elsewhere (a log, CI) a line for each validation, and an estimate.

    Args:
        later: steps of other runs after this one's.
    """

    def __init__(self, step: int, steps: int, later: int = 0):
        self._bar = Progress(
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
        )
        fields = {"loss": "-", "validation": "-", "rate": "-"}
        self._task = self._bar.add_task("", completed=step, total=steps, **fields)
        self._live = sys.stdout.isatty()
        self._last, self._steps, self._later = "", steps, later
        self._measured: tuple[float, int] | None = None  # when, and at which step, it began
        self._estimated = self._live  # the bar has one of its own
        self._validated = False

    def __enter__(self):
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *_):
        if self._live:
            self._bar.stop()

    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        fields = {"loss": f"{loss:.3f}", "rate": f"{tokens_per_second:,.0f}"}
        self._bar.update(self._task, completed=step, **fields)
        self._last = f"step {step}  training loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s"
        self._estimate(step)

    def _estimate(self, step: int) -> None:
        """Say once how long it will take, by the time since the first call, which warms up."""
        now = time.monotonic()
        began, first = self._measured = self._measured or (now, step)
        if self._estimated or now - began < MEASURED:
            return
        self._estimated, of_step = True, (now - began) / (step - first)
        seconds, later = (of_step * number for number in (self._steps - step, self._later))
        if seconds + later >= SHORT:
            others = f", then {roughly(later)} for the study's other runs" if later else ""
            print(f"about {roughly(seconds)} to go{others}", flush=True)

    def validated(self, loss: float | None) -> None:
        """A validation has found this loss; None: one that is not finite."""
        loss = math.inf if loss is None else loss
        if not self._validated:  # the first one's program was compiled: the clock starts anew
            self._validated, self._measured = True, None
        self._bar.update(self._task, validation=f"{loss:.3f}")
        if not self._live:
            print(f"{self._last}  validation loss {loss:.4f}", flush=True)


def roughly(seconds: float) -> str:
    """A time as one says it: "40 s", "3 min", "1.5 h", "2.0 days"."""
    if seconds < 90:
        return f"{max(round(seconds, -1), 10):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
