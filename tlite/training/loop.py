"""The loop around the compiled steps: validation, metrics, checkpoints, interruption, resume.

Of several processes, process 0 writes and decides; a signal to any stops all at the same step.
"""

import contextlib
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
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

import tlite.distributed as distributed
from tlite.errors import Interrupted, RunFailed, UserError, disk_errors
from tlite.terminal import printable
from tlite.training.checkpoints import Checkpoints, from_named, to_named
from tlite.training.metrics import (
    MetricsFile,
    is_out_of_patience,
    iterate_metrics,
    last_training_line,
    means_from_sums,
    summarize_seeds,
    validation_score,
)
from tlite.training.run_dir import check_shared
from tlite.training.step import TrainState
from tlite.training.trainer import Trainer

SECONDS_PER_CALL = 0.5
"""Often enough for the progress bar and Ctrl-C, rarely enough to cost nothing."""
SHORT = 10.0
"""Remaining seconds below which no time is printed."""


def fit(
    trainer: Trainer,
    folder: Path,
    validation: Any,
    tokens_per_example: int,
    start: Callable[[], TrainState] | None = None,
    measure: Callable[[dict, dict], dict[str, np.ndarray]] | None = None,
    profile: int = 0,
) -> TrainState:
    """Train from the last checkpoint, or the start, to the last step; return the final state.

    The state is saved, then validated, every `evaluate_every` steps and at the end.

    Args:
        folder: run folder, the same for all processes.
        validation: batches of `trainer.evaluate`.
        tokens_per_example: positions per example, for the logged tokens per second.
        start: returns the initial state; `trainer.init` by default.
        measure: (parameters, means) -> further validation metrics, one value per seed (M,).
        profile: number of steps to profile into the folder's `profile`.

    Raises:
        RunFailed: all seeds have diverged, or no validation loss was finite.
        UserError: the disk is full, or the folder has changed since it was written.
        Interrupted: a signal stopped the run, which saved its state and did not validate it.
    """
    check_folder(folder)
    with (
        Interrupt() as interrupt,
        MetricsFile(folder / "metrics.jsonl", writing=distributed.is_process0()) as metrics,
        Checkpoints(folder / "checkpoints", trainer.config, writing=True) as checkpoints,
    ):
        arguments = validation, tokens_per_example, measure, profile
        loop = Loop(trainer, metrics, checkpoints, interrupt, *arguments)
        loop.resume(start)
        signal = loop.train()
        checkpoints.wait()
        distributed.broadcast_from_process0(
            metrics.check_unchanged
        )  # all wait until process 0 has renamed the checkpoint
    loop.report_end(signal)
    return loop.state


