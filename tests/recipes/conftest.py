"""What the tests of runs share."""

import pytest

from tlite.training import Trainer


@pytest.fixture
def compiled_when_trained(monkeypatch):
    """To save time: what is only started is not compiled (`test_memory.py` looks at that it is)."""
    compile_now = Trainer.compile

    def compile_then(trainer, placed=None):
        if placed is not None:
            compile_now(trainer, placed)

    monkeypatch.setattr(Trainer, "compile", compile_then)
