"""The training loop: compiled calls of several steps, metrics, validation, checkpoints and signals.

The metrics of a call are read while the next one runs. All processes dispatch the same calls;
process 0 writes and decides, and a signal to any process stops all at the same step.
"""

import contextlib
import math
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

import tlite.distributed as distributed
from tlite.errors import Interrupted, RunFailed, UserError, disk_errors, show
from tlite.training.checkpoints import Checkpoints, from_named, to_named
from tlite.training.losses import CrossEntropy
from tlite.training.metrics import (
    MetricsFile,
    eval_scores,
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
"""Short enough for the progress bar and Ctrl-C, long enough that the host's work costs nothing."""
MIN_SECONDS_LEFT = 10.0
"""A shorter remaining time is not printed."""


def fit(
    trainer: Trainer,
    folder: Path,
    validation: Any,
    tokens_per_example: int,
    start: Callable[[], TrainState] | None = None,
    measure: Callable[[dict, dict], dict[str, np.ndarray]] | None = None,
    profile: int = 0,
    until: int | None = None,
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
        until: step to stop at; a later call continues bit for bit. None: the last step.

    Raises:
        RunFailed: all seeds have diverged, or no validation loss was finite.
        UserError: the disk is full, or the folder has changed since it was written.
        Interrupted: a signal stopped the run; its state was saved and not validated.
    """
    check_folder(folder)
    with (
        Interrupt() as interrupt,
        MetricsFile(folder / "metrics.jsonl") as file,
        Checkpoints(folder / "checkpoints", trainer.config, writing=True) as checkpoints,
    ):
        metrics = MetricsWriter(file, trainer, tokens_per_example)
        checkpointer = Checkpointer(trainer, checkpoints, metrics, interrupt, validation, measure)
        state, step = checkpointer.resume(start)
        state, step = train(state, step, until or trainer.config.steps, checkpointer, profile)
        checkpointer.finish(step)
    return state


def train(
    state: TrainState, step: int, end: int, checkpointer: "Checkpointer", profile: int
) -> tuple[TrainState, int]:
    """Train, save and validate until the step `end`, a signal, or the end of patience."""
    trainer, metrics = checkpointer.trainer, checkpointer.metrics
    with TrainingProgress(step, trainer.config.steps) as progress:
        checkpointer.agree()
        if not checkpointer.signal and checkpointer.needs_validation(step):
            progress.validated(checkpointer.validate(step, state))
        if checkpointer.is_stopped():
            return state, step
        calls = train_steps(checkpointer, state, step, end, profile)
        for reached, losses, seconds, latest in calls:
            progress.trained(reached, *metrics.write_call(reached, losses, seconds))
            if latest is None:
                continue
            state, step = latest, reached
            checkpointer.save(step, state)
            if trainer.config.is_eval_step(step) and not checkpointer.signal:
                progress.validated(checkpointer.validate(step, state))
            if checkpointer.is_stopped():
                break
    return state, step


def train_steps(
    checkpointer: "Checkpointer", state: TrainState, step: int, end: int, profile: int
) -> Iterator[tuple[int, dict[str, np.ndarray], float, TrainState | None]]:
    """Train to the step `end`; yield the result of each call while the next one runs.

    At validations, at the trunk, at the end, and when a save is due, all results are yielded before
    the next call is dispatched: the last of them has the state, which may then be saved.

    Yields:
        The step reached, losses by step and seed (N, M), seconds per step, and the state: None if
        a later call has used it already.
    """
    trainer, first = checkpointer.trainer, step
    config, calls = trainer.config, CallQueue(trainer)
    folder = checkpointer.metrics.file.path.with_name("profile")
    if step < end:
        trainer.compile(state)  # before the clock starts; a run just created is compiled
    while step < end:
        most = min(config.evaluate_every, end - step, trainer.loader.max_steps_per_call)
        left = min(config.next_save(step) - step, most)
        profiled = min(profile, most)
        profiled = profiled if step > first and profiled <= left else 0  # the first call warms up
        if profiled and calls.unread:
            yield calls.read()
        num_steps, start = profiled or min(calls.num_steps, left), time.perf_counter()
        with profiled_call(folder, profiled):
            state, history = trainer.dispatch(state, step, num_steps)
            jax.block_until_ready(state if profiled else None)
        calls.unread.append((step, num_steps, history, start))
        step, profile = step + num_steps, 0 if profiled else profile
        if len(calls.unread) > 1:
            yield calls.read()
        calls.num_steps, is_due = checkpointer.agree(calls.propose_num_steps())
        if is_due or config.is_eval_step(step) or step in (config.trunk, end):
            yield calls.read(state)
    if profile:
        show("no profile: the first step of a command is not profiled, and no other step was left")


class CallQueue:
    """Dispatched calls, one that runs and the next one, and the number of steps per call."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.unread, self.ended = trainer, deque(), 0.0
        self.num_steps, self.seconds = 1, SECONDS_PER_CALL  # per step of the last call

    def read(self, state: TrainState | None = None) -> tuple:
        """Wait for the oldest call; return its result as `train_steps` does."""
        step, num_steps, history, start = self.unread.popleft()
        losses = self.trainer.read(history, num_steps)
        start, self.ended = max(start, self.ended), time.perf_counter()
        self.seconds = max(self.ended - start, 1e-9) / num_steps
        return step + num_steps, losses, self.seconds, state

    def propose_num_steps(self) -> int:
        """Return the steps that take about `SECONDS_PER_CALL`, growing gradually from 1."""
        most = min(4 * self.num_steps + 8, self.trainer.loader.max_steps_per_call)
        return int(min(max(SECONDS_PER_CALL / self.seconds, 1), most))


@dataclass
class MetricsWriter:
    """Writes metrics.jsonl; keeps the scores and divergences that decide how training goes on."""

    file: MetricsFile
    trainer: Trainer
    tokens_per_example: int
    scores: dict[int, float] = field(default_factory=dict)
    """Scores of scheduled validations, by step."""
    diverged: set[int] = field(default_factory=set)
    """Indices of the seeds that had a training loss that is not finite."""
    failure: str = ""
    """Message about such a loss, once all seeds have diverged."""

    def resume(self, step: int) -> None:
        """Remove the lines after `step`; read scores and diverged seeds from the other lines."""
        self.file.truncate_after(step)
        path, config = self.file.path, self.trainer.config

        def read() -> tuple[list, list]:
            scores = eval_scores(config, iterate_metrics(path, "validation"))
            lines = iterate_metrics(path, "training", b"null")
            losses = [line.get("loss_replicas", []) for line in lines]
            diverged = {i for line in losses for i, loss in enumerate(line) if loss is None}
            return [*scores.items()], [*diverged]

        scores, diverged = distributed.broadcast_from_process0(read)
        self.scores, self.diverged = dict(scores), set(diverged)

    def write_call(self, step: int, losses: dict, seconds: float) -> tuple[float, float]:
        """Write a line for each step of a call; return the last loss and the tokens per second."""
        config, finite = self.trainer.config, np.isfinite(losses["loss"])
        examples = config.gradient_accumulation_steps * config.batch_size * config.seeds
        rate, first, lines = examples * self.tokens_per_example / seconds, step - len(finite), []
        # Other training losses are not cross-entropies; a validation's loss always is.
        has_perplexity = self.trainer.task.has_perplexity and config.loss == CrossEntropy()
        # A seed that has diverged is excluded from all later steps.
        for i, is_alive in enumerate(np.logical_and.accumulate(finite) & self._alive()):
            by_seed = {name: values[i] for name, values in losses.items()}
            line = {"step": first + i + 1, "split": "training"}
            line |= summarize_seeds(by_seed, has_perplexity, is_alive)
            lines.append(line | {"tokens_per_second": round(rate)})
        self.file.write(lines)
        self._check_divergence(losses["loss"], first)
        loss = lines[-1]["loss"]
        return math.nan if loss is None else loss, rate

    def _alive(self) -> Bool[np.ndarray, "M"]:
        """Return False for each diverged seed."""
        return np.array([i not in self.diverged for i in range(self.trainer.config.seeds)])

    def _check_divergence(self, losses: Float[np.ndarray, "N M"], first: int) -> None:
        """Warn of seeds with a loss that is not finite; set `failure` if no other seed is left."""
        config, finite = self.trainer.config, np.isfinite(losses)
        for i in {*np.flatnonzero(~finite.all(0)).tolist()} - self.diverged:
            row = int(np.argmin(finite[:, i]))
            message = (
                f"the training loss of seed {config.seed_range[i]} with learning rate "
                f"{config.learning_rate:g} is {losses[row, i]} at step {first + row + 1}"
            )
            self.diverged.add(i)
            if len(self.diverged) == config.seeds:
                self.failure = message
            elif distributed.is_process0():
                print(f"warning: {message}: it counts as failed, the others go on", file=sys.stderr)

    def write_validation(self, step: int, means: dict[str, np.ndarray]) -> dict[str, Any]:
        """Write and return the line of a validation, and keep its score."""
        config, line = self.trainer.config, {"step": step, "split": "validation"}
        line |= summarize_seeds(means, self.trainer.task.has_perplexity, self._alive())
        line = distributed.broadcast_from_process0(lambda: line)
        self.file.write([line])
        self.scores[step] = validation_score(config, line)
        return line


@dataclass
class Checkpointer:
    """Saves the state, then validates it and records its score; all processes agree on when."""

    trainer: Trainer
    checkpoints: Checkpoints
    metrics: MetricsWriter
    interrupt: "Interrupt"
    validation: Any
    measure: Callable[[dict, dict], dict[str, np.ndarray]] | None
    signal: int = 0
    """Number of the signal that stops the run; 0: none."""
    last_save: float = 0.0
    """Time of the last save, in seconds by `time.monotonic`."""

    def resume(self, start: Callable[[], TrainState] | None) -> tuple[TrainState, int]:
        """Restore the last intact checkpoint, or the start; remove everything that is later."""
        if self.checkpoints.steps():
            state, step = restore(self.trainer, self.checkpoints)
            self.checkpoints.quarantine_damaged(step)
        else:
            state, step = (start or self.trainer.init)(), 0
        self.metrics.resume(step)
        self.last_save = time.monotonic()
        return state, step

    def agree(self, num_steps: int = 1) -> tuple[int, bool]:
        """Set `signal` from all processes; return the steps per call, and True if a save is due.

        All adopt the number and the clock of process 0: processes that differed would run
        different programs and wait for each other for ever.
        """
        arrived, seconds = self.interrupt.arrived, 60 * self.trainer.config.save_every_minutes
        is_due = 0 < seconds <= time.monotonic() - self.last_save
        values = distributed.all_gather("signals", (arrived[:1], num_steps, is_due))
        self.signal = max((number for numbers, _, _ in values for number in numbers), default=0)
        _, num_steps, is_due = values[0]
        return num_steps, bool(self.signal or is_due or self.metrics.failure)

    def is_stopped(self) -> bool:
        """Return True after a signal, or if the run is out of patience."""
        scores = [*self.metrics.scores.values()]
        return bool(self.signal) or is_out_of_patience(self.trainer.config.patience, scores)

    def save(self, step: int, state: TrainState) -> None:
        """Save the state of a step whose losses, and all before, are in metrics.jsonl.

        Raises:
            RunFailed: all seeds have diverged.
        """
        if self.metrics.failure:
            self.checkpoints.wait()
            best, folder = self.checkpoints.best_step(), self.checkpoints.folder
            saved = f"best checkpoint: step {best} in {folder}" if best else "nothing was saved"
            raise RunFailed(f"{self.metrics.failure}; {saved}")
        self.checkpoints.save(step, to_named(state))
        self.last_save = time.monotonic()

    def validate(self, step: int, state: TrainState) -> dict[str, Any]:
        """Validate the state just saved, log the result, and score its checkpoint.

        Returns:
            The logged line, with None for a mean that is not finite; empty if a signal came first.
        """
        if self.trainer.config.average_last:
            self.checkpoints.wait()  # the mean is of saved ones, this one among them
        means = self.interrupt.run_until_signal(partial(self._measure_all, step, state))
        line = {}
        if means is not None:
            line = self.metrics.write_validation(step, means)
            self.checkpoints.record_score(step, self.metrics.scores[step])
        self.agree()
        return line

    def _measure_all(self, step: int, state: TrainState) -> dict[str, np.ndarray]:
        """Return the metrics of the weights and, with a prefix, of their averages."""
        config, weights = self.trainer.config, {"": state.parameters}
        if state.ema is not None:
            weights["ema_"] = state.parameters | state.ema
        if config.average_last:
            saved = self.checkpoints.steps()
            steps = [step for step in config.average_steps(step) if step in saved]
            abstract = self.trainer.abstract_state.parameters
            weights["average_"] = self.checkpoints.load_mean(abstract, steps, config.low_rank)
        metrics = {}
        for prefix, parameters in weights.items():
            means = validate(self.trainer, parameters, self.validation)
            means |= self.measure(parameters, means) if self.measure else {}
            metrics |= {prefix + name: value for name, value in means.items()}
        return metrics

    def needs_validation(self, step: int) -> bool:
        """Return True if a signal or a kill came between a checkpoint and its validation.

        A score that was logged and not recorded in the checkpoint is recorded.
        """
        if not step or not self.trainer.config.is_eval_step(step):
            return False
        if step in self.metrics.scores:
            self.checkpoints.record_score(step, self.metrics.scores[step])
        return step not in self.metrics.scores

    def finish(self, step: int) -> None:
        """Wait for the last checkpoint, and print why the run ended.

        Raises:
            Interrupted: a signal stopped it.
            RunFailed: no validation loss was finite.
        """
        self.checkpoints.wait()
        # All wait for process 0.
        distributed.broadcast_from_process0(self.metrics.file.check_unchanged)
        if self.signal:
            saved = ", and saved" if step else ": there is nothing to save yet"
            raise Interrupted(f"stopped at step {step}{saved}", self.signal)
        scores = self.metrics.scores.values()
        if scores and not np.isfinite(min(scores)):
            raise RunFailed(f"no validation loss was finite, the last one at step {step}")
        if self.is_stopped():
            patience = self.trainer.config.patience
            print(f"stopped at step {step}: no better score in the last {patience} validations")


def check_folder(folder: Path) -> None:
    """Raise a `UserError` if a trained run lost its checkpoints, or processes see other folders."""
    check_shared(folder)
    checkpoints, metrics = folder / "checkpoints", folder / "metrics.jsonl"
    if Checkpoints(checkpoints).steps():
        return
    # The first checkpoint is complete before the second validation begins.
    lines = list(iterate_metrics(metrics, "validation"))
    if len(lines) > 1 or (last_training_line(metrics) and not checkpoints.is_dir()):
        raise UserError(f"{folder} was trained but has no checkpoints: restore {checkpoints}")


def restore(
    trainer: Trainer, checkpoints: Checkpoints, step: int | None = None
) -> tuple[TrainState, int]:
    """Return the state of the intact checkpoint nearest to `step` (the last), and its step."""
    step, trees = checkpoints.load(to_named(trainer.abstract_state), step)
    return trainer.place(from_named(trainer.abstract_state, trees)), step


def validate(trainer: Trainer, parameters: dict, batches: Any) -> dict[str, np.ndarray]:
    """Return the means (M,) over all batches, for parameters by name (M, ...)."""
    return means_from_sums(trainer.evaluate(parameters, batches))


class Interrupt(distributed.Signals):
    """Collects signals for the loop; a second SIGINT raises `KeyboardInterrupt` at once.

    SIGTERM and SIGHUP are often sent twice, by a scheduler to every process and by a launcher.
    """

    _raises = False

    def run_until_signal(self, function: Callable[[], dict]) -> dict | None:
        """Return function(), or None as soon as a signal arrives.

        With several processes, which would wait for each other, the function runs to its end.
        """
        try:
            try:
                self._raises = distributed.process_count() == 1
                return None if self._raises and self.arrived else function()
            finally:
                self._raises = False
        except KeyboardInterrupt:  # perhaps raised in the inner `finally`
            if self.arrived.count(signal.SIGINT) > 1:
                raise
            return None

    def _note(self, number, frame):
        super()._note(number, frame)
        if self._raises or (number == signal.SIGINT and self.arrived.count(number) > 1):
            self._raises = False  # a second signal must not interrupt what follows
            raise KeyboardInterrupt


@contextlib.contextmanager
def profiled_call(folder: Path, num_steps: int) -> Iterator[None]:
    """Trace the block in process 0 for XProf, TensorBoard and Perfetto; nothing for 0 steps."""
    if not num_steps or not distributed.is_process0():
        yield
        return
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # it would slow down the steps
    with (
        disk_errors(folder),
        jax.profiler.trace(folder, create_perfetto_trace=True, profiler_options=options),
    ):
        yield
    show(f"profile of {num_steps} steps: xprof {folder}, or perfetto_trace.json.gz in this folder")


class TrainingProgress(Progress):
    """Progress bar on a terminal; elsewhere a line for each validation."""

    def __init__(self, step: int, steps: int):
        super().__init__(
            "step {task.completed}/{task.total}",
            BarColumn(bar_width=20),
            "loss {task.fields[loss]}",
            "validation {task.fields[validation]}",
            "{task.fields[rate]} tokens/s",
            TimeElapsedColumn(),
            "left",
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

    def validated(self, means: dict[str, Any]) -> None:
        """Show loss and accuracy of a validation; empty: a signal came before its end."""
        if not means:
            return
        values = {name: means[name] for name in ("loss", "accuracy") if name in means}
        values = {name: math.nan if v is None else v for name, v in values.items()}
        self.update(self._row, validation=" ".join(f"{v:.3f}" for v in values.values()))
        if self.disable:
            seconds = self.tasks[0].time_remaining or 0.0
            left = f"  {timedelta(seconds=seconds)} left" if seconds >= MIN_SECONDS_LEFT else ""
            text = "  ".join(f"validation {name} {value:.4f}" for name, value in values.items())
            print(f"{self._last}  {text}{left}", flush=True)
