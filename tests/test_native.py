"""In processes of their own: what C++ writes is taken away, and an abort can be told."""

import signal
import subprocess
import sys

START = """
import ctypes, os, sys, warnings
from tlite import native
libc = ctypes.CDLL(None)
"""


def run(code: str, **settings) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", START + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **settings)


WRITES = """
print("before", flush=True)
log = native.silence(first=FIRST)
os.write(1, b"gloo\\n")
os.write(2, b"XLA\\n")
print("after")
warnings.warn("careful")
print("one and ", end="", file=sys.stderr, flush=True)
assert native.written(log) == "XLA\\n"
os.write(native.stderr, b"a sentence\\n")
"""


def test_only_the_first_prints_and_nothing_of_c_comes_between():
    done = run(WRITES.replace("FIRST", "True"))
    assert (done.returncode, done.stdout) == (0, "before\nafter\n")
    assert "UserWarning: careful" in done.stderr
    assert done.stderr.endswith("one and a sentence\n")
    assert "XLA" not in done.stderr
    done = run(WRITES.replace("FIRST", "False"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "before\n", "one and a sentence\n")


def test_who_wants_to_see_the_errors_of_c_sees_them():
    code = "assert native.silence(True) is None; os.write(2, b'XLA'); native.written(None) or 1"
    assert run(code, env={"TF_CPP_MIN_LOG_LEVEL": "0"}).stderr == "XLA"


def test_an_abort_is_told_and_stays_one_unless_it_is_the_end():
    done = run("native.on_abort(lambda: print('told', flush=True)); libc.abort()")
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "told\n")
    assert run("native.on_abort(lambda: os._exit(2)); libc.abort()").returncode == 2


def test_an_abort_in_a_thread_of_its_own_is_told_while_the_main_one_is_busy():
    code = (
        "import threading, time; native.on_abort(lambda: os._exit(3))\n"
        "threading.Thread(target=libc.abort).start(); time.sleep(30)"
    )
    assert run(code).returncode == 3
