"""The loop around the compiled steps: validation, metrics, checkpoints, interruption, resume."""

import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tlite import processes
from tlite.errors import Interrupted, UserError
from tlite.training.checkpoints import Checkpoints
from tlite.training.config import TrainingConfig
from tlite.training.followers import FollowedMetrics
from tlite.training.metrics import NoMetrics, iterate_metrics, summarise
from tlite.training.named import from_named, to_named
from tlite.training.profiling import Profile
from tlite.training.progress import TrainingProgress
from tlite.training.side_by_side import Finite, failures
from tlite.training.step import TrainState
from tlite.training.trainer import Trainer

SECONDS_PER_CALL = (
    0.5  # often enough for the progress bar and Ctrl-C, rarely enough to cost nothing
)


def fit(
    trainer: Trainer,
    folder: Path,
    validation: Any,
    tokens_per_example: int,
    start: Callable[[], TrainState] | None = None,
    measure: Callable[[TrainState, dict], dict[str, np.ndarray]] | None = None,
    profile: int = 0,
) -> TrainState:
    """Train from the folder's last checkpoint, or from the start, to the config's last step.

    The start is `trainer.init()`, or what `start` returns: pre-trained parameters, say. `measure`
    adds to what a validation finds, by member (M,); it is given that. So many steps as `profile`
    says are profiled, into the folder's `profile`.

    Every step goes to metrics.jsonl; every `evaluate_every` steps, and at the end, the model is
    validated and saved; after `patience` validations without a better one it ends. Ctrl-C, SIGTERM
    and SIGHUP save and stop. Nothing depends on where a run was cut. Of several processes the first
    writes and decides, and a signal to any stops all at the same step.

    Returns:
        The trained members.

    Raises:
        UserError: a loss is not finite, the disk is full, or the folder is not as it was left.
        Interrupted: by one of these signals; all is saved.
    """
    config, patience = trainer.config, trainer.config.patience
    counting = {"last": config.keep, "every": config.evaluate_every, "end": config.steps}
    check_resumable(folder)
    path, first = folder / "metrics.jsonl", processes.is_first()
    with (
        Interrupt() as interrupt,
        FollowedMetrics(path, config.follow) if first else NoMetrics() as metrics,
        Checkpoints(folder / "checkpoints", writing=True, **counting) as checkpoints,
    ):
        members, step = restore(trainer, checkpoints, start=start)
        if checkpoints.steps():
            checkpoints.set_aside_damaged(step)
        metrics.cut_after(step)
        failed = failures(path, "training") if first and config.varied else {}
        failed = dict(processes.told([*failed.items()]))
        finite = Finite(config, checkpoints, failed)
        tokens_per_step = config.accumulate * config.batch_size * tokens_per_example
        tokens_per_step *= len(config.members)
        steps_per_call, perplexity = 1, trainer.task.perplexity
        validations = iterate_metrics(path, "validation") if first else ()
        regular = (line for line in validations if line["step"] % config.evaluate_every == 0)
        scores = processes.told(selection_scores(config, regular))
        signal, _ = agreed(interrupt)
        with (
            TrainingProgress(step, config.steps) as progress,
            Profile(folder / "profile", profile) as profiled,
        ):
            while step < config.steps and not signal and not out_of(patience, scores):
                next_evaluation = (step // config.evaluate_every + 1) * config.evaluate_every
                num_steps = min(steps_per_call, next_evaluation - step, config.steps - step)
                num_steps = profiled.next(num_steps)
                began = time.perf_counter()
                members, losses = trainer.train(members, step, num_steps)
                seconds = time.perf_counter() - began
                profiled.done(num_steps)
                rate = tokens_per_step * num_steps / seconds
                out = finite.note(losses["loss"], step)
                metrics.write(
                    [
                        {"step": step + i + 1, "split": "training"}
                        | summarise({n: v[i] for n, v in losses.items()}, perplexity, out[i])
                        | {"tokens_per_second": round(rate)}
                        for i in range(num_steps)
                    ]
                )
                finite.check("training", losses["loss"], step, out)
                step += num_steps
                progress.update(step, float(losses["loss"][-1, ~out[-1]].mean()), rate)
                # The first call compiles; later ones are fitted to the time that a step takes.
                wanted = SECONDS_PER_CALL / (seconds / num_steps)
                steps_per_call = min(
                    max(wanted, 1), 4 * steps_per_call + 8, trainer.feed.most_steps
                )
                signal, steps_per_call = agreed(interrupt, int(steps_per_call))
                if step == next_evaluation or step == config.steps or signal:
                    means = validate(trainer, members, validation)
                    means |= measure(members, means) if measure else {}
                    out = finite.out | ~np.isfinite(means["loss"])
                    interrupted = step not in (next_evaluation, config.steps)
                    if interrupted and not np.array_equal(out, finite.out):
                        # Where a run was cut decides of no failure: nothing is kept of this.
                        checkpoints.wait()
                        step = max(checkpoints.steps(), default=0)
                        break
                    finite.check("validation", means["loss"][None], step - 1, out[None])
                    finite.tell()
                    line = summarise(means, perplexity, out)
                    line = processes.told({"step": step, "split": "validation"} | line)
                    metrics.write([line])
                    saved = to_named(members)
                    (score,) = selection_scores(config, [line])
                    checkpoints.save(step, saved, score)
                    progress.validated(line["loss"])  # after the save: nobody may be reading
                    if not interrupted:
                        scores.append(score)
                    signal, _ = agreed(interrupt)
        checkpoints.wait()
        processes.told(None)  # the first one has renamed the last checkpoint: all may read it
        metrics.check()
    if signal:
        saved = ", and saved" if step else ": there is nothing to save yet"
        raise Interrupted(f"stopped at step {step}{saved}", signal)
    if out_of(patience, scores):
        print(f"no better validation in the last {patience}: ended at step {step}")
    return members


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
    regular = (line for line in validations if line["step"] % config.evaluate_every == 0)
    return out_of(config.patience, selection_scores(config, regular))


def selection_scores(config: TrainingConfig, validations: Iterable[dict]) -> list[float]:
    """What the best checkpoint has the least of, from validations' lines of metrics."""
    sign = 1 if config.select == "loss" else -1
    found = (line.get(config.select) for line in validations)
    return [sign * value for value in found if value is not None]


def restore(
    trainer: Trainer,
    checkpoints: Checkpoints,
    step: int | None = None,
    start: Callable[[], TrainState] | None = None,
) -> tuple[TrainState, int]:
    """The members of a checkpoint (the last unless told) and its step; else new ones and 0."""
    if not checkpoints.steps():
        return (start or trainer.init)(), 0
    members = trainer.member_shapes()
    step, trees = checkpoints.load(to_named(members), step)
    return trainer.place(from_named(members, trees)), step


def host_copy(members: TrainState) -> TrainState:
    """Copies that stay when the originals are used up by the next step."""
    arrays = members._replace(key=None)
    return jax.tree.map(np.array, jax.device_get(arrays))


def validate(trainer: Trainer, members: TrainState, batches: Any) -> dict[str, np.ndarray]:
    """Means over all of the batches, (M,) each."""
    sums = trainer.evaluate(members.parameters, batches)
    number = trainer.config.num_members
    count = np.asarray(sums.pop("count"), np.float64).reshape(number, -1).sum(1)
    return {
        name: np.asarray(values, np.float64).reshape(number, -1).sum(1) / count
        for name, values in sums.items()
    }


def agreed(interrupt: "Interrupt", steps_per_call: int = 0) -> tuple[int, int]:
    """The signal that any of the processes has got, and the first one's number of steps.

    With another number of steps in one of them all would go on to a wrong result, and then wait for
    each other for ever.
    """
    found = processes.agree(np.array([interrupt.signal, steps_per_call]))
    return int(found[:, 0].max()), int(found[0, 1])


class Interrupt:
    """Notes the first SIGINT (Ctrl-C), SIGTERM or SIGHUP in `signal`; a second one stops at once.

    What a process was told to ignore when it started (by `nohup`, or as a job of a shell in the
    background) it goes on ignoring.
    """

    signal = 0

    def __enter__(self):
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                number = getattr(signal, name, None)  # Windows has no SIGHUP
                if number and signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number, _):
        if self.signal:
            raise KeyboardInterrupt
        self.signal = int(number)