@dataclass
class Loop:
    """Arguments of `fit` and the progress of its run."""

    trainer: Trainer
    metrics: MetricsFile
    checkpoints: Checkpoints
    interrupt: "Interrupt"
    validation: Any
    tokens_per_example: int
    measure: Callable[[dict, dict], dict[str, np.ndarray]] | None
    profile: int
    """Number of steps to profile; 0 once they have been."""
    state: TrainState | None = None
    step: int = 0
    scores: dict[int, float] = field(default_factory=dict)
    """Scores of the scheduled validations by step."""
    diverged: set[int] = field(default_factory=set)
    """Indices of the seeds with a loss that was not finite."""
    steps_per_call: int = 1
    warm: bool = False
    """True after the first call."""

    def resume(self, start: Callable[[], TrainState] | None) -> None:
        """Restore the last intact checkpoint and remove everything that is later."""
        self.state, self.step = restore(self.trainer, self.checkpoints, start=start)
        if self.step:
            self.checkpoints.put_right(self.step)
        self.metrics.truncate_after(self.step)
        self.scores, self.diverged = self.read_history()

    def read_history(self) -> tuple[dict[int, float], set[int]]:
        """Return the scores by step and the diverged seeds from the metrics of process 0."""
        path, config = self.metrics.path, self.trainer.config

        def read():
            lines = (n for n in iterate_metrics(path, "validation") if config.is_regular(n["step"]))
            scores = [(line["step"], validation_score(config, line)) for line in lines]
            losses = last_training_line(path).get("loss_replicas", [])
            return scores, [i for i, loss in enumerate(losses) if loss is None]

        scores, diverged = distributed.broadcast_from_process0(read)
        return dict(scores), set(diverged)

    def train(self) -> int:
        """Train until the last step, the end of patience, or a signal; return the signal or 0."""
        config, signal = self.trainer.config, self.agreed()
        with TrainingProgress(self.step, config.steps) as progress:
            if not signal and self.lacks_score():
                progress.validated(self.validate())
                signal = self.agreed()
            while not (signal or self.step == config.steps or self.is_out_of_patience()):
                progress.trained(*self.call())
                signal, scheduled = self.agreed(), config.is_regular(self.step)
                if signal or scheduled:
                    self.checkpoints.save(self.step, to_named(self.state))
                if scheduled and not signal:
                    progress.validated(self.validate())
                    signal = self.agreed()
        return signal

    def lacks_score(self) -> bool:
        """True if a signal or a kill came between the last checkpoint and its validation."""
        if not self.step or not self.trainer.config.is_regular(self.step):
            return False
        if self.step in self.scores:  # logged, but perhaps not recorded in the checkpoint
            self.checkpoints.record_score(self.step, self.scores[self.step])
            return False
        return True

    def is_out_of_patience(self) -> bool:
        return is_out_of_patience(self.trainer.config.patience, [*self.scores.values()])

    def agreed(self) -> int:
        """All-gather pending signals and adopt process 0's `steps_per_call`.

        Processes with different numbers of steps would run different programs and deadlock.
        """
        arrived = self.interrupt.arrived
        pairs = distributed.all_gather(
            "signals", (arrived[0] if arrived else 0, self.steps_per_call)
        )
        self.steps_per_call = pairs[0][1]
        return max(signal for signal, _ in pairs)

    def call(self) -> tuple[int, float, float]:
        """Run one compiled call of several steps, not past the next validation.

        Returns:
            The step reached, its mean loss, and tokens per second.

        Raises:
            RunFailed: all seeds have diverged.
        """
        config, trainer, first = self.trainer.config, self.trainer, self.step
        most = min(config.evaluate_every - first % config.evaluate_every, config.steps - first)
        profile = min(self.profile, config.evaluate_every, config.steps - first)
        profile = profile if self.warm and profile <= most else 0  # in a later call
        num_steps = min(profile or self.steps_per_call, most, trainer.feed.most_steps)
        trainer.compile(self.state)  # before the clock starts
        with profiled(self.metrics.path.parent, num_steps if profile else 0):
            began = time.perf_counter()
            self.state, losses = trainer.train(self.state, first, num_steps)
            seconds = (time.perf_counter() - began) / num_steps
        self.step, self.warm, self.profile = first + num_steps, True, 0 if profile else self.profile
        examples = config.gradient_accumulation_steps * config.batch_size * config.seeds
        rate = examples * self.tokens_per_example / seconds
        finite = np.isfinite(losses["loss"])
        lines = [
            {"step": first + i + 1, "split": "training"}
            | summarize_seeds(
                {n: v[i] for n, v in losses.items()}, trainer.task.perplexity, finite[i]
            )
            | {"tokens_per_second": round(rate)}
            for i in range(num_steps)
        ]
        self.metrics.write(lines)
        self.note_diverged(losses["loss"], first)
        fitting = min(max(SECONDS_PER_CALL / seconds, 1), 4 * self.steps_per_call + 8)
        self.steps_per_call = int(min(fitting, trainer.feed.most_steps))
        return self.step, float(losses["loss"][-1][finite[-1]].mean()), rate

    def validate(self) -> float | None:
        """Validate the state just saved, log the result, and score its checkpoint.

        Returns:
            The mean loss, infinite if it is not finite; None if a signal came first.
        """
        try:
            with self.interrupt.breaking():
                means = validate(self.trainer, self.state.parameters, self.validation)
                means |= self.measure(self.state.parameters, means) if self.measure else {}
        except KeyboardInterrupt:
            if self.interrupt.is_urgent():
                raise
            return None
        alive = [i not in self.diverged for i in range(self.trainer.config.seeds)]
        line = summarize_seeds(means, self.trainer.task.perplexity, np.array(alive))
        line = distributed.broadcast_from_process0(
            lambda: {"step": self.step, "split": "validation"} | line
        )
        self.metrics.write([line])
        score = validation_score(self.trainer.config, line)
        self.checkpoints.record_score(self.step, score)
        self.scores[self.step] = score
        return math.inf if line["loss"] is None else line["loss"]

    def note_diverged(self, losses: Float[np.ndarray, "N M"], step: int) -> None:
        """Warn of seeds with a training loss after `step` that is not finite; the others go on.

        Raises:
            RunFailed: no other seed is left.
        """
        config, finite, messages = self.trainer.config, np.isfinite(losses), []
        for i in {*np.flatnonzero(~finite.all(0)).tolist()} - self.diverged:
            row = int(np.argmin(finite[:, i]))
            messages.append(
                f"the training loss of seed {config.seed_range[i]} with learning rate "
                f"{config.learning_rate:g} is {losses[row, i]} at step {step + row + 1}"
            )
            self.diverged.add(i)
        if len(self.diverged) == config.seeds:
            self.checkpoints.wait()
            best = self.checkpoints.best_step()
            saved = f"the best checkpoint is step {best}, in {self.checkpoints.folder}"
            raise RunFailed(f"{messages[0]}; {saved if best else 'no checkpoint had been saved'}")
        for message in messages if distributed.is_process0() else ():
            print(f"warning: {message}: it counts as failed, the others go on", file=sys.stderr)

    def report_end(self, signal: int) -> None:
        """Print why the run ended.

        Raises:
            Interrupted: a signal stopped it.
            RunFailed: no validation loss was finite.
        """
        if self.profile:
            print("nothing was profiled: the run had no second call of its program to make")
        if signal:
            saved = ", and saved" if self.step else ": there is nothing to save yet"
            raise Interrupted(f"stopped at step {self.step}{saved}", signal)
        if self.scores and not np.isfinite(min(self.scores.values())):
            raise RunFailed(f"no validation loss was finite, the last one at step {self.step}")
        if self.is_out_of_patience():
            patience = self.trainer.config.patience
            print(f"no better validation in the last {patience}: ended at step {self.step}")


