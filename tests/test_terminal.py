"""What is printed on standard streams, and what libraries say there."""

import io
import logging
import subprocess
import sys

import pytest

from tlite.terminal import printable, quiet_libraries, show


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
