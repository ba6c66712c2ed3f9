"""Two real processes that agree: how they end together, whatever becomes of one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tlite.launch import free_port
from tlite.processes import LOST

EXPERIMENT = Path(__file__).parents[1] / "helpers/joined_experiment.py"


SECONDS = 60


class Pair:
    """Two processes of `tlite train` with one device each, and the folder of their run."""

    def __init__(self, what: str, run: Path, heartbeat: int = 30):
        self.run = run
        port = free_port()
        surroundings = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
        line = f"train {EXPERIMENT} --name {what} --run {run} --heartbeat {heartbeat}"
        command = [sys.executable, "-m", "tlite", *line.split()]
        command += ["--coordinator", f"localhost:{port}", "--processes", "2", "--process"]
        self.processes = [
            subprocess.Popen([*command, i], stdout=-1, stderr=-1, text=True, env=surroundings)
            for i in "01"
        ]

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


PRINTED = f"experiment: {EXPERIMENT}\nprinted once\n"


def test_they_agree_and_leave_together_and_the_first_prints(pair):
    assert pair("end").end() == [(0, PRINTED, ""), (0, "", "")]


@pytest.mark.parametrize("killed", [0, 1])
def test_where_one_is_killed_in_a_collective_the_other_ends_with_a_sentence(pair, killed):
    both = pair("loop", heartbeat=3)
    both.wait_for("looping")
    both.signal(killed, signal.SIGKILL)
    began = time.monotonic()
    ends = both.end()
    assert time.monotonic() - began < 3 + 10
    assert ends[killed] == (-signal.SIGKILL, ends[killed][1], "")
    code, _, err = ends[1 - killed]
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"tlite: {LOST}")


def test_where_one_is_killed_in_a_pause_the_other_knows_which(pair):
    both = pair("pause", heartbeat=2)
    both.wait_for("joined")
    both.signal(1, signal.SIGKILL)
    assert both.end()[0][::2] == (2, f"tlite: {LOST} (process 1): what was saved is kept\n")


def test_a_signal_to_one_is_agreed_upon_and_stops_all_at_the_same_step(pair, tmp_path):
    both = pair("loop")
    both.wait_for("looping")
    both.signal(1, signal.SIGTERM)
    first, second = both.end()
    step = (tmp_path / "saved-0").read_text()
    assert (tmp_path / "saved-1").read_text() == step
    assert first == (143, PRINTED, f"tlite: stopped at step {step}\n")
    assert second == (143, "", "")


def test_where_one_fails_the_others_end_with_its_reason(pair):
    said = "tlite: the disk is full\n"
    assert pair("fault-1").end() == [(2, PRINTED, said), (2, "", said)]


def test_a_fault_of_ours_stays_a_traceback_and_ends_the_others(pair):
    first, second = pair("bug-1").end()
    line = "tlite: process 1 failed by a KeyError: its traceback tells more\n"
    assert first == (1, PRINTED, line)
    assert second[0] == 1
    assert second[2].startswith("Traceback")
    assert second[2].endswith("KeyError: 'ours'\n" + line)


def test_whoever_waits_in_vain_says_so():
    code = "import sys; from tlite import processes; processes.join(*eval(sys.argv[1]), patience=1)"
    port = free_port()
    arguments = [sys.executable, "-c", code, f"('localhost:{port}', 2, 0)"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=SECONDS)
    sentence = f"can't join the run at localhost:{port}: not all 2 processes came in 1 seconds"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"tlite: {sentence}\n")
