"""Several processes begin and end together, whoever is told to end: real ones, by `tlite launch`
or each told of the others.
"""

import contextlib
import io
import sys
import time
from collections import deque
from pathlib import Path

import pytest

from tests.attack.kills import is_alive
from tests.helpers.launching import Running
from tlite.distributed import LOST, launch
from tlite.distributed.launch import (
    devices,
    free_port,
    last_lines,
    read_lines,
    visible_gpus,
    write_line,
)
from tlite.errors import UserError

EXPERIMENT = Path(__file__).parents[1] / "helpers/joined_experiment.py"
PRINTED = f"experiment: {EXPERIMENT}\nprinted once\n"


@pytest.fixture
def start(tmp_path):
    """Starts `tlite ... train` of an experiment that does what its name says; none outlives its
    test.
    """
    with contextlib.ExitStack() as nothing_left:

        def call(what, options="", before="launch -n 2 --devices-each 1", **environment):
            line = f"{before} train {EXPERIMENT} --name {what} --run {tmp_path} {options}"
            kept = {"folder": tmp_path, "JAX_PLATFORMS": "cpu"} | environment
            return nothing_left.enter_context(Running("tlite", *line.split(), **kept))

        yield call


@pytest.fixture
def pair(start):
    """Starts two processes without a launch."""

    def call(what, slurm=False):
        port, both = str(free_port()), []
        for i in "01":
            told = f"--coordinator localhost:{port} --processes 2 --process {i}"
            job = {"SLURM_JOB_ID": "71", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
            job |= {"JAX_COORDINATOR_PORT": port, "SLURM_PROCID": i, "SLURM_LOCALID": i}
            options = "--heartbeat 3 " + ("" if slurm else told)
            devices = {"JAX_NUM_CPU_DEVICES": "1"}
            both.append(start(what, options, "", **devices, **(job if slurm else {})))
        return both

    return call


def at_work(run: Running, folder: Path, mark: str = "looping") -> list[int]:
    """The children, when both are at work."""
    run.wait_until(lambda: all((folder / f"{mark}-{i}").exists() for i in (0, 1)))
    return run.children()


def test_what_one_fails_of_is_said_once(start):
    assert start("fault-1").end() == (2, PRINTED, "tlite: the disk is full\n")


def test_a_fault_of_ours_stays_a_traceback(start):
    code, out, err = start("bug-1").end()
    assert (code, out) == (1, PRINTED)
    assert err.startswith("[1] Traceback")
    assert "[1] KeyError: 'ours'\n" in err


@pytest.mark.parametrize("at_its_start", [False, True])
def test_a_child_that_is_killed_is_named_and_takes_the_other_with_it(start, tmp_path, at_its_start):
    run = start("loop", "--heartbeat 3")
    if at_its_start:
        run.wait_until(lambda: len(run.children()) == 2)
    children = run.children() if at_its_start else at_work(run, tmp_path)
    run.kill(0)
    code, _, err = run.end()
    said = "tlite: process 0 was ended by SIGKILL: what was saved is kept\n"
    assert (code, err) == (137, said)
    assert not any(map(is_alive, children))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child")
def test_killed_itself_it_leaves_no_orphans_and_they_save(start, tmp_path):
    run = start("loop")
    children = at_work(run, tmp_path)
    run.process.kill()
    last = time.monotonic() + 60
    while any(map(is_alive, children)):
        assert time.monotonic() < last
        time.sleep(0.05)
    assert (tmp_path / "saved-0").read_text() == (tmp_path / "saved-1").read_text()


@pytest.mark.parametrize("slurm", [False, True], ids=["told", "in a job of Slurm"])
def test_without_launch_they_agree_and_leave_together_and_the_first_prints(pair, slurm):
    assert [one.end() for one in pair("end", slurm)] == [(0, PRINTED, ""), (0, "", "")]


@pytest.mark.parametrize(
    ("what", "mark", "killed"),
    [("loop", "looping", 0), ("loop", "looping", 1), ("pause", "joined", 1)],
)
def test_where_one_is_killed_the_other_ends_and_says_why(pair, tmp_path, what, mark, killed):
    """In a sentence; or, where JAX is faster, as it is where process 0 is gone, by JAX's page."""
    both = pair(what)
    at_work(both[killed], tmp_path, mark)
    both[killed].process.kill()
    began = time.monotonic()
    code, _, err = both[1 - killed].end()
    assert time.monotonic() - began < 3 + 10
    assert code
    sentence = err.startswith(f"tlite: {LOST}, and what was saved is intact: ")
    assert "another task died" in err or (code, sentence, err.count("\n")) == (2, True, 1), err


def test_a_wrong_option_of_an_experiment_is_told_once(start):
    code, out, err = start("end", "--widht 3").end()
    assert (code, out) == (2, PRINTED.splitlines(keepends=True)[0])
    assert err.count("--widht") == 1


@pytest.mark.parametrize(("cores", "n", "each"), [(8, 2, 4), (8, 3, 2), (2, 4, 1)])
def test_the_cores_are_divided(monkeypatch, cores, n, each):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setattr(launch, "num_cores", lambda: cores)
    assert devices(n) == [{"JAX_NUM_CPU_DEVICES": str(each)}] * n
    assert devices(n, 3) == [{"JAX_NUM_CPU_DEVICES": "3"}] * n


def test_each_process_gets_gpus_of_its_own(monkeypatch):
    monkeypatch.setattr(launch, "visible_gpus", lambda: ["0", "1", "5", "7"])
    shares = [one["CUDA_VISIBLE_DEVICES"] for one in devices(4)]
    assert shares == ["0", "1", "5", "7"]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in devices(2, 2)] == ["0,1", "5,7"]
    with pytest.raises(UserError, match="3 processes with 2 each need 6 GPUs, and there are 4"):
        devices(3, 2)


