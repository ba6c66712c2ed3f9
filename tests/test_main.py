"""`tlite` as a process of its own: standard streams, Ctrl-C and exit codes."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.helpers.fake_runs import make_run
from tlite.__main__ import InterruptHandler
from tlite.errors import printable

TLITE = [sys.executable, "-m", "tlite"]
INTERRUPTED = "tlite: interrupted\n"


def shell(line: str, **settings) -> subprocess.CompletedProcess:
    """Run a line of bash in which $TLITE is the command."""
    environment = os.environ | {"TLITE": " ".join(TLITE)} | settings.pop("env", {})
    command = ["bash", "-c", line]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, **settings
    )


HEAVY = {"matplotlib", "scipy", "sklearn", "datasets", "torch", "transformers"}
EACH = """
import contextlib
from tlite.cli import main
for line in ["", "--help", "nope", "train nope", "train --help", "train", "experiments", "runs"]:
    with contextlib.suppress(SystemExit):
        main(line.split())
"""


def imported(code: str, **settings) -> set[str]:
    """Return the modules that another process has imported after it has run some code."""
    command = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=60, check=True, **settings
    )
    return {*done.stdout.splitlines()[-1].split()}


def test_help_and_mistyped_commands_do_not_import_jax(tmp_path):
    make_run(tmp_path / "runs" / "a", 0)
    assert not {"jax", "numpy", "matplotlib", "flax"} & imported(EACH, cwd=tmp_path)


def test_commands_do_not_import_slow_libraries():
    """Libraries for pictures and statistics are imported where they are used."""
    content = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert content["project"]["scripts"] == {"tlite": "tlite.__main__:main"}
    assert not {"tyro", "jax", "numpy"} & imported("import tlite.__main__")
    assert not HEAVY & imported("import tlite.cli.commands, tlite.cli.overrides, tlite.runs.run")


def test_training_does_not_restart_the_process(tmp_path, monkeypatch):
    """Under a debugger its breakpoints would be lost; huge pages are set by the Makefile."""
    (tmp_path / "a.py").write_text("import os\nprint(os.environ.get('GLIBC_TUNABLES'))\n")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert shell("$TLITE train a.py", cwd=tmp_path).stdout.endswith("a.py\nNone\n")


def test_ctrl_c_in_an_import_ends_at_once(tmp_path):
    """Also if the import catches every exception."""
    (tmp_path / "waits.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(3600)\n")
    (tmp_path / "slow.py").write_text("try:\n  import waits\nexcept BaseException:\n  pass\n")
    command = [*TLITE, "train", "slow.py"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, cwd=tmp_path) as process:
        assert "here\n" in iter(process.stdout.readline, "")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=600) == 130
        assert process.stderr.read() == INTERRUPTED


AT_THE_END = """
import atexit, logging.handlers, os, signal, sys, threading, time
os.kill(os.getpid(), signal.SIGINT)
print("still there")
atexit.register(print, "at exit")
late = lambda: (time.sleep(0.5), print("thread", flush=True))
threading.Thread(target=late).start()
def generator():
    try:
        yield
    finally:
        print("finally", flush=True)
next(suspended := generator())
handler = logging.handlers.MemoryHandler(99, target=logging.StreamHandler(sys.stdout))
logging.getLogger("mine").addHandler(handler)
logging.getLogger("mine").warning("logged")
"""


def test_exit_waits_for_threads_finally_and_log_handlers(tmp_path):
    """Also in a job that ignores Ctrl-C."""
    (tmp_path / "a.py").write_text(AT_THE_END)
    done = shell("trap '' INT; $TLITE train a.py", cwd=tmp_path)
    printed = {"still there", "at exit", "thread", "finally", "logged"}
    assert printed <= {*done.stdout.splitlines()}
    assert done.returncode == 2
    assert done.stderr.startswith("tlite: a.py")
    assert done.stderr.count("\n") == 1


def test_a_second_ctrl_c_ends_what_the_first_did_not(monkeypatch):
    monkeypatch.setattr(os, "_exit", sys.exit)
    handler = InterruptHandler()
    with pytest.raises(KeyboardInterrupt):
        handler(2, None)
    assert handler.interrupted
    with pytest.raises(SystemExit, match="130"):
        handler(2, None)


SWALLOWED = """
import contextlib, os, signal, sys
import tlite.cli
from tlite.__main__ import main
def run(words):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt as error:
        interrupt = error
    {raised}
