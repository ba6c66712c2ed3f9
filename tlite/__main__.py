"""The command line as a process of its own: `tlite`, or `python -m tlite`.

Nothing heavy is imported before `main` has seen to Ctrl-C and to the standard streams.
"""

import contextlib
import gc
import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Call `tlite.cli.main` on the command line of this process; exit with its code."""
    ctrl_c = CtrlC()
    sys.unraisablehook = ctrl_c.report
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # no job that ignores it
            signal.signal(signal.SIGINT, ctrl_c)
        from tlite.terminal import prepare_streams, quiet_libraries

        prepare_streams()
        quiet_libraries()
        from tlite.cli import main

        code = main(sys.argv[1:])
        ctrl_c.raised = True
    except BaseException:
        if not ctrl_c.raised:
            raise
        code = interrupted()  # of the KeyboardInterrupt, or of what others have made of it
    gc.freeze()  # else Python's last collections take most of a second
    sys.exit(code)


class CtrlC:
    """Ends the process by a `KeyboardInterrupt`; at once the second time, and in an import.

    What is being imported may turn an exception into any other, or crash by it.
    """

    raised = False

    def __call__(self, _, frame: FrameType | None) -> None:
        if self.raised or _in_import(frame):
            os._exit(interrupted())
        self.raised = True
        raise KeyboardInterrupt

    def report(self, unraisable) -> None:
        """End the process where Python would only report the exception: in a `__del__`, say.

        Errors after a Ctrl-C come of objects that it cut short. A `KeyboardInterrupt` that is not
        from here is that of the training loop, which has noted its signal and ends by itself.
        """
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            if self.raised:
                os._exit(interrupted())
            return
        # TensorStore's threads outlive a save that has failed, and been told.
        if not self.raised and "Event loop is closed" not in str(unraisable.exc_value):
            sys.__unraisablehook__(unraisable)


def _in_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def interrupted() -> int:
    """Say so, even from a signal handler; returns the exit code that a shell expects."""
    with contextlib.suppress(OSError):  # stderr is closed
        line = b"tlite: interrupted\n"
        os.write(2, b"\n" + line if os.isatty(2) else line)
    return 128 + signal.SIGINT


if __name__ == "__main__":
    main()
