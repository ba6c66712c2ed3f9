"""The loop: it ends when patience is out, keeps as many checkpoints as asked, and stays ended."""

import dataclasses
import functools
import json
import math
import os
import shutil
import signal
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from tests.helpers.arrays import host_copy
from tlite.errors import Interrupted, RunFailed, UserError
from tlite.models import GeneratorConfig
from tlite.training import Trainer, TrainingConfig, generator_task, validation_batches
from tlite.training.checkpoints import Checkpoints
from tlite.training.loop import (
    Interrupt,
    TrainingProgress,
    fit,
    validate,
)
from tlite.training.metrics import is_out_of_patience, read_metrics, validation_score

TOKENS = np.tile(np.arange(5), 20)
MODEL = GeneratorConfig(vocabulary_size=5, context=8, width=8, num_heads=2, num_blocks=1)
TRAINING = TrainingConfig(
    steps=12, batch_size=4, evaluate_every=2, best_metric="accuracy", precision="float32"
)


@pytest.mark.parametrize(
    ("patience", "scores", "ended"),
    [
        (0, [1.0, 2.0, 3.0, 4.0], False),
        (1, [], False),
        (1, [3.0, 2.0], False),
        (1, [2.0, 2.0], True),
        (2, [2.0, 3.0, 1.0, 3.0], False),
        (2, [2.0, 3.0, 1.0, 3.0, 1.5], True),
    ],
)
def test_patience_is_out_when_so_many_scores_are_no_better_than_the_best(patience, scores, ended):
    assert is_out_of_patience(patience, scores) == ended


def test_the_least_score_is_the_best_of_what_is_selected():
    line = {"loss": 2.0, "accuracy": 0.25, "bleu": 30.0}
    scores = {"loss": 2.0, "accuracy": -0.25, "bleu": -30.0}
    for select, score in scores.items():
        config = dataclasses.replace(TRAINING, best_metric=select)
        assert validation_score(config, line) == score
        assert validation_score(config, {"loss": None}) == math.inf


@pytest.fixture(scope="module")
def trained():
    """Train in a folder; validations find the accuracies given, in turn."""
    data, devices = jnp.asarray(TOKENS), jax.local_devices()[:1]
    trainer = Trainer(generator_task(MODEL), TRAINING, data, devices)
    start = host_copy(trainer.init())  # compiled once

    def train(folder, accuracies, **changes):
        trainer.config = dataclasses.replace(TRAINING, **changes)  # of none that is compiled
        found = iter(accuracies)
        batches = validation_batches(TOKENS, MODEL.context, 4, trainer.num_shards)

        def measure(replicas, means):
            return {"accuracy": np.array([next(found)])}

        folder.mkdir(exist_ok=True)
        begin = lambda: trainer.place(start)  # noqa: E731
        return fit(trainer, folder, batches, MODEL.context, begin, measure)

    return train


def interrupted_at(monkeypatch, step, action):
    """`action` is done while `step` is computed."""
    compute = Trainer.train

    def train(trainer, replicas, first, num_steps):
        if first < step <= first + num_steps:
            action()
        return compute(trainer, replicas, first, num_steps)

    monkeypatch.setattr(Trainer, "train", train)


def validated(folder):
    lines = read_metrics(folder / "metrics.jsonl")
    return [line["step"] for line in lines if line["split"] == "validation"]


def saved(folder):
    checkpoints = Checkpoints(folder / "checkpoints")
    try:
        return checkpoints.steps()
    finally:
        checkpoints.close()


def test_training_ends_when_patience_is_out_and_does_not_go_on(trained, tmp_path, capsys):
    folder = tmp_path / "run"
    replicas = trained(folder, [0.1, 0.5, 0.4, 0.5], patience=2)
    assert "no better validation in the last 2: ended at step 8\n" in capsys.readouterr().out
    assert validated(folder) == [2, 4, 6, 8]
    content = (folder / "metrics.jsonl").read_text()
    again = trained(folder, [], patience=2)
    assert "ended at step 8" in capsys.readouterr().out
    assert (folder / "metrics.jsonl").read_text() == content
    jax.tree.map(np.testing.assert_array_equal, again.parameters, replicas.parameters)