tlite.cli.main = run
main()
"""


@pytest.mark.parametrize(
    ("raised", "code", "shown"),
    [
        ("raise ValueError('a bug')", 1, "ValueError: a bug"),
        ("raise ValueError('a bug') from interrupt", 130, INTERRUPTED),
        ("raise RuntimeError('INTERNAL: KeyboardInterrupt')", 130, INTERRUPTED),
    ],
)
def test_an_error_after_a_swallowed_ctrl_c_is_shown(raised, code, shown):
    script = [sys.executable, "-c", SWALLOWED.format(raised=raised)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert done.stderr.endswith(shown.strip() + "\n")


CRASHES_AT_EXIT = """
import atexit, os, signal
import tlite.cli
from tlite.__main__ import main
atexit.register(os.abort)
tlite.cli.main = lambda words: {action}
main()
"""


@pytest.mark.parametrize(
    ("action", "code", "message"),
    [("os.kill(os.getpid(), signal.SIGINT)", 130, INTERRUPTED), ("143", 143, "")],
)
def test_a_signal_ends_without_functions_registered_for_the_exit(action, code, message):
    """JAX's exit function frees objects that its threads still use, which crashes the process."""
    script = [sys.executable, "-c", CRASHES_AT_EXIT.format(action=action)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", message)


STREAMS = [
    ("$TLITE --help >&-", 0, ""),  # closed
    ("$TLITE nope 2>&-", 2, ""),
    ("$TLITE >/dev/full", 2, "tlite: .*\n"),
    ("$TLITE evaluate --help >/dev/full", 2, "tlite: .*\n"),
    ("set -o pipefail; (sleep 0.5; $TLITE --help) | true", 1, ""),  # a closed pipe
    ("set -o pipefail; (sleep 0.5; $TLITE train loud.py) | true", 1, ""),
    ("$TLITE train $'a\\xff'", 2, "tlite: the arguments are not UTF-8 text\n"),
]


@pytest.mark.parametrize(("line", "code", "error"), STREAMS)
def test_streams_that_fail_and_bad_arguments_are_no_traceback(tmp_path, line, code, error):
    (tmp_path / "loud.py").write_text("print('x' * 100_000)\n")
    done = shell(line, cwd=tmp_path)
    assert done.returncode == code
    assert re.fullmatch(error, done.stderr)


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path):
    (tmp_path / "a.py").write_text(
        "import os, sys\nprint('to nobody')\n"
        "file = open('file', 'w')\nos.write(1, b'to nobody')\n"
        "file.write(f'{file.fileno() > 2}'), file.close()\n"
    )
    done = shell("$TLITE train a.py <&- >&- 2>&-", cwd=tmp_path)
    assert done.returncode == 2
    assert (tmp_path / "file").read_text() == "True"


ASCII = [
    {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
]


@pytest.mark.parametrize("environment", ASCII, ids=["io", "locale"])
def test_an_ascii_terminal_gets_ascii(tmp_path, environment):
    (tmp_path / "a.py").write_text("print('1 ± 2 é')\nraise ValueError('é')\n", encoding="utf-8")
    done = shell("$TLITE train a.py", cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert "1 ? 2 ?" in done.stdout
    assert done.stderr == "tlite: a.py, line 2: ValueError: ?\n"
    done = shell("$TLITE evaluate x --split exam", cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr.isascii()) == (2, True)
    assert "'exam'" in done.stderr
    done = shell("$TLITE evaluate --help", cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_gets_no_escape_of_a_file_name(tmp_path):
    """The name of a file that does not exist has an escape; standard error is a terminal."""
    leader, follower = pty.openpty()
    command = [*TLITE, "train", "\x1b[31m.py"]
    done = subprocess.run(command, stdout=follower, stderr=follower, cwd=tmp_path, timeout=60)
    os.close(follower)
    printed = b""
    with contextlib.suppress(OSError):  # the end of the output on Linux
        while chunk := os.read(leader, 4096):
            printed += chunk
    os.close(leader)
    assert done.returncode == 2
    assert b"\x1b" not in printed


def test_printable_keeps_only_newline_and_tab():
    text = printable("".join(map(chr, range(0x300))))
    left = {c for c in text if ord(c) < 32 or 0x7F <= ord(c) < 0xA0}
    assert left == {"\n", "\t"}
    assert printable("\x1b[31mred\x07\x7f\x9b2J\r") == "␛[31mred␇␡\N{REPLACEMENT CHARACTER}2J␍"
    assert printable("Grüße, 𝄞 ␛\n\t") == "Grüße, 𝄞 ␛\n\t"


def test_importing_tlite_keeps_log_levels_and_filters():
    code = """
import logging, sys, warnings
def state():
    absl, asyncio = map(logging.getLogger, ("absl", "asyncio"))
    ignored = [f for f in warnings.filters if "corout" in str(f) or "cache" in str(f)]
    return absl.getEffectiveLevel(), asyncio.filters, ignored, sys.unraisablehook
import jax, orbax.checkpoint
before = state()
import tlite.cli.commands, tlite.runs.run, tlite.training.checkpoints
assert state() == before, state()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
