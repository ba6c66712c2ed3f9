"""What users run: the demo, with XLA's optimisations, in bfloat16, stopped and gone on with.

All other tests but the attack's compile with few optimisations, which is another program.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from tlite.recipes import GeneratorRecipe
from tlite.training.metrics import read_metrics

STEPS = 40
TRAIN = f"train demo --steps {STEPS} --evaluate-every 10 --batch-size 8 --precision mixed"
# Measured: 3.378; all characters alike have 4.64.
BOUND = 3.5
OF_TESTS = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")


def start(arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tlite", *arguments.split()],
        cwd=Path(__file__).parents[2],
        env={name: value for name, value in os.environ.items() if name not in OF_TESTS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(arguments: str) -> str:
    process = start(arguments)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, str]:
    """A run that nobody disturbs, and what it prints."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, finish(f"{TRAIN} --run {folder}")


def test_the_demo_learns_and_writes(whole):
    folder, out = whole
    losses = [n["loss"] for n in read_metrics(folder / "metrics.jsonl") if n["split"] != "training"]
    assert len(losses) == STEPS // 10
    assert losses[-1] < BOUND
    written = out.split("\nThe ")[1].split("\nsaved in ")[0]
    assert len(written) > 100


def test_a_run_that_is_stopped_ends_with_the_bits_of_one_that_is_not(whole, tmp_path):
    folder = tmp_path / "stopped"
    process = start(f"{TRAIN} --run {folder}")
    while not read_metrics(folder / "metrics.jsonl"):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert read_metrics(folder / "metrics.jsonl")[-1]["step"] < STEPS
    finish(f"train --resume {folder}")
    ends = [GeneratorRecipe.open(run).restore("last") for run in (whole[0], folder)]
    assert [step for _, step in ends] == [STEPS, STEPS]
    states = [(members.parameters, members.optimizer) for members, _ in ends]
    jax.tree.map(np.testing.assert_array_equal, *states)
