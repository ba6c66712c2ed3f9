"""Two real processes that agree: how they end together, whatever becomes of one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tlite.parallel.launch import free_port
from tlite.parallel.processes import LOST

EXPERIMENT = Path(__file__).parents[1] / "helpers/joined_experiment.py"


SECONDS = 60


class Pair:
    """Two processes of `tlite train` with one device each, and the folder of their run."""

    def __init__(self, what: str, run: Path, heartbeat: int = 30, slurm: bool = False):
        self.run = run
        port = str(free_port())
        surroundings = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
        line = f"train {EXPERIMENT} --name {what} --run {run} --heartbeat {heartbeat}"
        command = [sys.executable, "-m", "tlite", *line.split()]
        told = [*f"--coordinator localhost:{port} --processes 2 --process".split()]
        job = {"SLURM_JOB_ID": "71", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
        job |= {"JAX_COORDINATOR_PORT": port}
        self.processes = []
        for i in "01":
            words = command if slurm else [*command, *told, i]
            own = job | {"SLURM_PROCID": i, "SLURM_LOCALID": i} if slurm else {}
            pipes = {"stdout": -1, "stderr": -1, "text": True}
            self.processes.append(subprocess.Popen(words, env=surroundings | own, **pipes))

    def wait_for(self, mark: str) -> None:
        """Until both have written a file of this name."""
        last = time.monotonic() + SECONDS
        while not all((self.run / f"{mark}-{i}").exists() for i in (0, 1)):
            assert all(process.poll() is None for process in self.processes), self.end()
            assert time.monotonic() < last
            time.sleep(0.02)

    def signal(self, process: int, number: int) -> None:
        self.processes[process].send_signal(number)

    def end(self) -> list[tuple[int, str, str]]:
        """The exit code, the output and the errors of each."""
        found = [process.communicate(timeout=SECONDS) for process in self.processes]
        return [(p.returncode, *texts) for p, texts in zip(self.processes, found, strict=True)]


@pytest.fixture
def pair(tmp_path):
    """Starts a pair; none outlives its test."""
    pairs = []

    def call(*arguments, **settings):
        pairs.append(Pair(arguments[0], tmp_path, **settings))
        return pairs[-1]

    yield call
    for process in (process for pair in pairs for process in pair.processes):
        process.kill()
        process.communicate()


SAID = f"tlite: {LOST}: what was saved is kept\n"
PRINTED = f"experiment: {EXPERIMENT}\nprinted once\n"


@pytest.mark.parametrize("slurm", [False, True], ids=["told", "in a job of Slurm"])
def test_they_agree_and_leave_together_and_the_first_prints(pair, slurm):
    assert pair("end", slurm=slurm).end() == [(0, PRINTED, ""), (0, "", "")]


@pytest.mark.parametrize("killed", [0, 1])
def test_where_one_is_killed_in_a_collective_the_other_ends_and_says_why(pair, killed):
    """In a sentence; or, where JAX is faster, as it is where process 0 is gone, by JAX's page."""
    both = pair("loop", heartbeat=3)
    both.wait_for("looping")
    both.signal(killed, signal.SIGKILL)
    began = time.monotonic()
    code, _, err = both.end()[1 - killed]
    assert time.monotonic() - began < 3 + 10
    assert code
    assert "another task died" in err or (code, err.count("\n"), err[:60]) == (2, 1, SAID[:60])


def test_where_one_is_killed_in_a_pause_the_other_ends_too(pair):
    both = pair("pause", heartbeat=2)
    both.wait_for("joined")
    both.signal(1, signal.SIGKILL)
    assert both.end()[0][0] != 0
