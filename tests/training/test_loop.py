"""The training loop: patience, signals, checkpoints, divergence, resume and progress."""

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
import sys
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import host_copy
from tests.helpers.complaints import complaint
from tlite.errors import Interrupted, RunFailed
from tlite.models import GeneratorConfig
from tlite.training import Trainer, TrainingConfig, generator_task, loop, validation_batches
from tlite.training.checkpoints import Checkpoints
from tlite.training.loop import Interrupt, fit, validate
from tlite.training.metrics import read_metrics
from tlite.training.run_dir import NO_SCORE

TOKENS = np.tile(np.arange(5), 20)
MODEL = GeneratorConfig(vocabulary_size=5, context=8, width=8, num_heads=2, num_blocks=1)
TRAINING = TrainingConfig(
    steps=12, batch_size=4, evaluate_every=2, best_metric="accuracy", precision="float32"
)
ACCURACIES = [0.1] * 12
RARE = {"evaluate_every": 6}


@pytest.fixture(scope="module")
def train():
    """Return a function that trains in a folder; validations return the accuracies in turn."""
    data, devices = jnp.asarray(TOKENS), jax.local_devices()[:1]
    trainer = Trainer(generator_task(MODEL), TRAINING, data, devices)
    initial = host_copy(trainer.init())  # compiled once

    def train(folder, accuracies, **changes):
        trainer.config = dataclasses.replace(TRAINING, **changes)  # no field that is compiled
        accuracies = iter(accuracies)
        batches = validation_batches(TOKENS, MODEL.context, 4, trainer.num_shards)

        def measure(parameters, means):
            return {"accuracy": np.array([next(accuracies)])}

        folder.mkdir(exist_ok=True)
        start = lambda: trainer.place(initial)  # noqa: E731
        return fit(trainer, folder, batches, MODEL.context, start, measure)

    return train


def interrupt_at(monkeypatch, step, action):
    """Run `action` when the call that computes `step` is dispatched."""
    dispatch = Trainer.dispatch

    def interrupted(trainer, state, first, num_steps):
        if first < step <= first + num_steps:
            action()
        return dispatch(trainer, state, first, num_steps)

    monkeypatch.setattr(Trainer, "dispatch", interrupted)


def diverge_at(monkeypatch, step):
    """Let the training losses be NaN from `step` on."""
    dispatch = Trainer.dispatch

    def diverging(trainer, state, first, num_steps):
        state, history = dispatch(trainer, state, first, num_steps)
        steps = first + 1 + np.arange(history["loss"].shape[1])
        return state, history | {"loss": jnp.where(steps >= step, jnp.nan, history["loss"])}

    monkeypatch.setattr(Trainer, "dispatch", diverging)


def read_lines(folder):
    lines = read_metrics(folder / "metrics.jsonl")
    return [{n: v for n, v in line.items() if n != "tokens_per_second"} for line in lines]


def validated_steps(folder):
    return [line["step"] for line in read_lines(folder) if line["split"] == "validation"]


def saved(folder):
    """Return the scores of the checkpoints by step, and the step of the best one."""
    with Checkpoints(folder / "checkpoints") as checkpoints:
        return checkpoints.scores(), checkpoints.best_step()


def saved_steps(folder):
    return [*saved(folder)[0]]


def test_training_ends_for_good_when_patience_is_exhausted(train, tmp_path, capsys):
    folder = tmp_path / "run"
    state = train(folder, [0.1, 0.5, 0.4, 0.5], patience=2)
    assert "stopped at step 8: " in capsys.readouterr().out
    assert validated_steps(folder) == [2, 4, 6, 8]
    content = (folder / "metrics.jsonl").read_text()
    again = train(folder, [], patience=2)
    assert "stopped at step 8" in capsys.readouterr().out
    assert (folder / "metrics.jsonl").read_text() == content
    jax.tree.map(np.testing.assert_array_equal, again.parameters, state.parameters)


def test_only_cross_entropies_have_a_perplexity(train, tmp_path):
    train(tmp_path / "run", [0.1] * 10, loss="focal", steps=2)
    has_perplexity = {line["split"]: "perplexity" in line for line in read_lines(tmp_path / "run")}
    assert has_perplexity == {"training": False, "validation": True}


