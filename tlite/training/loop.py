"""The loop around the compiled steps: validation, metrics, checkpoints, interruption, resume."""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tlite.errors import UserError
from tlite.training.checkpoints import Checkpoints
from tlite.training.config import TrainingConfig
from tlite.training.metrics import MetricsFile, read_metrics, summarise
from tlite.training.named import from_named, named_shapes, to_named
from tlite.training.progress import TrainingProgress
from tlite.training.step import Member
from tlite.training.trainer import MAX_STEPS_PER_CALL, Trainer

SECONDS_PER_CALL = (
    0.5  # often enough for the progress bar and Ctrl-C, rarely enough to cost nothing
)


def fit(
    trainer: Trainer,
    folder: Path,
    validation: Any,
    tokens_per_example: int,
    start: Callable[[], Member | None] | None = None,
    measure: Callable[[Member], dict[str, np.ndarray]] | None = None,
) -> Member | None:
    """Train from the folder's last checkpoint, or from the start, to the config's last step.

    The start is `trainer.init()`, or what `start` returns: pre-trained parameters, say, or None
    if making them was interrupted. `measure` adds to what a validation finds, by member (M,).

    Every step goes to metrics.jsonl; every `evaluate_every` steps, and at the end, the model is
    validated and saved; after `patience` validations without a better one it ends. Ctrl-C saves
    and stops. Nothing depends on where a run was cut.

    Returns:
        The trained members; None if interrupted.

    Raises:
        UserError: a loss is not finite, or the disk is full.
    """
    config, patience = trainer.config, trainer.config.patience
    checkpoints = Checkpoints(folder / "checkpoints", writing=True, last=config.keep)
    members, step = restore(trainer, checkpoints, start=start)
    if members is None:
        return None
    checkpoints.drop_after(step)
    metrics = MetricsFile(folder / "metrics.jsonl", step)
    tokens_per_step = config.accumulate * config.batch_size * tokens_per_example
    tokens_per_step *= len(config.members)
    steps_per_call, perplexity = 1, trainer.task.perplexity
    scores = [
        selection_score(config, line)
        for line in read_metrics(metrics.path)
        if line["split"] == "validation" and line["step"] % config.evaluate_every == 0
    ]
    with Interrupt() as interrupt, TrainingProgress(step, config.steps) as progress:
        while step < config.steps and not interrupt.requested and not out_of(patience, scores):
            next_evaluation = (step // config.evaluate_every + 1) * config.evaluate_every
            num_steps = min(steps_per_call, next_evaluation - step, config.steps - step)
            began = time.perf_counter()
            members, losses = trainer.train(members, step, num_steps)
            seconds = time.perf_counter() - began
            rate = tokens_per_step * num_steps / seconds
            metrics.write(
                [
                    {"step": step + i + 1, "split": "training"}
                    | summarise({name: v[i] for name, v in losses.items()}, perplexity)
                    | {"tokens_per_second": round(rate)}
                    for i in range(num_steps)
                ]
            )
            _check_finite("training", losses["loss"], step, config.members, checkpoints)
            step += num_steps
            progress.update(step, float(losses["loss"][-1].mean()), rate)
            # The first call compiles; later ones are fitted to the time that a step takes.
            wanted = SECONDS_PER_CALL / (seconds / num_steps)
            steps_per_call = int(min(max(wanted, 1), 4 * steps_per_call + 8, MAX_STEPS_PER_CALL))
            if step == next_evaluation or step == config.steps or interrupt.requested:
                means = validate(trainer, members, validation)
                means |= measure(members) if measure else {}
                _check_finite(
                    "validation", means["loss"][None], step - 1, config.members, checkpoints
                )
                line = {"step": step, "split": "validation"} | summarise(means, perplexity)
                metrics.write([line])
                progress.validated(line["loss"])
                saved = to_named(trainer.model, host_copy(members))
                score = selection_score(config, line)
                interrupted = step not in (next_evaluation, config.steps)
                checkpoints.save(step, saved, score, interrupted=interrupted)
                if not interrupted:
                    scores.append(score)
    checkpoints.wait()
    checkpoints.close()
    metrics.close()
    if out_of(patience, scores):
        print(f"no better validation in the last {patience}: ended at step {step}")
    elif step < config.steps:
        print(f"stopped and saved at step {step}")
        return None
    return members


def out_of(patience: int, scores: list[float]) -> bool:
    """Whether the best (least) of the scores is not among the last `patience`; never with 0."""
    return 0 < patience < len(scores) - int(np.argmin(scores)) if scores else False


def selection_score(config: TrainingConfig, validation: dict) -> float:
    """What the best checkpoint has the least of, from a validation's line of metrics."""
    return validation["loss"] if config.select == "loss" else -validation[config.select]


def restore(
    trainer: Trainer,
    checkpoints: Checkpoints,
    step: int | None = None,
    start: Callable[[], Member | None] | None = None,
) -> tuple[Member | None, int]:
    """The members of a checkpoint (the last unless told) and its step; else new ones and 0."""
    if not checkpoints.steps():
        return (start or trainer.init)(), 0
    members = trainer.member_shapes()
    step, trees = checkpoints.load(named_shapes(trainer.model, members), step)
    return trainer.place(from_named(trainer.model, members, trees)), step


def host_copy(members: Member) -> Member:
    """Copies that stay when the originals are used up by the next step."""
    arrays = members._replace(key=None)
    return jax.tree.map(np.array, jax.device_get(arrays))


def validate(trainer: Trainer, members: Member, batches: Any) -> dict[str, np.ndarray]:
    """Means over all of the batches, (M,) each."""
    sums = trainer.evaluate(members.parameters, batches)
    count = np.asarray(sums.pop("count"), np.float64).reshape(len(members.parameters), -1).sum(1)
    return {
        name: np.asarray(values, np.float64).reshape(len(count), -1).sum(1) / count
        for name, values in sums.items()
    }


def _check_finite(
    split: str, losses: np.ndarray, step: int, members: list, checkpoints: Checkpoints
):
    """Stop at the first row of losses (N, M), from `step` + 1 on, that is not finite."""
    bad = np.argwhere(~np.isfinite(losses))
    if not len(bad):
        return
    checkpoints.wait()
    row, member = bad[0]
    seed, rate = members[member]
    saved = checkpoints.steps()
    last = (
        f"the last good checkpoint is step {saved[-1]}, in {checkpoints.folder}"
        if saved
        else ("no checkpoint had been saved")
    )
    raise UserError(
        f"the {split} loss of seed {seed} with learning rate {rate:g} is {losses[row, member]} "
        f"at step {step + row + 1}; {last}"
    )


class Interrupt:
    """Ctrl-C sets `requested`; a second one stops at once."""

    requested = False

    def __enter__(self):
        self._in_main_thread = threading.current_thread() is threading.main_thread()
        if self._in_main_thread:
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_):
        if self._in_main_thread:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, *_):
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
