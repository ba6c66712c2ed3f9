"""Standard streams that are always there, print what they can, and tell what can't be written."""

import io
import logging
import os
import sys
import warnings

from tlite.errors import UserError, printable, show  # noqa: F401


def prepare_streams() -> None:
    """Open the null device for standard streams that are closed, and prepare both outputs."""
    # The next file that is opened, one of the run's, would get the number of one that is closed.
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin = sys.stdin or io.TextIOWrapper(io.FileIO(0, closefd=False), "utf-8")
    sys.stdout = text_stream(sys.stdout, Output(1, "w", closefd=False))
    sys.stderr = text_stream(sys.stderr, Output(2, "w", closefd=False))


def quiet_libraries() -> None:
    """Keep from standard error what libraries log of what they raise, or of what costs time only.

    It is for the process of a command: whoever imports tlite decides by themselves.
    """
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs each save too
    for name in ("DATASETS_VERBOSITY", "HF_HUB_VERBOSITY"):  # what they log they also raise
        os.environ.setdefault(name, "critical")
    logging.getLogger("asyncio").addFilter(_is_not_of_saving)
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    warnings.filterwarnings("ignore", "Error (read|writ)ing persistent compilation cache")


def _is_not_of_saving(record: logging.LogRecord) -> bool:
    """A save of several arrays raises the error of one; asyncio logs those of the others."""
    return not any(name in record.getMessage() for name in ("tensorstore", "orbax"))


def text_stream(before: io.TextIOBase | None, raw: io.FileIO) -> io.TextIOWrapper:
    encoding = getattr(before, "encoding", "utf-8")
    by_line = raw.fileno() == 2 or raw.isatty() or getattr(before, "write_through", False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "replace", line_buffering=by_line)


class Output(io.FileIO):
    """Standard output, whose failure is told once, and not taken for that of a file of the run; or
    standard error, of whose failure nobody is left to be told.

    Where the reader, `head` say, has seen enough, what the command does decides how it ends.
    """

    failed = False

    def write(self, data) -> int | None:
        if not self.failed:
            try:
                return super().write(data)
            except OSError as error:
                self.failed = True
                if self.fileno() != 2 and not isinstance(error, BrokenPipeError):
                    reason = os.strerror(error.errno).lower()
                    raise UserError(f"can't write to standard output: {reason}") from error
        return len(data)
