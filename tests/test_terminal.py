"""Standard streams: what is printed on them, and what becomes of it where they fail."""

import io
import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tlite.errors import UserError
from tlite.terminal import (
    StandardError,
    StandardOutput,
    printable,
    quiet_libraries,
    reader_has_gone,
    show,
)


def test_no_control_character_but_newline_and_tab_is_left():
    text = printable("".join(map(chr, range(0x300))))
    left = {c for c in text if ord(c) < 32 or 0x7F <= ord(c) < 0xA0}
    assert left == {"\n", "\t"}
    assert printable("\x1b[31mred\x07\x7f\x9b2J\r") == "␛[31mred␇␡\\u009b2J␍"
    assert printable("Grüße, 𝄞 ␛\n\t") == "Grüße, 𝄞 ␛\n\t"


@pytest.mark.parametrize("terminal", [False, True])
def test_text_goes_out_as_it_is_where_there_is_no_terminal(monkeypatch, terminal):
    out = io.StringIO()
    out.isatty = lambda: terminal
    monkeypatch.setattr("sys.stdout", out)
    show("a\x1b[0m", end="|", flush=True)
    show("\r")
    assert out.getvalue() == ("a␛[0m|␍\n" if terminal else "a\x1b[0m|\r\n")


def test_of_errors_that_nobody_can_catch_only_late_writes_are_passed_over(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    quiet_libraries()
    sys.unraisablehook(SimpleNamespace(exc_value=RuntimeError("Event loop is closed")))
    other = SimpleNamespace(exc_value=RuntimeError("something else"))
    sys.unraisablehook(other)
    assert reported == [other]


def test_of_what_asyncio_logs_only_what_a_save_has_told_is_passed_over(caplog):
    quiet_libraries()
    for told in ("Task exception was never retrieved: orbax/checkpoint/x.py", "another task's"):
        logging.getLogger("asyncio").error(told)
    assert [record.getMessage() for record in caplog.records] == ["another task's"]


def test_an_import_silences_nobody():
    code = """
import logging, sys, warnings
def state():
    absl, asyncio = map(logging.getLogger, ("absl", "asyncio"))
    ignored = [f for f in warnings.filters if "corout" in str(f) or "cache" in str(f)]
    return absl.getEffectiveLevel(), asyncio.filters, ignored, sys.unraisablehook
import jax, orbax.checkpoint
before = state()
import tlite.cli.commands, tlite.recipes.kinds, tlite.training.checkpoints
assert state() == before, state()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_full_device_is_told_once():
    with open("/dev/full", "wb") as file:
        raw = StandardOutput(file.fileno(), "w", closefd=False)
        out = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8")
        out.write("text")
        with pytest.raises(UserError, match="can't write to standard output: no space left"):
            out.flush()
        out.write("more")
        out.close()  # as at the end of a process: no second complaint


def test_where_the_reader_has_gone_the_command_goes_on(monkeypatch):
    reading, writing = os.pipe()
    raw = StandardOutput(writing, "w")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8"))
    print("read", flush=True)
    assert not reader_has_gone()
    os.close(reading)
    for _ in range(2):
        print("not read", flush=True)
    assert reader_has_gone()
    sys.stdout.close()


def test_a_failing_standard_error_stops_nothing():
    with open("/dev/full", "wb") as file:
        raw = StandardError(file.fileno(), "w", closefd=False)
        print("text", file=io.TextIOWrapper(io.BufferedWriter(raw)), flush=True)
