import sys

import jax
import pytest

from tlite import distributed, errors
from tlite.cli import main
from tlite.errors import (
    LAUNCHED,
    UserError,
    check_packages,
    command,
    disk_errors,
    memory_error_message,
    write_error,
)


@pytest.mark.parametrize("place", ["x", "pretraining/metrics.jsonl"])
def test_a_full_disk_prints_the_command_to_resume(tmp_path, place):
    """The command can be pasted, whatever the name of the folder."""
    (run := tmp_path / "my runs").mkdir()
    with pytest.raises(UserError, match=r"No space left.*fix this$"), disk_errors(run / place):
        raise OSError(28, "No space left on device")
    (run / "config.json").touch()
    with pytest.raises(UserError) as caught, disk_errors(run / place):
        raise OSError(28, "No space left on device")
    assert str(caught.value).endswith(f"--resume '{run}'")


@pytest.mark.parametrize(
    ("words", "launched", "expected"),
    [
        ("generate r", "", "'/my env/tlite' generate r"),
        ("generate r", "'/my env/tlite' launch -n 2", "'/my env/tlite' generate r"),
        ("train --resume r", "tlite launch -n 2", "tlite launch -n 2 train --resume r"),
    ],
)
def test_printed_commands_call_tlite_as_the_user_did(words, launched, expected, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/my env/tlite"])
    monkeypatch.setenv(LAUNCHED, launched)
    assert command(*words.split()) == expected


def caused(error, cause):
    error.__cause__ = cause
    return error


DISK = "RESOURCE_EXHAUSTED: Error writing 0/0.bin [OS error 28: No space left on device]"
HTTP = "UNAVAILABLE: gs://bucket: HTTP 503"
NCCL = "INVALID_ARGUMENT: NCCL: invalid usage: duplicate GPU detected\nmore"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(24, "in other words", "path"), "Too many open files"),
        (OSError("cannot identify image"), "cannot identify image"),
        (caused(KeyError("x"), OSError(13, "")), "Permission denied"),
        (ValueError(HTTP), HTTP),
        (RuntimeError(DISK), DISK),
        (ValueError(), "ValueError"),
    ],
)
def test_a_failed_write_gives_the_first_line_of_its_error(tmp_path, error, line):
    assert f" ({line}): " in str(write_error(tmp_path, error))


def test_errors_of_jax_keep_their_first_line(monkeypatch):
    memory = "RESOURCE_EXHAUSTED: Out of memory allocating 71 bytes."
    assert memory in memory_error_message(jax.errors.JaxRuntimeError(memory))
    assert memory_error_message(jax.errors.JaxRuntimeError(HTTP)) is None
    monkeypatch.setattr(distributed, "_group", distributed.ProcessGroup(None, 2, 0))
    monkeypatch.setattr(distributed, "POLL_SECONDS", 0)
    for kind in (jax.errors.JaxRuntimeError, ValueError):
        assert NCCL.splitlines()[0] in distributed.peer_failure_message(kind(NCCL))
    assert distributed.peer_failure_message(ValueError("ours: nccl")) is None


@pytest.mark.parametrize("error", [ValueError, MemoryError])
def test_disk_errors_leaves_other_errors_unchanged(tmp_path, error):
    with pytest.raises(error, match="my own"), disk_errors(tmp_path / "x"):
        raise error("my own")


@pytest.mark.parametrize("checkout", [True, False])
def test_install_advice_in_a_checkout_and_elsewhere(checkout, tmp_path, monkeypatch):
    (tmp_path / "tlite").mkdir()
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "tlite" / "errors.py"))
    if checkout:
        (tmp_path / "pyproject.toml").touch()
    what = f"-e '{tmp_path}[text]'" if checkout else "'tlite[text]'"
    with pytest.raises(UserError) as caught:
        check_packages("text", ["json", "no_such_package"])
    assert str(caught.value) == (
        f"this needs the package no_such_package: install it with {sys.executable} -m pip install "
        f"{what}"
    )


TINY = "--steps 1 --evaluate-every 1 --precision float32"


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("datasets", "my_labels --hub some/set --training train"),
        ("pyarrow", "my_text --path a.parquet"),
        ("sklearn", "reviews_demo"),
        ("sacrebleu", "copy_task"),
        ("num2words", "number_words"),
        ("tokenizers", "my_text --path a.txt --tokenizer bpe"),
    ],
)
def test_a_missing_package_is_an_error_before_a_run_exists(
    package, command, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    for name in ("a.parquet", "a.txt"):
        (tmp_path / name).write_text("text,label\n" + "a good one,1\na bad one,0\n" * 60)
    assert main([*f"train {command} {TINY}".split(), "--run", "run"]) == 2
    assert f"this needs the package {package}: install it with " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
