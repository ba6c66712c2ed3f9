"""Render pages in a real browser."""

import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom"),
]


def shown_by_browser(address: str, folder: Path) -> str:
    """Return the HTML of a page after its scripts have run without a message on the console.

    Args:
        folder: Profile folder of the browser.
    """
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout
