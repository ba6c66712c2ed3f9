"""What the tests of runs share."""

import jax
import pytest

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


@pytest.fixture(scope="module")
def compiled_when_trained():
    """To save time: what is only started is not compiled (`test_sharding.py` looks at it)."""
    compile_now = Trainer.compile

    def compile_then(trainer, placed=None):
        if placed is not None:
            compile_now(trainer, placed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "compile", compile_then)
        yield


@pytest.fixture(scope="module")
def one_device():
    """To save time, where devices are not the point: runs on all devices are in `test_run.py`."""
    first = jax.devices()[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *_: first)
        patch.setattr(jax, "device_count", lambda *_: 1)
        yield