# The order of dispatching, reading, writing and saving


@pytest.fixture
def events(monkeypatch):
    """Record the step of each dispatch, read, write and save."""
    events, dispatch, read, save = [], Trainer.dispatch, Trainer.read, Checkpoints.save

    def dispatched(trainer, state, step, num_steps):
        events.append(("dispatch", step + num_steps))
        state, history = dispatch(trainer, state, step, num_steps)
        return state, history | {"end": step + num_steps}

    def was_read(trainer, history, num_steps):
        events.append(("read", history.pop("end")))
        return read(trainer, history, num_steps)

    def saving(checkpoints, step, trees, *arguments):
        lines = read_metrics(checkpoints.folder.parent / "metrics.jsonl")
        training = [line["step"] for line in lines if line["split"] == "training"]
        assert training == [*range(1, step + 1)]  # complete and in order, before the save
        events.append(("save", step))
        return save(checkpoints, step, trees, *arguments)

    monkeypatch.setattr(Trainer, "dispatch", dispatched)
    monkeypatch.setattr(Trainer, "read", was_read)
    monkeypatch.setattr(Checkpoints, "save", saving)
    monkeypatch.setattr("tlite.training.loop.SECONDS_PER_CALL", 1e-9)  # one step a call
    return events


def test_losses_are_read_while_the_next_call_runs(train, tmp_path, events):
    train(tmp_path / "run", ACCURACIES, steps=6, evaluate_every=3)
    first = [("dispatch", 1), ("dispatch", 2), ("read", 1), ("dispatch", 3), ("read", 2)]
    assert events[:7] == [*first, ("read", 3), ("save", 3)]
    assert events[7:] == [(name, step + 3) for name, step in events[:7]]


