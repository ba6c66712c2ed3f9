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

import pytest

from tests.attack import state
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


def last_bits(folder: Path) -> str:
    """A hash of the parameters and the optimizer at the last step."""
    return state.checkpoints(folder)["checkpoints"][str(STEPS)]


def assert_same_run(folder: Path, other: Path) -> None:
    """The same state, and the same metrics, each step once."""
    assert last_bits(folder) == last_bits(other)
    lines = [state.metrics(run)["metrics.jsonl"] for run in (folder, other)]
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
    """A folder of runs: one that never was stopped, and those that were, each gone on with."""
    folder = tmp_path_factory.mktemp("runs") / "ended"
    commands = [f"{TRAIN} --path {text} --run {folder / 'uninterrupted'}"]
    for run in (killed, killed_writing, interrupted):
        commands.append(f"train --resume {shutil.copytree(run, folder / run.name)}")
    process = start("-c", COMMANDS, *commands)
    out, err = process.communicate(timeout=300)
    assert out.endswith("[0, 0, 0, 0]\n"), err
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
    assert last_bits(ended / "interrupted") == last_bits(ended / "uninterrupted")
