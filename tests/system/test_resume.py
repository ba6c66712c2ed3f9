"""Real processes, really killed: what they leave behind is gone on with as if nothing happened.

The attack kills more of them, of other kinds of runs, and fills the disk.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.helpers.recipes import restored
from tlite.cli import main
from tlite.recipes import open_recipe
from tlite.training.metrics import read_metrics

STEPS = 60
# In float32: what precision a run starts with must not depend on the machine.
SETTINGS = (
    "--width 8 --num-heads 2 --num-blocks 1 --context 8 --batch-size 4 --seeds 2 "
    "--precision float32"
)
TRAIN = f"train text {SETTINGS} --steps {STEPS} --evaluate-every 3"


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{n} bottles of beer on the wall.\n" for n in range(99, 0, -1)))
    return path


# Several commands one after the other, and the exit code of each.
COMMANDS = "import sys; from tlite.cli import main; print([main(c.split()) for c in sys.argv[1:]])"


def start(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def tlite(arguments: str) -> subprocess.Popen:
    return start("-m", "tlite", *arguments.split())


def wait_for(condition, process: subprocess.Popen) -> None:
    """Returns as soon as the condition holds, or the process ends, which it must not before."""
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.001)


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def assert_same_state(folder: Path, other: Path) -> None:
    """Bit-identical parameters and optimizer at the last step."""
    states = []
    for run in (folder, other):
        members, step = restored(open_recipe(run))
        assert step == STEPS
        states.append((members.parameters, members.optimizer))
    for a, b in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(a, b)


def assert_same_run(folder: Path, other: Path) -> None:
    """The same state, and the same metrics, each step once."""
    assert_same_state(folder, other)
    lines = [
        [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in read_metrics(path)]
        for path in (folder / "metrics.jsonl", other / "metrics.jsonl")
    ]
    steps = [line["step"] for line in lines[0] if line["split"] == "training"]
    assert steps == list(range(1, STEPS + 1))
    assert lines[0] == lines[1]
    assert (folder / "examples.npz").read_bytes() == (other / "examples.npz").read_bytes()


@pytest.fixture(scope="module")
def killed(text, tmp_path_factory) -> Path:
    """A run that was killed before its first checkpoint, and again after some."""
    folder = tmp_path_factory.mktemp("runs") / "killed"
    process = tlite(f"{TRAIN} --path {text} --run {folder}")
    wait_for(folder.exists, process)
    assert (folder / "config.json").is_file()
    kill(process)
    metrics = folder / "metrics.jsonl"

    def steps_done() -> int:
        return max((line["step"] for line in read_metrics(metrics)), default=0)

    process = tlite(f"train --resume {folder}")
    wait_for(lambda: steps_done() >= 22, process)
    kill(process)
    return folder


def half_written(folder: Path) -> list[str]:
    names = os.listdir(folder / "checkpoints") if (folder / "checkpoints").exists() else []
    return [name for name in names if not name.isdigit()]


@pytest.fixture(scope="module")
def killed_writing(text, tmp_path_factory) -> Path:
    """A run that was killed while a checkpoint was written."""
    folder = tmp_path_factory.mktemp("runs") / "killed-writing"
    process = tlite(f"{TRAIN} --path {text} --run {folder}")
    for _ in range(20):  # a write takes about 10 ms: once seen, it may end before the kill does
        wait_for(lambda: half_written(folder), process)
        process.send_signal(signal.SIGSTOP)
        if half_written(folder):
            break
        process.send_signal(signal.SIGCONT)
    kill(process)
    assert half_written(folder)
    return folder


@pytest.fixture(scope="module")
def interrupted(text, tmp_path_factory) -> Path:
    """A run that Ctrl-C has stopped; its standard error is in the file `said`."""
    folder = tmp_path_factory.mktemp("runs") / "interrupted"
    process = tlite(f"{TRAIN} --path {text} --run {folder}")
    wait_for(lambda: read_metrics(folder / "metrics.jsonl"), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    (folder / "said").write_text(err)
    return folder


@pytest.fixture(scope="module")
def ended(text, killed, killed_writing, interrupted, tmp_path_factory) -> Path:
    """A folder of runs: one that never was stopped, and those that were, each gone on with; the
    interrupted one's member 1 also alone."""
    folder = tmp_path_factory.mktemp("runs") / "ended"
    commands = [f"{TRAIN} --path {text} --run {folder / 'uninterrupted'}"]
    for run in (killed, killed_writing, interrupted):
        commands.append(f"train --resume {shutil.copytree(run, folder / run.name)}")
    members = shutil.copytree(interrupted, folder / "members")
    commands.append(f"train --resume {members} --member 1")
    process = start("-c", COMMANDS, *commands)
    out, err = process.communicate(timeout=300)
    assert out.endswith("[0, 0, 0, 0, 0]\n"), err
    return folder


def test_a_run_killed_again_and_again_ends_as_one_that_never_was(ended):
    assert_same_run(ended / "killed", ended / "uninterrupted")


def test_a_run_killed_while_a_checkpoint_is_written_ends_the_same(ended):
    assert not half_written(ended / "killed-writing")
    assert_same_run(ended / "killed-writing", ended / "uninterrupted")


def test_ctrl_c_saves_and_says_how_to_go_on(interrupted, ended):
    (line,) = (interrupted / "said").read_text().splitlines()
    assert line.endswith(f"tlite train --resume {interrupted}")
    last = read_metrics(interrupted / "metrics.jsonl")[-1]["step"]
    assert last < STEPS
    assert (interrupted / "checkpoints" / str(last)).is_dir()
    assert_same_state(ended / "interrupted", ended / "uninterrupted")


def test_one_member_goes_on_alone(ended):
    alone, among = (  # where Ctrl-C came there may be one validation more
        [x for x in read_metrics(ended / run / "metrics.jsonl") if x["split"] == "training"]
        for run in ("members-1", "uninterrupted")
    )
    assert [line["step"] for line in alone] == [line["step"] for line in among]
    for one, several in zip(alone, among, strict=True):
        assert one["loss"] == pytest.approx(several["loss_members"][1], abs=1e-5)


def test_a_loss_that_is_not_finite_stops_with_the_step_and_the_last_checkpoint(
    text, tmp_path, capsys
):
    folder = tmp_path / "diverged"
    arguments = (
        f"train text {SETTINGS} --steps 60 --evaluate-every 1 --path {text} --run {folder} "
        "--learning-rate 1e30 --norm-first --warmup-steps 3"
    )
    assert main(arguments.split()) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "loss of seed" in err
    assert "at step" in err
