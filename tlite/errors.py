"""The one exception a user is meant to see: a clear sentence, no traceback, exit code 2."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path


class UserError(Exception):
    """Something the user can put right; its message is one sentence that says how."""


def program() -> str:
    """How tlite was called, so that advice can be pasted: `.venv/bin/tlite`, say."""
    return sys.argv[0] if Path(sys.argv[0]).name == "tlite" else "python -m tlite"


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a failure to write something of a run, a full disk above all, into a `UserError`.

    `path` lies directly in the run folder, where all that is saved stays and can be resumed.
    """
    try:
        yield
    except Exception as error:
        full = "No space left" in str(error) or "RESOURCE_EXHAUSTED" in str(error)
        if not full and not isinstance(error, OSError):
            raise
        reason = (
            "no space left on the device" if full else os.strerror(getattr(error, "errno", 0) or 5)
        )
        raise UserError(
            f"can't write {path} ({reason}): what was saved before is kept; put that right, "
            f"then {program()} train --resume {path.parent}"
        ) from error


@contextlib.contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turn the lack of an optional package into a `UserError` that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(
            f"this needs the package {error.name}: install it with pip install -e '.[{extra}]'"
        ) from error


def pass_over_late_writes() -> None:
    """Keep quiet where TensorStore, after a failed save, calls back into a loop that is closed.

    Its threads outlive the save; the failure itself has been raised and told by then.
    """
    report = sys.unraisablehook

    def hook(unraisable):
        if "Event loop is closed" not in str(unraisable.exc_value):
            report(unraisable)

    sys.unraisablehook = hook
