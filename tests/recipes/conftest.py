"""What the tests of runs share."""

import pytest

from tlite.training import Trainer


@pytest.fixture(autouse=True)
def compiled_when_trained(monkeypatch):
    """What is only started is not compiled (that it is, to fit, `test_memory.py` looks at)."""
    compile_now = Trainer.compile

    def compile_then(trainer, placed=None):
        if placed is not None:
            compile_now(trainer, placed)

    monkeypatch.setattr(Trainer, "compile", compile_then)
