"""Errors for users: one clear line, no traceback, exit code 2."""

import contextlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

LAUNCHED = "TLITE_LAUNCHED"
"""Environment variable with the `tlite launch` command that started this process."""
CONTROL_CHARACTERS = dict(zip(range(0x20), range(0x2400, 0x2420), strict=True))
CONTROL_CHARACTERS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
del CONTROL_CHARACTERS[ord("\t")], CONTROL_CHARACTERS[ord("\n")]
"""Code points of control characters -> the pictures that `printable` replaces them by."""


class UserError(Exception):
    """An error that the user can correct; its message is one sentence that says how."""


class CollectiveError(UserError):
    """A `UserError` that all processes of a run raise at the same point; they end together."""


class RunFailed(UserError):
    """A run can't continue, and would fail again: its losses are not finite, say.

    The other variants of a study continue.
    """


class OutOfMemory(RunFailed):
    """A run needs more memory than this process has."""


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal, after it had saved its state.

    Args:
        signal: its number; a shell expects the exit code 128 + signal.
    """

    def __init__(self, message: str, signal: int):
        super().__init__(message)
        self.exit_code = 128 + signal


def command(*words: object) -> str:
    """Return a command to paste, with tlite called as it was: `.venv/bin/tlite generate RUN`, say.

    In a process of `tlite launch` training is launched again.
    """
    is_script = Path(sys.argv[0]).name == "tlite"
    program = shlex.quote(sys.argv[0]) if is_script else "python -m tlite"
    if launched := os.environ.get(LAUNCHED):
        program = launched if words[0] == "train" else launched.partition(" launch ")[0]
    return f"{program} {shlex.join(map(str, words))}"


def resume_command(path: Path) -> str | None:
    """Return the command that resumes the study, the tuning or else the run around a path."""
    for name, levels in (("study.json", 5), ("tuning.json", 3), ("config.json", 2)):
        folder = next((p for p in path.parents[:levels] if (p / name).is_file()), None)
        if folder:
            return command("tune" if name == "tuning.json" else "train", "--resume", folder)
    return None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message: an OSError's without its number and path."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return next(filter(str.strip, str(error).splitlines()), type(error).__name__)


def memory_error_message(error: BaseException) -> str | None:
    """Return a message for a failed allocation by Python or JAX, None for any other error."""
    is_status = isinstance(error, RuntimeError) and str(error).startswith("RESOURCE_EXHAUSTED")
    if not isinstance(error, MemoryError) and not is_status:
        return None
    return f"not enough memory ({first_line(error)}): a smaller model, batch or text needs less"


def system_reason(error: BaseException | None) -> str:
    """Return the message of the OSError that an error is or was caused by; "" if there is none."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return first_line(error) if error else ""


def is_environment_error(error: UserError) -> bool:
    """Return True if a package is missing or a file can't be read, whatever the experiment is."""
    is_missing = isinstance(error.__cause__, ModuleNotFoundError)
    return is_missing or (not isinstance(error, RunFailed) and system_reason(error) != "")


def write_error(path: Path, error: Exception) -> UserError:
    """Return the error of a failure to write `path`, a file or folder of a run."""
    resume = resume_command(path)
    advice = f", then {resume}" if resume else ""
    reason = system_reason(error) or first_line(error)
    return UserError(f"can't write {path} ({reason}): earlier files are intact; fix this{advice}")


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError, of a full disk above all, into a `UserError` about `path`."""
    try:
        yield
    except (UserError, BrokenPipeError):
        raise
    except Exception as error:
        if memory_error_message(error) or not system_reason(error):
            raise
        raise write_error(path, error) from error


@contextlib.contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turn the lack of an optional package into a `UserError` that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        root = Path(__file__).parents[1]
        is_checkout = (root / "pyproject.toml").is_file()
        package = f"-e '{root}[{extra}]'" if is_checkout else f"'tlite[{extra}]'"
        install = f"{sys.executable} -m pip install {package}"
        raise UserError(
            f"this needs the package {error.name}: install it with {install}"
        ) from error


def check_packages(extra: str, names: Iterable[str]) -> None:
    """Raise a `UserError` if one of these packages of an extra is missing; none is imported."""
    with needs_extra(extra):
        for name in names:
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(name=name)


def printable(text: str) -> str:
    """Replace control characters, which could steer a terminal, by pictures of them."""
    return text.translate(CONTROL_CHARACTERS)


def show(text: str = "", *, end: str = "\n", flush: bool = False) -> None:
    """Print text of a user or a model: `printable` on a terminal, unchanged elsewhere."""
    print(printable(text) if sys.stdout.isatty() else text, end=end, flush=flush)


def show_columns(rows: Iterable[Iterable[str]]) -> None:
    """Print rows of a table, each column as wide as its longest cell."""
    rows = [[" ".join(cell.split()) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True) if width)
        show("  ".join(cells).rstrip())
