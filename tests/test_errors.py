import sys
from types import SimpleNamespace

import pytest

from tlite.errors import UserError, disk_errors, needs_extra, pass_over_late_writes


def test_only_late_writes_are_passed_over(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    pass_over_late_writes()
    sys.unraisablehook(SimpleNamespace(exc_value=RuntimeError("Event loop is closed")))
    other = SimpleNamespace(exc_value=RuntimeError("something else"))
    sys.unraisablehook(other)
    assert reported == [other]


def test_a_full_disk_says_how_to_go_on(tmp_path):
    with pytest.raises(UserError, match=r"no space left.*--resume"), disk_errors(tmp_path / "x"):
        raise OSError(28, "No space left on device")


def test_other_errors_are_not_disguised(tmp_path):
    with pytest.raises(ValueError, match="my own"), disk_errors(tmp_path / "x"):
        raise ValueError("my own")


def test_a_missing_package_is_named_with_its_extra():
    with pytest.raises(UserError, match=r"no_such_package.*\[text\]"), needs_extra("text"):
        import no_such_package  # noqa: F401
