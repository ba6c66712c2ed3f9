"""Fixtures of the tests of runs."""

from types import SimpleNamespace

import jax
import pytest

from tests.helpers.runs import LOGISTIC, labelled, varied
from tlite import distributed
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
def one_device():
    """Train on one device, which compiles faster; `test_run.py` trains on all four."""
    first = jax.devices()[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *_: first)
        patch.setattr(jax, "device_count", lambda *_: 1)
        yield
