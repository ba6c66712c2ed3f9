"""The command line as a process of its own: `tlite`, or `python -m tlite`.

Nothing heavy is imported before `main` has prepared Ctrl-C and the standard streams.
"""

import contextlib
import gc
import io
import logging
import os
import signal
import sys
import warnings
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Call `tlite.cli.main` on the command line of this process; exit with its code."""
    sys.unraisablehook = (handler := InterruptHandler()).handle_unraisable
    try:
        # A background job of a shell script ignores SIGINT, and still has to.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, handler)
        prepare_streams()
        quiet_libraries()
        from tlite.cli import main

        code = main(sys.argv[1:])
        handler.interrupted = True  # a later Ctrl-C ends the process
    except BaseException as error:
        if not handler.interrupted or not is_interrupt(error):
            raise
        code = report_interrupt()
    if code > 128:  # 128 + n: stopped by signal n
        from tlite.distributed import abort

        abort(code)  # at exit JAX frees what its threads still use, which crashes the process
    gc.freeze()  # the garbage collection at exit would take most of a second
    sys.exit(code)


def prepare_streams() -> None:
    """Open the null device for closed standard streams; replace characters they can't encode."""
    # A file of the run must not get the file descriptor of a closed stream.
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name) or os.fdopen(number, "w" if number else "r", closefd=False)
        if number and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        setattr(sys, name, stream)


def quiet_libraries() -> None:
    """Silence log lines of libraries about errors that they also raise, or that only cost time."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs each save too
    for name in ("DATASETS_VERBOSITY", "HF_HUB_VERBOSITY"):
        os.environ.setdefault(name, "critical")
    # A failed save raises one of its errors, and asyncio logs the others.
    logging.getLogger("asyncio").addFilter(
        lambda record: not any(name in record.getMessage() for name in ("tensorstore", "orbax"))
    )
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    warnings.filterwarnings("ignore", "Error (read|writ)ing persistent compilation cache")


class InterruptHandler:
    """SIGINT handler: raises `KeyboardInterrupt`; ends the process at the second signal.

    During an import the first signal ends it too: an import may replace the exception, or crash.
    """

    interrupted = False

    def __call__(self, _, frame: FrameType | None) -> None:
        while frame is not None and not self.interrupted:
            self.interrupted = frame.f_code.co_filename.startswith("<frozen importlib")
            frame = frame.f_back
        if self.interrupted:
            os._exit(report_interrupt())
        self.interrupted = True
        raise KeyboardInterrupt

    def handle_unraisable(self, unraisable) -> None:
        """Handle an exception that Python can't raise, as in a `__del__` (`sys.unraisablehook`).

        After a Ctrl-C such errors are not printed: the interruption causes them. This handler's own
        `KeyboardInterrupt` ends the process; that of the training loop's handler is ignored, as the
        loop has noted the signal and stops by itself.
        """
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            if self.interrupted:
                os._exit(report_interrupt())
        # TensorStore's threads outlive a failed save, whose error was raised.
        elif not self.interrupted and "Event loop is closed" not in str(unraisable.exc_value):
            sys.__unraisablehook__(unraisable)


def is_interrupt(error: BaseException | None) -> bool:
    """Return True for a `KeyboardInterrupt`, or an error that a library has raised in its place."""
    while error and not isinstance(error, KeyboardInterrupt):
        if "KeyboardInterrupt" in str(error):  # as text, from another language
            return True
        error = error.__cause__ or error.__context__
    return error is not None


def report_interrupt() -> int:
    """Print that Ctrl-C ended the process, also in a signal handler; return the exit code 130."""
    with contextlib.suppress(OSError):  # stderr is closed
        line = b"tlite: interrupted\n"
        os.write(2, b"\n" + line if os.isatty(2) else line)
    return 128 + signal.SIGINT


if __name__ == "__main__":
    main()
