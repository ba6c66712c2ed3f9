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
    ctrl_c = CtrlC()
    sys.unraisablehook = ctrl_c.report
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
            signal.signal(signal.SIGINT, ctrl_c)
        prepare_streams()
        quiet_libraries()
        from tlite.cli import main

        code = main(sys.argv[1:])
        ctrl_c.raised = True
    except BaseException:
        if not ctrl_c.raised:
            raise
        code = interrupted()  # a KeyboardInterrupt, or an error that a library made of it
    gc.freeze()  # else Python's last collections take most of a second
    sys.exit(code)


def prepare_streams() -> None:
    """Open the null device for closed standard streams; replace characters they can't encode."""
    # A file of the run must not get the number of a closed stream.
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin, sys.stdout, sys.stderr = (
        stream or os.fdopen(number, "w" if number else "r", closefd=False)
        for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr))
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def quiet_libraries() -> None:
    """Silence log lines of libraries about errors that they also raise, or about lost time only.

    Only the process of a command does so: a program that imports tlite decides for itself.
    """
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs each save too
    for name in ("DATASETS_VERBOSITY", "HF_HUB_VERBOSITY"):
        os.environ.setdefault(name, "critical")
    logging.getLogger("asyncio").addFilter(_is_not_from_saving)
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    warnings.filterwarnings("ignore", "Error (read|writ)ing persistent compilation cache")


def _is_not_from_saving(record: logging.LogRecord) -> bool:
    """Return False for errors of a save: one is raised, and asyncio logs the others."""
    return not any(name in record.getMessage() for name in ("tensorstore", "orbax"))


class CtrlC:
    """SIGINT handler: raises `KeyboardInterrupt`; ends the process the second time or in an import.

    An import may turn an exception into any other, or crash.
    """

    raised = False

    def __call__(self, _, frame: FrameType | None) -> None:
        if self.raised or _in_import(frame):
            os._exit(interrupted())
        self.raised = True
        raise KeyboardInterrupt

    def report(self, unraisable) -> None:
        """Replace `sys.unraisablehook`: end the process after a Ctrl-C in a `__del__`, say.

        Later errors come of objects that the Ctrl-C cut short. A `KeyboardInterrupt` of the
        training loop is ignored: the loop has noted its signal and stops by itself.
        """
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            if self.raised:
                os._exit(interrupted())
            return
        # TensorStore's threads outlive a failed save, whose error was raised.
        if not self.raised and "Event loop is closed" not in str(unraisable.exc_value):
            sys.__unraisablehook__(unraisable)


def _in_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def interrupted() -> int:
    """Print that Ctrl-C ended the process, also in a signal handler; return the exit code 130."""
    with contextlib.suppress(OSError):  # stderr is closed
        line = b"tlite: interrupted\n"
        os.write(2, b"\n" + line if os.isatty(2) else line)
    return 128 + signal.SIGINT


if __name__ == "__main__":
    main()