def test_gpus_are_those_that_jax_would_see(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "jax_cuda13_plugin")
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert visible_gpus() == ["2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert visible_gpus() == []


def test_standard_error_is_read_in_lines_and_never_held_back(monkeypatch):
    monkeypatch.setattr(launch.time, "sleep", pytest.fail)
    lines = deque()
    content = b"NCCL INFO Channel 00\n" * 60_000 + b"\rb\nlast"
    read_lines(1, io.BufferedReader(io.BytesIO(content)), lines)
    assert len(lines) == 60_002
    assert [line for _, _, line in lines][-2:] == [b"\rb", b"last"]


BOX = [(0, b"+-- widht --+"), (0, b"+-----------+")]
LOST_ONE = f"tlite: {LOST}: what was saved is kept".encode()
REPEATED = [(2, b"warm"), (1, b"tlite: a"), (0, b"hot"), (0, b"hot"), (2, b"tlite: a")]


@pytest.mark.parametrize(
    ("lines", "failed", "code", "killed", "written"),
    [
        (REPEATED, None, 0, "", [b"[2] warm", b"tlite: a", b"hot", b"hot"]),
        # All lines of the process that has failed, and of the others sentences.
        (
            [(0, b"*** Check failure stack trace"), (1, b"KeyError"), (0, b"tlite: b")],
            *(1, 1, ""),
            [b"[1] KeyError", b"tlite: b"],
        ),
        # A wrong option is explained by process 0, though another ended before it.
        ([BOX[0], (1, b"[JAX] lost"), BOX[1]], 1, 1, "", [b"[1] [JAX] lost"]),
        (BOX, 1, 2, "", [line for _, line in BOX]),
        (BOX, 0, 2, "", [line for _, line in BOX]),
        ([*BOX, (1, b"tlite: full")], 1, 2, "", [b"tlite: full"]),
        # A reason is worth more than that one is lost.
        ([(0, LOST_ONE), (2, LOST_ONE)], 0, 2, "", [LOST_ONE]),
        ([(0, LOST_ONE), (1, b"tlite: full")], 0, 2, "", [b"tlite: full"]),
        ([(0, LOST_ONE)], 1, -9, "1 was killed", [b"tlite: 1 was killed"]),
        ([], 1, 1, "", []),
    ],
)
def test_one_sentence_of_several_processes_and_other_lines_by_number(
    lines, failed, code, killed, written, capfd
):
    said = set()
    chosen = lines if failed is None else last_lines(lines, failed, code, killed, said)
    for number, line in chosen:
        write_line(number, line, said)
    assert capfd.readouterr().err.encode().splitlines() == written
