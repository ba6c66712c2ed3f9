"""What the tests of runs share."""

import jax
import pytest

from tlite.training import Trainer


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
