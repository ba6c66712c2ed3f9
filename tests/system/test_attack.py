"""A short attack on generators; `make attack` tries more, of every kind of run."""

import re
import subprocess
import sys

from tests.helpers.python import ROOT

# Numbers, not minutes, so that a slow machine tries the same. With this seed there are few kills,
# one of them of a single process of several.
SEED = 1291
PARTS = {"kills": 3, "several": 2}
"""Parts, and how often each must be tried."""


def test_killed_runs_end_as_an_undisturbed_one():
    """They are killed before and during the first save, by Ctrl-C, and at random moments."""
    words = f"--minutes 0 --cases {len(PARTS)} --kinds generator --seed {SEED} --only".split()
    command = [sys.executable, "-m", "tests.attack", *words, *PARTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    for part, least in PARTS.items():
        (tried, faults), *_ = re.findall(rf"^{part}.* +(\d+) +(\d+)$", done.stdout, re.M)
        assert int(tried) >= least
        assert faults == "0"
