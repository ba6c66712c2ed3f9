"""Under CI a test that is skipped has failed, but for these."""

import os

ALLOWED: dict[str, str] = {
    "tests/system/test_attack.py": "a disk is filled only where a small one can be made",
}
"""The beginning of a test's name: why it may be skipped in CI."""


def is_fault(name: str, environment=os.environ) -> bool:
    """Whether a skipped test of this name fails the run."""
    return bool(environment.get("CI")) and not name.startswith(tuple(ALLOWED))
