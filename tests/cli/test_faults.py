"""What no command has foreseen: a sentence for faults of the system, a traceback for our own."""

import errno
import os

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


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES, errno.ENAMETOOLONG])
def test_a_fault_of_the_system_is_told_with_the_file(told, code):
    reason = os.strerror(code)
    assert told(OSError(code, reason, "some/file")) == (2, f"tlite: some/file: {reason}\n")
    assert told(OSError(code, reason)) == (2, f"tlite: {reason}\n")


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")],
    ids=repr,
)
def test_a_lack_of_memory_is_told(told, error):
    assert told(error) == (
        2,
        "tlite: there is not enough memory: a smaller model, batch or text needs less\n",
    )


def test_too_deep_a_nesting_is_told(told):
    assert told(RecursionError()) == (2, "tlite: what was to be read is nested too deeply\n")


@pytest.mark.parametrize("error", [ValueError("ours"), RuntimeError("ours"), KeyError("ours")])
def test_our_own_faults_stay_tracebacks(told, error):
    with pytest.raises(type(error), match="ours"):
        told(error)


def test_an_interrupted_run_ends_with_its_signal_s_code(told):
    assert told(Interrupted("stopped at step 3", 15)) == (143, "tlite: stopped at step 3\n")
    assert told(KeyboardInterrupt()) == (130, "tlite: interrupted\n")


def test_no_message_steers_a_terminal(told):
    assert told(UserError("no file \x1b[31ma\r")) == (2, "tlite: no file ␛[31ma␍\n")


def test_the_experiment_s_file_is_named_before_it_runs(capsys, tmp_path):
    (tmp_path / "mine.py").write_text("raise ValueError('stopped')")
    assert main(["train", "mine.py"]) == 2
    assert capsys.readouterr().out == f"experiment: {tmp_path / 'mine.py'}\n"
