"""Checkpoints that several real processes write, each its parts."""

import random
import shutil
import time
from pathlib import Path

import jax
import pytest

from tests.helpers import sharded_program
from tests.helpers.launching import Running
from tlite.parallel.launch import free_port
from tlite.training.checkpoints import Checkpoints


def start(folder: Path, *command: object, processes: int = 2, devices: int = 1) -> list[Running]:
    """Processes of `sharded_program`, with so many devices each."""
    words = "tests.helpers.sharded_program", folder, f"localhost:{free_port()}", processes
    environment = {"JAX_NUM_CPU_DEVICES": str(devices)}
    return [Running(*words, number, *command, **environment) for number in range(processes)]


def finish(running: list[Running]) -> tuple[str, str]:
    """What the first has printed, and what all have complained of."""
    codes, outs, errors = zip(*[process.end() for process in running], strict=True)
    assert not any(codes), errors
    return outs[0], "".join(errors)


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
    with Checkpoints(folder, sharded_program.TRAINING, writing=True) as checkpoints:
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
    chance = random.Random(0)
    folder = shutil.copytree(saved, tmp_path / "checkpoints")
    running = start(folder, "save", *range(3, 1000))
    running[0].wait_until(lambda: Checkpoints(folder).steps()[-1] >= 4)
    for process in running:
        time.sleep(chance.uniform(0, 0.5))  # in which the other one goes on as it can
        process.process.kill()
    for process in running:
        process.end()
    last = load_here(folder)
    assert last >= 4
    with Checkpoints(folder, writing=True) as checkpoints:
        assert all(path.name.isdigit() for path in folder.iterdir())
        assert checkpoints.load(sharded_program.abstract())[0] == last
        checkpoints.save(last + 1, jax.device_get(sharded_program.placed(last + 1)), 0.0)
    assert load_here(folder) == last + 1