def test_a_diverged_state_is_never_saved(train, tmp_path, monkeypatch):
    """Not even if a signal arrives, and the loss is read after a later call was dispatched."""
    with monkeypatch.context() as patch:
        diverge_at(patch, 5)
        interrupt_at(patch, 5, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(RunFailed, match=r"is nan at step 5; best checkpoint: step 4"):
            train(tmp_path / "run", ACCURACIES, evaluate_every=4)
    assert saved_steps(tmp_path / "run") == [4]
    train(tmp_path / "run", ACCURACIES, evaluate_every=4)
    train(tmp_path / "undisturbed", ACCURACIES, evaluate_every=4)
    assert read_lines(tmp_path / "run") == read_lines(tmp_path / "undisturbed")


def test_minutes_save_between_validations(train, tmp_path, monkeypatch, events):
    """Such a checkpoint is temporary, and training resumes from it to the same bits."""
    clock = SimpleNamespace(monotonic=lambda: 60.0 * len(events), perf_counter=time.perf_counter)
    monkeypatch.setattr("tlite.training.loop.time", clock)
    minutes = {"evaluate_every": 12, "save_every_minutes": 7.0}
    with monkeypatch.context() as patch:
        interrupt_at(patch, 8, lambda: os.missing)  # an AttributeError in place of a kill
        with pytest.raises(AttributeError):
            train(tmp_path / "run", [], **minutes)
    (step,) = saved_steps(tmp_path / "run")
    assert 3 <= step <= 7
    assert not validated_steps(tmp_path / "run")
    train(tmp_path / "run", ACCURACIES, **minutes)
    train(tmp_path / "undisturbed", ACCURACIES, evaluate_every=12)
    assert saved_steps(tmp_path / "run") == saved_steps(tmp_path / "undisturbed") == [12]
    assert read_lines(tmp_path / "run") == read_lines(tmp_path / "undisturbed")


# Signals


@pytest.mark.parametrize(
    ("number", "step"), [(signal.SIGINT, 3), (signal.SIGTERM, 6), (signal.SIGHUP, 3)]
)
def test_a_signal_saves_without_a_validation(train, tmp_path, monkeypatch, events, number, step):
    """At a scheduled step and between; further metrics such as BLEU are not computed either."""
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        interrupt_at(patch, step, lambda: signal.raise_signal(number))
        with pytest.raises(Interrupted, match=r"stopped at step \d+, and saved") as stop:
            train(tmp_path / "run", [], **RARE)
    assert stop.value.exit_code == 128 + number
    assert signal.getsignal(number) == before
    assert validated_steps(tmp_path / "run") == []
    ((last, score),) = saved(tmp_path / "run")[0].items()
    assert step <= last <= 6
    assert score == NO_SCORE
    train(tmp_path / "run", ACCURACIES, **RARE)
    assert saved_steps(tmp_path / "run")[-1] == 12


def test_a_signal_that_the_process_ignores_stays_ignored(train, tmp_path, monkeypatch):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupt_at(monkeypatch, 3, lambda: signal.raise_signal(signal.SIGINT))
        train(tmp_path / "run", ACCURACIES, **RARE)
    finally:
        signal.signal(signal.SIGINT, before)
    assert validated_steps(tmp_path / "run")[-1] == 12


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
    expected = pytest.raises(KeyboardInterrupt) if stops else contextlib.nullcontext()
    with expected, Interrupt() as interrupt:
        for number in numbers[:-1]:
            signal.raise_signal(number)
        assert interrupt.arrived == numbers[:-1]
        signal.raise_signal(numbers[-1])
    assert interrupt.arrived == numbers


@pytest.mark.parametrize("line", range(6))
def test_sigterm_at_any_line_ends_a_validation_quietly(line):
    lines, place = itertools.count(), (loop.__file__, "run_until_signal")

    def trace(frame, event, _):
        here = frame.f_code.co_filename, frame.f_code.co_name
        if here == place and event == "line" and next(lines) == line:
            signal.raise_signal(signal.SIGTERM)
        return trace

    before = sys.gettrace()
    with Interrupt() as interrupt:
        sys.settrace(trace)
        try:
            assert interrupt.run_until_signal(dict) in (None, {})
        except KeyboardInterrupt:
            pytest.fail("it escaped")
        finally:
            sys.settrace(before)


def test_a_signal_during_a_validation_finds_the_state_saved(train, tmp_path):
    class Accuracies(list):
        def __iter__(self):
            yield 0.1
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)  # a launcher may send a second one
            pytest.fail("the validation went on")

    with pytest.raises(Interrupted, match="stopped at step 4, and saved"):
        train(tmp_path / "cut", Accuracies())
    assert saved(tmp_path / "cut") == ({2: -0.1, 4: NO_SCORE}, 2)
    accuracies = [0.1, 0.9, 0.1, 0.1, 0.1, 0.1]
    train(tmp_path / "cut", accuracies[1:])
    train(tmp_path / "undisturbed", accuracies)
    assert read_lines(tmp_path / "cut") == read_lines(tmp_path / "undisturbed")
    assert saved_steps(tmp_path / "cut") == saved_steps(tmp_path / "undisturbed") == [4, 10, 12]


def test_a_kill_before_a_score_is_recorded_validates_only_once(train, tmp_path, monkeypatch):
    """The line in metrics.jsonl is written before the score in the checkpoint."""
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "record_score", lambda *_: os.missing)
        with pytest.raises(AttributeError):
            train(tmp_path / "run", [0.5])
    assert validated_steps(tmp_path / "run") == [2]
    train(tmp_path / "run", [0.1] * 5)
    assert validated_steps(tmp_path / "run") == [2, 4, 6, 8, 10, 12]
    assert saved(tmp_path / "run")[1] == 2


def test_a_run_that_lost_its_checkpoints_is_an_error(train, tmp_path):
    folder = tmp_path / "run"
    train(folder, ACCURACIES, steps=6)
    lines = read_lines(folder)
    shutil.rmtree(folder / "checkpoints")
    for _ in range(2):  # without the folder, then with an empty one
        assert "was trained but has no checkpoints" in complaint(train, folder, [], steps=8)
        assert read_lines(folder) == lines
        (folder / "checkpoints").mkdir(exist_ok=True)


# Losses that are not finite


@pytest.fixture
def replace_losses(monkeypatch):
    """Return a function that replaces the losses of validations, in turn; None keeps one."""

    def replace(*losses):
        remaining = iter(losses)

        def validated(*arguments):
            means, loss = validate(*arguments), next(remaining)
            return means if loss is None else means | {"loss": np.array([loss])}

        monkeypatch.setattr("tlite.training.loop.validate", validated)

    return replace


