"""Fixtures of the tests of runs."""

from types import SimpleNamespace

import jax
import pytest

from tests.helpers.runs import LOGISTIC, labelled, varied, with_programs_of
from tlite import distributed
from tlite.runs import Run
from tlite.runs.study import value_key
from tlite.training import Trainer


@pytest.fixture(autouse=True)
def unnested_broadcasts(monkeypatch):
    """A function of process 0 alone broadcasts nothing: the other processes would not answer."""
    broadcast, running = distributed.broadcast_from_process0, []

    def unnested(function):
        assert not running, f"{running[0]} broadcasts"
        running.append(function)
        try:
            return broadcast(function)
        finally:
            running.pop()

    monkeypatch.setattr(distributed, "broadcast_from_process0", unnested)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Work in an empty folder; collect no garbage, which takes longer than training."""
    monkeypatch.chdir(tmp_path)
    for name in ("study", "tune"):
        monkeypatch.setattr(f"tlite.runs.{name}.gc", SimpleNamespace(collect=lambda: 0))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The experiment of a logistic regression over a file, which compiles fastest."""
    texts = labelled(tmp_path_factory.mktemp("texts") / "texts.jsonl")
    return varied(LOGISTIC, data=texts, steps=4, seeds=1)


@pytest.fixture(scope="module")
def compiled_when_trained():
    """Compile a run at its first step, not when it is created: some tests never train it."""
    compile_now = Trainer.compile

    def compile_then(trainer, placed=None):
        if placed is not None:
            compile_now(trainer, placed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "compile", compile_then)
        yield


@pytest.fixture(scope="module")
def shared_programs():
    """Trace and compile once the programs of runs that differ only by seed or learning rate.

    Both are arrays of the train state. A killed and resumed run has the programs of the first one.
    """
    init, trainers = Run.__init__, {}

    def init_like_first(run, *arguments):
        init(run, *arguments)
        experiment = varied(run.experiment, seed=0, learning_rate=1.0)
        first = trainers.setdefault((value_key(experiment), jax.device_count()), run.trainer)
        if first is not run.trainer:
            run.trainer = with_programs_of(first, run.trainer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "__init__", init_like_first)
        yield


@pytest.fixture(scope="module")
def one_device():
    """Train on one device, which compiles faster; `test_run.py` trains on all four."""
    first = jax.devices()[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *_: first)
        patch.setattr(jax, "device_count", lambda *_: 1)
        yield