def check_folder(folder: Path) -> None:
    """Raise a `UserError` if a trained run lost its checkpoints, or processes see other folders."""
    check_shared(folder)
    checkpoints, metrics = folder / "checkpoints", folder / "metrics.jsonl"
    if not metrics.exists() or not metrics.stat().st_size or Checkpoints(checkpoints).steps():
        return
    # The first checkpoint is complete before the second validation begins.
    validations = sum(1 for _ in iterate_metrics(metrics, "validation"))
    if validations > 1 or not checkpoints.is_dir():
        raise UserError(
            f"{folder} has no checkpoints, but {metrics.name} says that it was trained: put "
            f"{checkpoints} back, or remove {metrics} to begin at step 0"
        )
    print(f"{folder} has no checkpoint yet: beginning at step 0")


def restore(
    trainer: Trainer,
    checkpoints: Checkpoints,
    step: int | None = None,
    start: Callable[[], TrainState] | None = None,
) -> tuple[TrainState, int]:
    """Return the state of a checkpoint (the last by default) and its step; else the initial one."""
    if not checkpoints.steps():
        return (start or trainer.init)(), 0
    step, trees = checkpoints.load(to_named(trainer.replica_shapes), step)
    return trainer.place(from_named(trainer.replica_shapes, trees)), step


def validate(trainer: Trainer, parameters: dict, batches: Any) -> dict[str, np.ndarray]:
    """Return the means (M,) over all batches, for parameters by name (M, ...)."""
    return means_from_sums(trainer.evaluate(parameters, batches))


class Interrupt(distributed.Signals):
    """Notes signals for the loop; a second SIGINT raises `KeyboardInterrupt` at once.

    SIGTERM and SIGHUP are often sent twice, by a scheduler to every process and by a launcher.
    """

    _breaks = False

    def is_urgent(self) -> bool:
        return self.arrived.count(signal.SIGINT) > 1

    @contextlib.contextmanager
    def breaking(self) -> Iterator[None]:
        """Raise `KeyboardInterrupt` at any signal: what is computed can be computed again.

        Several processes would wait for each other: there a signal waits for the end of the block.
        """
        self._breaks = distributed.process_count() == 1
        try:
            if self._breaks and self.arrived:
                raise KeyboardInterrupt
            yield
        finally:
            self._breaks = False

    def _note(self, number, frame):
        super()._note(number, frame)
        if self._breaks or (number == signal.SIGINT and self.is_urgent()):
            raise KeyboardInterrupt


@contextlib.contextmanager
def profiled(run: Path, num_steps: int) -> Iterator[None]:
    """Trace the block in process 0 for XProf, TensorBoard and Perfetto; nothing for 0 steps."""
    if not num_steps or not distributed.is_process0():
        yield
        return
    folder, options = run / "profile", jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # it would slow down the steps
    with (
        disk_errors(folder),
        jax.profiler.trace(folder, create_perfetto_trace=True, profiler_options=options),
    ):
        yield
    files = folder.glob("plugins/profile/*/perfetto_trace.json.gz")
    newest = max(files, key=lambda path: path.parent.name, default=None)  # none if JAX wrote none
    perfetto = f", or {newest} in https://ui.perfetto.dev" if newest else ""
    line = f"profile of {num_steps} steps: xprof {folder} (or tensorboard --logdir){perfetto}"
    print(printable(line))


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
        self._row = self.add_task("", completed=step, total=steps, **fields)
        self._last = f"step {step}"

    def trained(self, step: int, loss: float, rate: float) -> None:
        """Show the step reached, its training loss, and tokens per second."""
        self.update(self._row, completed=step, loss=f"{loss:.3f}", rate=f"{rate:,.0f}")
        self._last = f"step {step}  training loss {loss:.4f}  {rate:,.0f} tokens/s"

    def validated(self, loss: float | None) -> None:
        """Show the loss of a validation; None: a signal came before its end."""
        if loss is None:
            return
        self.update(self._row, validation=f"{loss:.3f}")
        if self.disable:
            seconds = self.tasks[0].time_remaining or 0.0
            time_left = f"  {timedelta(seconds=seconds)} left" if seconds >= SHORT else ""
            print(f"{self._last}  validation loss {loss:.4f}{time_left}", flush=True)
