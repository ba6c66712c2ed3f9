"""Several real processes start and end together, under `tlite launch` or without it."""

import contextlib
import sys
import time
from pathlib import Path

import pytest

from tests.attack.kills import is_alive
from tests.helpers.launching import Running
from tlite.distributed import LOST, launch
from tlite.distributed.launch import devices, free_port, visible_gpus
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


@pytest.mark.parametrize(
    ("what", "code", "line"), [("fault-1", 2, "the disk is full"), ("bug-1", 1, "KeyError: 'ours'")]
)
def test_launch_names_the_process_that_failed_first(start, what, code, line):
    ended, out, err = start(what).end()
    assert (ended, out) == (code, PRINTED)
    assert err.count(line) == 1
    assert ("Traceback" in err) == (code == 1)
    assert f"tlite: process 1 ended first, with exit code {code}\n" in err


@pytest.mark.parametrize("at_its_start", [False, True])
def test_a_killed_process_is_named_and_ends_the_other(start, tmp_path, at_its_start):
    run = start("loop", "--heartbeat 3")
    if at_its_start:
        run.wait_until(lambda: len(run.children()) == 2)
    children = run.children() if at_its_start else at_work(run, tmp_path)
    run.kill(0)
    code, _, err = run.end()
    assert code == 137
    assert "tlite: process 0 was ended by SIGKILL: " in err
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
def test_if_one_is_killed_the_other_ends_with_a_reason(pair, tmp_path, what, mark, killed):
    """On one line; or in JAX's words if it is faster, as when process 0 is killed."""
    both = pair(what)
    at_work(both[killed], tmp_path, mark)
    both[killed].process.kill()
    began = time.monotonic()
    code, _, err = both[1 - killed].end()
    assert time.monotonic() - began < 3 + 10
    assert code
    sentence = err.startswith(f"tlite: {LOST}")
    assert "another task died" in err or (code, sentence, err.count("\n")) == (2, True, 1), err


def test_a_misspelt_option_of_an_experiment_ends_all(start):
    code, out, err = start("end", "--widht 3").end()
    assert (code, out) == (2, PRINTED.splitlines(keepends=True)[0])
    assert "--widht" in err


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
