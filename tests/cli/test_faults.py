"""What no command has foreseen: a sentence for faults of the system, a traceback for our own."""

import pytest

from tlite.cli import commands, main
from tlite.errors import Interrupted, UserError


@pytest.fixture
def told(monkeypatch, capsys):
    """The exit code and stderr of a command in which something is raised."""

    def call(error):
        def fail(*_, **__):
            raise error

        monkeypatch.setattr(commands, "evaluate", fail)
        code = main(["evaluate", "run"])
        out, err = capsys.readouterr()
        assert out == ""
        return code, err

    return call


MEMORY = "there is not enough memory: a smaller model, batch or text needs less"
TOLD = [
    (OSError(24, "", "some/file"), 2, "some/file: Too many open files"),
    (OSError(5, ""), 2, "Input/output error"),
    (MemoryError(), 2, MEMORY),
    (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."), 2, MEMORY),
    (RecursionError(), 2, "what was to be read is nested too deeply"),
    (Interrupted("stopped at step 3", 15), 143, "stopped at step 3"),
    (KeyboardInterrupt(), 130, "interrupted"),
]


@pytest.mark.parametrize(("error", "code", "sentence"), TOLD, ids=str)
def test_what_is_no_fault_of_ours_is_told(told, error, code, sentence):
    assert told(error) == (code, f"tlite: {sentence}\n")


@pytest.mark.parametrize("error", [ValueError("ours"), RuntimeError("ours"), KeyError("ours")])
def test_our_own_faults_stay_tracebacks(told, error):
    with pytest.raises(type(error), match="ours"):
        told(error)


def test_no_message_steers_a_terminal(told):
    assert told(UserError("no file \x1b[31ma\r")) == (2, "tlite: no file ␛[31ma␍\n")


def test_the_experiment_s_file_is_named_before_it_runs(capsys, tmp_path):
    (tmp_path / "mine.py").write_text("raise ValueError('stopped')")
    assert main(["train", "mine.py"]) == 2
    assert capsys.readouterr().out == f"experiment: {tmp_path / 'mine.py'}\n"
