"""Two real processes that agree: how they end together, whatever becomes of one."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tlite.parallel.launch import free_port
from tlite.parallel.processes import LOST

EXPERIMENT = Path(__file__).parents[1] / "helpers/joined_experiment.py"
SECONDS = 60


@pytest.fixture
def pair(tmp_path):
    """Starts two processes of `tlite train` with one device each; none outlives its test."""

    def call(what, slurm=False):
        port, started = str(free_port()), []
        line = f"train {EXPERIMENT} --name {what} --run {tmp_path} --heartbeat 3"
        for i in "01":
            told = f" --coordinator localhost:{port} --processes 2 --process {i}"
            job = {"SLURM_JOB_ID": "71", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
            job |= {"JAX_COORDINATOR_PORT": port, "SLURM_PROCID": i, "SLURM_LOCALID": i}
            own = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"} | (job if slurm else {})
            words = [sys.executable, "-m", "tlite", *(line if slurm else line + told).split()]
            pipes = {"stdout": -1, "stderr": -1, "text": True}
            started.append(subprocess.Popen(words, env=os.environ | own, **pipes))
            nothing_left.callback(started[-1].communicate)
            nothing_left.callback(started[-1].kill)
        return started

    with contextlib.ExitStack() as nothing_left:
        yield call


def end(process):
    """Its exit code, its output and its errors."""
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


@pytest.mark.parametrize("slurm", [False, True], ids=["told", "in a job of Slurm"])
def test_they_agree_and_leave_together_and_the_first_prints(pair, slurm):
    printed = f"experiment: {EXPERIMENT}\nprinted once\n"
    assert list(map(end, pair("end", slurm=slurm))) == [(0, printed, ""), (0, "", "")]


@pytest.mark.parametrize(
    ("what", "mark", "killed"),
    [("loop", "looping", 0), ("loop", "looping", 1), ("pause", "joined", 1)],
)
def test_where_one_is_killed_the_other_ends_and_says_why(pair, tmp_path, what, mark, killed):
    """In a sentence; or, where JAX is faster, as it is where process 0 is gone, by JAX's page."""
    both = pair(what)
    last = time.monotonic() + SECONDS
    while not all((tmp_path / f"{mark}-{i}").exists() for i in (0, 1)):
        assert time.monotonic() < last
        time.sleep(0.02)
    both[killed].kill()
    began = time.monotonic()
    code, _, err = end(both[1 - killed])
    assert time.monotonic() - began < 3 + 10
    assert code
    said = f"tlite: {LOST}: what was saved is kept\n"
    assert "another task died" in err or (code, err) == (2, said)