def test_an_infinite_validation_is_the_worst_and_ends_nothing(train, tmp_path, replace_losses):
    replace_losses(None, np.inf, None, None)
    train(tmp_path / "run", [0.1, 0.9, 0.1, 0.2], steps=8)
    lines = [line for line in read_lines(tmp_path / "run") if line["split"] == "validation"]
    assert [line["step"] for line in lines if line["loss"] is not None] == [2, 6, 8]
    assert (lines[1]["step"], saved(tmp_path / "run")[1]) == (4, 8)


@pytest.mark.parametrize("steps", [2, 6])
def test_a_run_without_a_finite_validation_fails(train, tmp_path, replace_losses, steps):
    replace_losses(*[np.nan] * 3)
    for _ in range(2):  # also when it is resumed
        with pytest.raises(RunFailed, match=rf"^no validation loss was finite, .* step {steps}$"):
            train(tmp_path / "run", ACCURACIES, steps=steps)


def test_a_diverged_seed_ends_alone_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    """Means and scores exclude the diverged seed, also if its losses become finite again."""
    config = dataclasses.replace(TRAINING, steps=6, seeds=3, best_metric="loss")
    trainer = Trainer(generator_task(MODEL), config, jnp.asarray(TOKENS), jax.local_devices()[:1])
    batches, dispatch = validation_batches(TOKENS, MODEL.context, 4, 1), Trainer.dispatch

    def poison(array):  # of seed 1
        is_poisoned = jnp.arange(3).reshape(3, *[1] * (array.ndim - 1)) == 1
        return jnp.where(is_poisoned, jnp.nan, array)

    def poisoned(trainer, state, first, num_steps):
        state, history = dispatch(trainer, state, first, num_steps)
        if first + num_steps >= 3:
            state = state._replace(parameters=jax.tree.map(poison, state.parameters))
        return state, history

    monkeypatch.setattr(Trainer, "dispatch", poisoned)
    tmp_path.joinpath("run").mkdir()
    fit(trainer, tmp_path / "run", batches, MODEL.context)
    fit(trainer, tmp_path / "run", batches, MODEL.context)  # reads the end of the run
    assert capsys.readouterr().err.count("warning: the training loss of seed 1 ") == 1
    last = read_lines(tmp_path / "run")[-1]
    losses = last["loss_replicas"]
    assert [loss is None for loss in losses] == [False, True, False]
    assert last["loss"] == pytest.approx((losses[0] + losses[2]) / 2)
    assert saved(tmp_path / "run")[0][6] < NO_SCORE
    metrics = tmp_path / "run" / "metrics.jsonl"
    finite = json.dumps(read_lines(tmp_path / "run")[-2]).replace("null", "3.0")
    metrics.write_text(metrics.read_text() + finite + "\n")  # an optimizer that recovers
    with loop.MetricsFile(metrics) as file:
        writer = loop.MetricsWriter(file, trainer, MODEL.context)
        writer.resume(6)
    assert writer.diverged == {1}


# Time


def test_calls_are_timed_without_compiling_and_overlap(tmp_path, monkeypatch):
    """`compare` compares minutes of training, of resumed runs too."""
    config = dataclasses.replace(TRAINING, steps=3, evaluate_every=3)
    trainer = Trainer(generator_task(MODEL), config, jnp.asarray(TOKENS), jax.devices()[:1])
    clock = [0.0]

    def taking(seconds, function):
        def called(*arguments):
            result = function(*arguments)
            clock[0] += seconds
            return result

        return called

    monkeypatch.setattr(Trainer, "lower", taking(100.0, Trainer.lower))
    monkeypatch.setattr(Trainer, "read", taking(0.5, Trainer.read))
    monkeypatch.setattr("tlite.training.loop.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr("tlite.training.loop.SECONDS_PER_CALL", 1e-9)  # one step a call
    batches = validation_batches(TOKENS, MODEL.context, 4, 1)
    fit(trainer, tmp_path, batches, MODEL.context)
    rates = [line.get("tokens_per_second") for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert rates == [4 * MODEL.context / 0.5] * 3 + [None]
    assert clock == [101.5]