def test_without_patience_training_goes_on_and_keeps_the_last_checkpoints_and_the_best(
    trained, tmp_path
):
    trained(tmp_path / "run", [0.1, 0.9, 0.1, 0.1, 0.1, 0.1], max_to_keep=3)
    assert validated(tmp_path / "run") == [2, 4, 6, 8, 10, 12]
    assert saved(tmp_path / "run") == [4, 8, 10, 12]


def values():
    return [0.1] * 12


RARE = {"evaluate_every": 6}
"""Where validations are not the point."""


@pytest.mark.parametrize(
    ("number", "step"), [(signal.SIGINT, 3), (signal.SIGTERM, 6), (signal.SIGHUP, 3)]
)
def test_a_signal_saves_without_a_validation(trained, tmp_path, monkeypatch, number, step):
    """Neither one at a scheduled step nor one between, nor further metrics such as BLEU."""
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        interrupted_at(patch, step, lambda: signal.raise_signal(number))
        with pytest.raises(Interrupted, match=r"stopped at step \d+, and saved") as stop:
            trained(tmp_path / "run", [], **RARE)
    assert stop.value.exit_code == 128 + number
    assert signal.getsignal(number) == before
    assert validated(tmp_path / "run") == []
    with Checkpoints(tmp_path / "run" / "checkpoints") as checkpoints:
        ((last, score),) = checkpoints._scores().items()
    assert step <= last <= 6
    assert score is None
    trained(tmp_path / "run", values(), **RARE)
    assert saved(tmp_path / "run")[-1] == 12


def test_a_signal_that_the_process_was_told_to_ignore_is_ignored(trained, tmp_path, monkeypatch):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupted_at(monkeypatch, 3, lambda: signal.raise_signal(signal.SIGINT))
        trained(tmp_path / "run", values(), **RARE)
    finally:
        signal.signal(signal.SIGINT, before)
    assert validated(tmp_path / "run")[-1] == 12


@pytest.mark.parametrize(
    ("numbers", "stops"),
    [
        ([signal.SIGTERM, signal.SIGTERM, signal.SIGTERM], False),
        ([signal.SIGHUP, signal.SIGTERM, signal.SIGINT], False),
        ([signal.SIGINT, signal.SIGTERM], False),
        ([signal.SIGINT, signal.SIGINT], True),
        ([signal.SIGTERM, signal.SIGINT, signal.SIGINT], True),
    ],
)
def test_only_a_second_sigint_stops_at_once(numbers, stops):
    with pytest.raises(KeyboardInterrupt) if stops else nullcontext(), Interrupt() as interrupt:
        for number in numbers[:-1]:
            signal.raise_signal(number)
        assert interrupt.arrived == numbers[:-1]
        signal.raise_signal(numbers[-1])
    assert interrupt.arrived == numbers


def test_a_signal_during_a_validation_finds_the_state_saved(trained, tmp_path):
    class Accuracies(list):
        def __iter__(self):
            yield 0.1
            signal.raise_signal(signal.SIGTERM)
            pytest.fail("the validation went on")

    with pytest.raises(Interrupted, match="stopped at step 4, and saved"):
        trained(tmp_path / "cut", Accuracies())
    with Checkpoints(tmp_path / "cut" / "checkpoints") as checkpoints:
        assert checkpoints._scores() == {2: -0.1, 4: None}
        assert checkpoints.best_step() == 2
    accuracies = [0.1, 0.9, 0.1, 0.1, 0.1, 0.1]
    trained(tmp_path / "cut", accuracies[1:])
    trained(tmp_path / "whole", accuracies)
    assert lines_of(tmp_path / "cut") == lines_of(tmp_path / "whole")
    assert saved(tmp_path / "cut") == saved(tmp_path / "whole") == [4, 10, 12]


