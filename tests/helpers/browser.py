"""A page as a real browser shows it."""

import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


def shown_by_browser(address: str, folder: Path) -> str:
    """HTML of a page once its scripts have run, without a complaint on the console.

    Args:
        folder: where the browser keeps its own files.
    """
    settings = ["--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom"]
    command = [CHROMIUM, *FLAGS, *settings, f"--user-data-dir={folder}", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout
