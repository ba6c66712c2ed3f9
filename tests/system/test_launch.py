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
    """Return a function that starts `tlite ... train` of an experiment that acts by its name."""
    with contextlib.ExitStack() as stack:

        def call(action, options="", before="launch -n 2 --devices-each 1", **environment):
            line = f"{before} train {EXPERIMENT} --name {action} --run {tmp_path} {options}"
            settings = {"folder": tmp_path, "JAX_PLATFORMS": "cpu"} | environment
            return stack.enter_context(Running("tlite", *line.split(), **settings))

        yield call


@pytest.fixture
def pair(start):
    """Return a function that starts two processes without `tlite launch`."""

    def call(action, slurm=False):
        port, both = str(free_port()), []
        for i in "01":
            process = f"--coordinator localhost:{port} --processes 2 --process {i}"
            job = {"SLURM_JOB_ID": "71", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
            job |= {"JAX_COORDINATOR_PORT": port, "SLURM_PROCID": i, "SLURM_LOCALID": i}
            options = "--heartbeat 3 " + ("" if slurm else process)
            both.append(start(action, options, "", **(job if slurm else {})))
        return both

    return call


def wait_for_children(run: Running, folder: Path, state: str = "looping") -> list[int]:
    """Return the children's process ids when both have reached a state."""
    run.wait_until(lambda: all((folder / f"{state}-{i}").exists() for i in (0, 1)))
    return run.children()


@pytest.mark.parametrize(
    ("action", "code", "line"),
    [("fault-1", 2, "the disk is full"), ("bug-1", 1, "KeyError: 'ours'")],
)
def test_launch_names_the_process_that_failed_first(start, action, code, line):
    exit_code, out, err = start(action).end()
    assert (exit_code, out) == (code, PRINTED)
    assert err.count(line) == 1
    assert ("Traceback" in err) == (code == 1)
    assert f"tlite: process 1 ended first, with exit code {code}\n" in err


def test_an_error_of_an_experiment_is_printed_once(tmp_path):
    (tmp_path / "wrong.py").write_text("raise ValueError('no steps')")
    words = ["launch", "-n", "2", "--devices-each", "1", "train", "wrong.py"]
    with Running("tlite", *words, folder=tmp_path, JAX_PLATFORMS="cpu") as run:
        code, _, err = run.end()
    assert code == 2
    line = "wrong.py, line 1: ValueError: no steps"
    assert err.count(line) == err.count("tlite: ") - 1 == 1  # the launcher has a line, too


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the children")
def test_a_killed_launcher_leaves_no_orphans_and_they_save(start, tmp_path):
    run = start("loop")
    children = wait_for_children(run, tmp_path)
    run.process.kill()
    last = time.monotonic() + 60
    while any(map(is_alive, children)):
        assert time.monotonic() < last
        time.sleep(0.05)
    assert (tmp_path / "saved-0").read_text() == (tmp_path / "saved-1").read_text()


def test_without_launch_only_process_0_prints(pair):
    assert [process.end() for process in pair("end", slurm=True)] == [
        (0, PRINTED, ""), (0, "", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("action", "state", "killed"),
    [("loop", "looping", 0), ("pause", "joined", 1)],
)
def test_if_one_is_killed_the_other_ends_with_a_reason(pair, tmp_path, action, state, killed):
    """JAX's message may come first, as when process 0 is killed."""
    both = pair(action)
    wait_for_children(both[killed], tmp_path, state)
    both[killed].process.kill()
    start = time.monotonic()
    code, _, err = both[1 - killed].end()
    assert time.monotonic() - start < 3 + 10
    assert code
    is_ours = err.startswith(f"tlite: {LOST}")
    assert "another task died" in err or (code, is_ours, err.count("\n")) == (2, True, 1), err


@pytest.mark.parametrize(("cores", "n", "each"), [(8, 2, 4), (8, 3, 2), (2, 4, 1)])
def test_processes_share_the_cores(monkeypatch, cores, n, each):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setattr(launch, "num_cores", lambda: cores)
    assert devices(n) == [{"JAX_NUM_CPU_DEVICES": str(each)}] * n
    assert devices(n, 3) == [{"JAX_NUM_CPU_DEVICES": "3"}] * n


def test_each_process_gets_its_own_gpus(monkeypatch):
    monkeypatch.setattr(launch, "visible_gpus", lambda: ["0", "1", "5", "7"])
    assert [env["CUDA_VISIBLE_DEVICES"] for env in devices(4)] == ["0", "1", "5", "7"]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in devices(2, 2)] == ["0,1", "5,7"]
    with pytest.raises(UserError, match="3 processes with 2 each need 6 GPUs, and 4 can be used"):
        devices(3, 2)


def test_visible_gpus_are_those_that_jax_sees(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "jax_cuda13_plugin")
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert visible_gpus() == ["2", "3"]
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert visible_gpus() == []
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert visible_gpus() == []
