"""What C++ does behind Python's back in one of several processes: its output, and its aborts."""

import ctypes
import io
import logging
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

stderr = 2
"""The number of what a user sees as standard error."""


def silence(first: bool) -> io.FileIO | None:
    """Let only the first process print, and let nothing that C++ writes come between.

    gloo prints to standard output; and of a lost process XLA writes pages to standard error, which
    are kept for the case that it ends for another reason. Python's streams get numbers of their
    own, so that both can be taken from C++. With TF_CPP_MIN_LOG_LEVEL=0 its errors stay visible.

    Returns:
        The file with what C++ writes to standard error.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    sys.stdout = _moved(sys.stdout, os.dup(1) if first else os.dup(null))
    os.dup2(null, 1)
    os.close(null)
    if not first:  # what all are warned of, the first one says
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        return None
    global stderr
    log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (it stays open)
    stderr = os.dup(2)
    sys.stderr = _moved(sys.stderr, stderr)
    sys.stderr.reconfigure(line_buffering=True)
    os.dup2(log.fileno(), 2)
    return log


def _moved(stream: Any, number: int) -> io.TextIOWrapper:
    """A text stream like another, on a file of this number."""
    raw = getattr(stream.buffer, "raw", stream.buffer)  # python -u has no buffer of bytes
    kind = type(raw) if isinstance(raw, io.FileIO) else io.FileIO
    return io.TextIOWrapper(
        io.BufferedWriter(kind(number, "w")),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def written(log: io.FileIO | None) -> str:
    """The last of what C++ has written to standard error."""
    if log is None:
        return ""
    size = os.fstat(log.fileno()).st_size
    return os.pread(log.fileno(), 1 << 20, max(0, size - (1 << 20))).decode(errors="replace")


def on_abort(action: Callable[[], None]) -> None:
    """Call this where C++ aborts the process, which ends by it unless the action ends it first.

    Python's own handlers of signals run in the main thread only, where an abort does not return
    to: this one is called by C, in the thread that aborts.
    """
    global _handler  # as long as the process lives
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p

    def handle(_: int) -> None:
        action()
        libc.signal(signal.SIGABRT, None)  # the default

    _handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(handle)
    libc.signal(signal.SIGABRT, ctypes.cast(_handler, ctypes.c_void_p))