def test_a_kill_before_a_score_is_recorded_validates_only_once(trained, tmp_path, monkeypatch):
    """The line in metrics.jsonl is written before the score in the checkpoint."""
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "record_score", lambda *_: os.missing)
        with pytest.raises(AttributeError):
            trained(tmp_path / "run", [0.5])
    assert validated(tmp_path / "run") == [2]
    trained(tmp_path / "run", [0.1] * 5)
    assert validated(tmp_path / "run") == [2, 4, 6, 8, 10, 12]
    with Checkpoints(tmp_path / "run" / "checkpoints") as checkpoints:
        assert checkpoints.best_step() == 2


def test_without_its_checkpoints_a_run_is_not_begun_anew(trained, tmp_path):
    folder = tmp_path / "run"
    trained(folder, values(), steps=6)
    content = (folder / "metrics.jsonl").read_text()
    for spoil in (
        lambda: [shutil.rmtree(path) for path in (folder / "checkpoints").iterdir()],
        lambda: (folder / "checkpoints").rmdir(),
    ):
        spoil()
        with pytest.raises(UserError, match=r"no checkpoints, but metrics\.jsonl says"):
            trained(folder, values(), steps=8)
        assert (folder / "metrics.jsonl").read_text() == content


def test_a_run_killed_before_its_first_checkpoint_begins_anew_and_says_so(
    trained, tmp_path, capsys
):
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    line = {"step": 1, "split": "training", "loss": 1.0}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    trained(folder, values(), steps=2)
    assert f"{folder} has no checkpoint yet: beginning at step 0" in capsys.readouterr().out
    assert validated(folder)[0] == 2


@pytest.fixture
def finds(monkeypatch):
    """Let validations find losses of this in turn, in place of their own; None: their own."""

    def use(*losses):
        given = iter(losses)

        def validated(*arguments):
            means, loss = validate(*arguments), next(given)
            return means if loss is None else means | {"loss": np.array([loss])}

        monkeypatch.setattr("tlite.training.loop.validate", validated)

    return use


def lines_of(folder):
    lines = read_metrics(folder / "metrics.jsonl")
    return [{n: v for n, v in line.items() if n != "tokens_per_second"} for line in lines]


def test_a_training_loss_that_is_not_finite_ends_the_run_and_tells_the_best_checkpoint(
    trained, tmp_path, monkeypatch
):
    compute = Trainer.train

    def train(trainer, replicas, first, num_steps):
        replicas, losses = compute(trainer, replicas, first, num_steps)
        steps = first + 1 + np.arange(num_steps)[:, None]
        return replicas, losses | {"loss": np.where(steps >= 6, np.nan, losses["loss"])}

    monkeypatch.setattr(Trainer, "train", train)
    told = r"^the training loss of seed 0 with learning rate 0.001 is nan at step 6; "
    with pytest.raises(RunFailed, match=rf"{told}the best checkpoint is step 4, in .*checkpoints$"):
        trained(tmp_path / "run", [0.1, 0.2])
    assert [line["loss"] for line in lines_of(tmp_path / "run")][-1] is None


def test_a_validation_that_is_not_finite_is_the_worst_and_ends_nothing(trained, tmp_path, finds):
    finds(None, np.inf, None, None)
    trained(tmp_path / "run", [0.1, 0.9, 0.1, 0.2], steps=8)
    assert validated(tmp_path / "run") == [2, 4, 6, 8]
    losses = [line["loss"] for line in lines_of(tmp_path / "run") if line["split"] == "validation"]
    assert [loss is None for loss in losses] == [False, True, False, False]
    with Checkpoints(tmp_path / "run" / "checkpoints") as checkpoints:
        assert checkpoints.best_step() == 8


@pytest.mark.parametrize("steps", [2, 6])
def test_a_run_none_of_whose_validations_is_finite_fails(trained, tmp_path, finds, steps):
    finds(*[np.nan] * 3)
    for _ in range(2):  # it stays so
        with pytest.raises(RunFailed, match=rf"^no validation loss was finite, .* step {steps}$"):
            trained(tmp_path / "run", values(), steps=steps)


