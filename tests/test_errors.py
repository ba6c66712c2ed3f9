import sys
from types import SimpleNamespace

import pytest

from tlite.errors import (
    UserError,
    disk_errors,
    needs_extra,
    pass_over_late_writes,
    system_reason,
)


def test_only_late_writes_are_passed_over(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    pass_over_late_writes()
    sys.unraisablehook(SimpleNamespace(exc_value=RuntimeError("Event loop is closed")))
    other = SimpleNamespace(exc_value=RuntimeError("something else"))
    sys.unraisablehook(other)
    assert reported == [other]


def test_a_full_disk_says_how_to_go_on_from_the_run_folder_wherever_it_was_met(tmp_path):
    (tmp_path / "config.json").touch()
    for path in (tmp_path / "x", tmp_path / "pretraining" / "metrics.jsonl"):
        with pytest.raises(UserError, match=rf"No space left.*--resume {tmp_path}$"):  # noqa: SIM117
            with disk_errors(path):
                raise OSError(28, "No space left on device")


def test_where_there_is_no_run_it_says_nothing_of_resuming(tmp_path):
    with pytest.raises(UserError, match=r"put that right$"), disk_errors(tmp_path / "x"):
        raise OSError(28, "No space left on device")


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(24, "Too many open files"), "Too many open files"),
        (ValueError("DATA_LOSS: ... [OS error 5: Input/output error]"), "Input/output error"),
        (
            ValueError("RESOURCE_EXHAUSTED: no\nspace left on device"),
            "RESOURCE_EXHAUSTED: no space",
        ),
        (ValueError("RESOURCE_EXHAUSTED: out of memory"), "RESOURCE_EXHAUSTED: out of memory"),
        (caused(KeyError("x"), OSError(13, "Permission denied")), "Permission denied"),
        (MemoryError(), "Cannot allocate memory"),
        (ValueError("NOT_FOUND: a/zarr.json"), ""),
    ],
)
def test_what_the_system_refused_is_told_in_its_words(error, reason):
    assert system_reason(error).startswith(reason)
    assert bool(system_reason(error)) == bool(reason)


def test_other_errors_are_not_disguised(tmp_path):
    with pytest.raises(ValueError, match="my own"), disk_errors(tmp_path / "x"):
        raise ValueError("my own")


def test_a_missing_package_is_named_with_its_extra():
    with pytest.raises(UserError, match=r"no_such_package.*\[text\]"), needs_extra("text"):
        import no_such_package  # noqa: F401
