"""Writes screen.txt anew: python -m tests.golden.make_screen, once. No test runs it.

It was made by commit 3bb2909. What changes on purpose is edited in screen.txt by hand.
"""

import tempfile
from pathlib import Path

from tests.helpers.screen import screens, write

with tempfile.TemporaryDirectory() as folder:
    write(screens(Path(folder)))