def test_a_diverged_seed_ends_alone_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    """Its validations and its share of every mean are left out."""
    config = dataclasses.replace(TRAINING, steps=6, seeds=3, best_metric="loss")
    trainer = Trainer(generator_task(MODEL), config, jnp.asarray(TOKENS), jax.local_devices()[:1])
    batches, compute = validation_batches(TOKENS, MODEL.context, 4, 1), Trainer.train

    def train(trainer, replicas, first, num_steps):
        replicas, losses = compute(trainer, replicas, first, num_steps)
        poisoned = first + num_steps >= 3  # seed 1
        spoil = lambda a: jnp.where(jnp.arange(3).reshape(3, *[1] * (a.ndim - 1)) == 1, jnp.nan, a)  # noqa: E731
        parameters = jax.tree.map(spoil, replicas.parameters) if poisoned else replicas.parameters
        return replicas._replace(parameters=parameters), losses

    monkeypatch.setattr(Trainer, "train", train)
    tmp_path.joinpath("run").mkdir()
    fit(trainer, tmp_path / "run", batches, MODEL.context)
    fit(trainer, tmp_path / "run", batches, MODEL.context)  # the end is read back
    assert capsys.readouterr().err.count("warning: the training loss of seed 1 ") == 1
    last = lines_of(tmp_path / "run")[-1]
    losses = last["loss_replicas"]
    assert [loss is None for loss in losses] == [False, True, False]
    assert last["loss"] == pytest.approx((losses[0] + losses[2]) / 2)
    with Checkpoints(tmp_path / "run" / "checkpoints") as checkpoints:
        assert math.isfinite(checkpoints._scores()[6])


def test_compiling_is_not_timed(tmp_path, monkeypatch):
    """So the minutes that are compared are of training, of a resumed run too."""
    trainer = Trainer(generator_task(MODEL), TRAINING, jnp.asarray(TOKENS), jax.devices()[:1])
    seconds, lower, train = [0.0], Trainer.lower, Trainer.train

    def taking(time, function):
        def called(*arguments):
            result = function(*arguments)
            seconds[0] += time
            return result

        return called

    monkeypatch.setattr(Trainer, "lower", taking(100.0, lower))
    monkeypatch.setattr(Trainer, "train", taking(0.5, train))
    monkeypatch.setattr("tlite.training.loop.time.perf_counter", lambda: seconds[0])
    trainer.config = dataclasses.replace(TRAINING, steps=1)
    batches = validation_batches(TOKENS, MODEL.context, 4, 1)
    fit(trainer, tmp_path, batches, MODEL.context)
    line, _ = read_metrics(tmp_path / "metrics.jsonl")
    assert line["tokens_per_second"] == 4 * MODEL.context / 0.5
    assert seconds == [100.5]


def test_the_time_that_is_left_is_told_unless_it_is_seconds(monkeypatch, capsys):
    now = 0.0
    console = functools.partial(Console, get_time=lambda: now)
    monkeypatch.setattr("tlite.training.loop.Console", console)
    progress = TrainingProgress(0, 1000)
    for step in (1, 100, 200, 980):
        now = 0.2 * step
        progress.trained(step, 1.0, 1.0)
        progress.validated(2.0)
    lines = capsys.readouterr().out.splitlines()
    left = [line.partition("validation loss 2.0000")[2] for line in lines]
    assert left == ["", "  0:03:00 left", "  0:02:40 left", ""]


def test_a_damaged_checkpoint_is_kept_aside_when_training_goes_on(trained, tmp_path, capsys):
    trained(tmp_path / "run", values(), steps=6)
    folder = tmp_path / "run" / "checkpoints"
    (folder / "6" / "checkpoint.json").write_text("?")
    trained(tmp_path / "run", values(), steps=8)
    assert (folder / "damaged-6").is_dir()
    assert saved(tmp_path / "run")[-1] == 8
    assert validated(tmp_path / "run") == [2, 4, 6, 8]
    assert "checkpoint 6 is damaged: using checkpoint 4 instead" in capsys.readouterr().err
