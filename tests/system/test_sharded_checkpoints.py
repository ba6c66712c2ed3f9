"""Checkpoints that several real processes write, each its parts."""

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from tests.helpers import sharded_program
from tlite.parallel.launch import free_port
from tlite.training import TrainingConfig
from tlite.training.checkpoints import Checkpoints

ROOT = Path(__file__).parents[2]


def start(folder: Path, *command: object, processes: int = 2, devices: int = 1) -> list:
    """Processes of `sharded_program`, with so many devices each."""
    where = f"localhost:{free_port()}"
    program = [sys.executable, "-m", "tests.helpers.sharded_program", folder, where]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)}
    return [
        subprocess.Popen(
            [*map(str, [*program, processes, process, *command])],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(processes)
    ]


def finish(running: list) -> tuple[str, str]:
    """What the first has printed, and what all have complained of."""
    found = [process.communicate(timeout=100) for process in running]
    errors = "".join(err for _, err in found)
    assert [process.returncode for process in running] == [0] * len(running), errors
    return found[0][0], errors


def load_here(folder: Path, step: int | None = None) -> int:
    """Of the four devices of this process."""
    found, loaded = Checkpoints(folder).load(sharded_program.abstract(), step)
    assert sharded_program.is_right(loaded, found)
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """Steps 1 and 2, by two processes with a device each."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    out, errors = finish(start(folder, "save", 1, 2))
    assert "saved [1, 2] 2" in out
    assert not errors
    return folder


def test_what_two_have_saved_one_loads(saved):
    assert load_here(saved) == 2
    assert load_here(saved, 1) == 1
    parameters = {"parameters": sharded_program.abstract()["parameters"]}
    assert Checkpoints(saved).load(parameters)[0] == 2


def test_two_to_one_to_two_with_more_devices(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "checkpoints")
    with Checkpoints(folder, TrainingConfig(keep=3, evaluate_every=1), writing=True) as checkpoints:
        checkpoints.save(3, sharded_program.placed(3), -3.0)
    out, errors = finish(start(folder, "load and save", 4, 5, devices=2))
    assert "loaded 3 True" in out
    assert "saved [3, 4, 5] 5" in out
    assert not errors
    assert load_here(folder) == 5


def test_all_processes_take_the_same_when_one_is_damaged(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "checkpoints")
    files = [path for path in (folder / "2").rglob("d/*") if path.is_file()]
    for path in files:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    out, errors = finish(start(folder, "load and save", 2))
    assert "loaded 1 True" in out
    assert errors.count("checkpoint 2 is damaged: using checkpoint 1 instead") == 1
    assert (folder / "damaged-2").is_dir()
    assert load_here(folder) == 2


def test_a_kill_while_two_save_leaves_what_was_whole(saved, tmp_path):
    killed, chance = 0, random.Random(0)
    folder = shutil.copytree(saved, tmp_path / "checkpoints")
    running = start(folder, "save", *range(3, 1000))
    deadline = time.monotonic() + 60
    while Checkpoints(folder).steps()[-1] < 4 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.5))
    running[killed].kill()
    time.sleep(chance.uniform(0, 0.5))  # in which the other one goes on as it can
    running[1 - killed].kill()
    for process in running:
        process.communicate()
    last = load_here(folder)
    assert last >= 4
    with Checkpoints(folder, writing=True) as checkpoints:
        assert all(path.name.isdigit() for path in folder.iterdir())
        assert checkpoints.load(sharded_program.abstract())[0] == last
        checkpoints.save(last + 1, jax.device_get(sharded_program.placed(last + 1)), 0.0)
    assert load_here(folder) == last + 1
