"""The one exception a user is meant to see: a clear sentence, no traceback, exit code 2."""

import contextlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

LAUNCHED = "TLITE_LAUNCHED"
"""The environment's name for how `tlite launch` was called, in the processes that it starts."""
PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
PICTURES |= {0x7F: 0x2421} | {code: f"\\u{code:04x}" for code in range(0x80, 0xA0)}
"""Control characters but newline and tab -> what `printable` shows for them."""


class UserError(Exception):
    """Something the user can put right; its message is one sentence that says how."""


class CollectiveError(UserError):
    """A `UserError` raised at the same point by all processes of a run, which end together."""


class RunFailed(UserError):
    """A run can't go on because of what it is, not where: it would fail again, however often tried.

    Its losses are not finite, say, or it does not go with its data. A study's other variants go on.
    """


class OutOfMemory(RunFailed):
    """There is less memory than a run needs, in this process."""


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal, after it had saved all there is to save.

    Args:
        signal: its number; a shell expects the exit code 128 + signal.
    """

    def __init__(self, message: str, signal: int):
        super().__init__(message)
        self.exit_code = 128 + signal


def command(*words: object) -> str:
    """A command to paste, called as tlite was: `.venv/bin/tlite generate RUN`, say.

    Where `tlite launch` has started this process, it starts what trains.
    """
    called = Path(sys.argv[0]).name == "tlite"
    program = shlex.quote(sys.argv[0]) if called else "python -m tlite"
    if launched := os.environ.get(LAUNCHED):
        program = launched if words[0] == "train" else launched.partition(" launch ")[0]
    return f"{program} {shlex.join(map(str, words))}"


def resumable(path: Path) -> Path | None:
    """The folder around a path that `train --resume` goes on with: a study's, else a run's."""
    study = next((p for p in path.parents[:3] if (p / "study.json").is_file()), None)
    return study or next((p for p in path.parents[:2] if (p / "config.json").is_file()), None)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message: an OSError's without its number and path."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return next(filter(str.strip, str(error).splitlines()), type(error).__name__)


def lack_of_memory(error: BaseException) -> str | None:
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
    """Whether it is the machine's, and can be put right there: a missing package, or a file that
    can't be read."""
    missing = isinstance(error.__cause__, ModuleNotFoundError)
    return missing or (not isinstance(error, RunFailed) and system_reason(error) != "")


def write_error(path: Path, error: Exception) -> UserError:
    """Return the error of a failure to write `path`, a file or folder of a run."""
    run = resumable(path)
    advice = f", then {command('train', '--resume', run)}" if run else ""
    reason = system_reason(error) or first_line(error)
    return UserError(f"can't write {path} ({reason}): earlier files are intact; fix this{advice}")


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError, of a full disk above all, into a `UserError` about `path`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if lack_of_memory(error) or not system_reason(error) or isinstance(error, BrokenPipeError):
            raise
        raise write_error(path, error) from error


@contextlib.contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turn the lack of an optional package into a `UserError` that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        root = Path(__file__).parents[1]
        checkout = (root / "pyproject.toml").is_file()
        # Of a package that is installed, pip fetches what the extra lacks, and not itself.
        what = f"-e '{root}[{extra}]'" if checkout else f"'tlite[{extra}]'"
        raise UserError(
            f"this needs the package {error.name}: install it with "
            f"{sys.executable} -m pip install {what}"
        ) from error


def check_packages(extra: str, names: Iterable[str]) -> None:
    """Raises a `UserError` where one of these packages of an extra is missing; none is imported."""
    with needs_extra(extra):
        for name in names:
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def printable(text: str) -> str:
    """Replace control characters, which could steer a terminal, by pictures of them."""
    return text.translate(PICTURES)


def show(text: str = "", *, end: str = "\n", flush: bool = False) -> None:
    """Print text of a user or a model: `printable` on a terminal, unchanged elsewhere."""
    print(printable(text) if sys.stdout.isatty() else text, end=end, flush=flush)
