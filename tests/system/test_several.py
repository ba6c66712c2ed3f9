"""Real processes under `tlite launch` train the same as one."""

import json
import shutil
import signal
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.helpers.launching import (
    EXPERIMENT,
    Running,
    assert_close,
    launch,
    losses_of,
)
from tests.helpers.python import SMALL_DATA
from tlite.cli import main
from tlite.comparison.study import read_study
from tlite.distributed.launch import free_port
from tlite.runs import Run
from tlite.training.checkpoints import Checkpoints
from tlite.training.metrics import read_example_scores

pytest_plugins = "tests.helpers.several"


@pytest.fixture(scope="module")
def together(several):
    """Return a run that 2 processes with a device each have trained, with replicated arrays."""
    return several(2, 1)


def test_a_sharded_model_trains_as_a_replicated_one(several, together):
    sharded = several(2, 2, "--sharding fsdp")
    assert_close(sharded.parameters("last")[0], together.parameters("last")[0])
    for split in ("training", "validation"):
        losses, expected = (losses_of(run, split) for run in (sharded, together))
        np.testing.assert_allclose(losses, expected, atol=1e-5)
    assert_same_examples(sharded, together)


def assert_same_examples(run, other):
    """Check that both runs saved the same scores of each example."""
    scores, expected = (read_example_scores(each.dir.path) for each in (run, other))
    assert scores.step == expected.step
    np.testing.assert_array_equal(scores.count, expected.count)
    np.testing.assert_allclose(scores.sums["loss"], expected.sums["loss"], atol=1e-4)


def test_a_replica_over_processes_trains_as_one_alone(several, alone):
    run, replica = several(2, 2, "--sharding fsdp --seeds 4"), 3
    parameters, _ = run.parameters("last")
    seed = run.experiment.training.seed_range[replica]
    expected, _ = alone(run, 1, sharding="data_parallel", seed=seed, seeds=1)
    assert_close({n: array[replica : replica + 1] for n, array in parameters.items()}, expected)


SMALL = (
    "--width 8 --num-heads 2 --num-blocks 1 --steps 6 --evaluate-every 3 --precision float32 "
    "--learning-rate 100 --optimizer.eps 1000 --warmup-steps 0 --clip-norm None "
)
OTHERS = {
    "classifier": f"reviews_demo --reviews 60 --context 8 --batch-size 4 {SMALL}",
    "translator": "copy_task --sequences 200 --bleu-sentences 1 --beam 1 --buckets 2 --pieces 40 "
    f"--context 40 --best-metric loss --batch-size 64 {SMALL}",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds_train_over_processes_as_in_one(several, kind, tmp_path, monkeypatch):
    name, options = OTHERS[kind].split(" ", 1)
    run, two = several(2, 1, options, name), jax.devices()[:2]
    monkeypatch.setattr(jax, "devices", lambda *_: two)
    assert main(["train", *OTHERS[kind].split(), "--run", str(tmp_path / "run")]) == 0
    single = Run.open(tmp_path / "run")
    assert single.trainer.mesh.size == 2
    for split in ("training", "validation"):
        assert len(losses_of(single, split)) == {"training": 6, "validation": 2}[split]
        np.testing.assert_allclose(losses_of(run, split), losses_of(single, split), atol=1e-5)
    assert_same_examples(run, single)


def test_a_study_s_variant_trains_or_fails_in_all_processes(several, together, tmp_path):
    command = f"train {EXPERIMENT} --vary learning-rate 100 3e38 --run study"
    with launch(command, tmp_path) as both:
        code, _, err = both.end()
    assert code == 2
    assert err.count("warning: variant learning-rate=3e38 failed: ") == 1
    variants = read_study(tmp_path / "study").variants
    assert [(v.failed is None, v.ended) for v in variants] == [(True, True), (False, False)]
    run = Run.open(tmp_path / "study" / variants[0].run)
    assert losses_of(run, "training") == losses_of(together, "training")


def test_all_processes_fall_back_to_the_same_intact_checkpoint(together, tmp_path):
    run_dir = shutil.copytree(together.dir.path, tmp_path / "run")
    for path in filter(Path.is_file, (run_dir / "checkpoints" / "6").rglob("d/*")):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with launch("train --resume run --steps 9", tmp_path) as both:
        code, _, err = both.end()
    assert (code, err.count("checkpoint 6 is damaged: using checkpoint 3 instead")) == (0, 1)
    assert (run_dir / "checkpoints" / "damaged-6").is_dir()
    run = Run.open(run_dir)
    assert run.experiment.training.steps == 9
    losses = losses_of(run, "training")
    assert losses[:6] == losses_of(together, "training")
    assert len(losses) == 9


def test_signals_make_all_save_the_same_step(tmp_path):
    """A scheduler may signal each process, and the launcher forwards its own signals."""
    run_dir = tmp_path / "run"
    with launch(f"train {EXPERIMENT} --steps 100000 --run run", tmp_path) as both:
        both.wait_until((run_dir / "checkpoints" / "3").exists)
        both.kill(1, signal.SIGTERM)
        both.process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        both.kill(0, signal.SIGTERM)
        both.process.send_signal(signal.SIGTERM)
        code, out, err = both.end()
    step = Checkpoints(run_dir / "checkpoints").steps()[-1]
    assert json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])["step"] == step
    assert code == 128 + signal.SIGTERM
    err = SMALL_DATA.sub("", err)
    assert err.startswith(f"tlite: stopped at step {step}, and saved; to resume: ")
    assert err.endswith(" -m tlite launch -n 2 --devices-each 1 train --resume run\n")
    assert err.count("\n") == out.count(" precision=") == out.count(" dir=run\n") == 1


def test_folders_that_are_not_shared_are_refused_by_all(tmp_path):
    port, both = free_port(), []
    for number in (0, 1):
        folder = tmp_path / f"host{number}"
        folder.mkdir()
        process = f"--coordinator 127.0.0.1:{port} --processes 2 --process {number}"
        line = f"train {EXPERIMENT} --run run --sharding fsdp {process}"
        environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
        both.append(Running("tlite", *line.split(), folder=folder, **environment))
    with both[0], both[1]:
        ends = [process.end() for process in both]
    assert [code for code, *_ in ends] == [2, 2]
    assert ends[0][2] == ends[1][2]
    assert ends[0][2].startswith("tlite: process 1 does not see the run folder run of process 0")
    assert not list(tmp_path.glob("host*/run/checkpoints/*"))


TUNED = """
from tlite.data import SyntheticReviews
from tlite.experiment import ClassifierExperiment, Words
from tlite.models import LogisticConfig
from tlite.training import TrainingConfig

experiment = ClassifierExperiment(
    "tuned",
    SyntheticReviews(reviews=60),
    Words(min_document_frequency=1),
    LogisticConfig(context=12),
    TrainingConfig(steps=8, batch_size=8, evaluate_every=4),
)
"""
TUNE = "--vary learning-rate 1e-4..1 --trials 2 --tuning-seeds 1 --run tuning"


def tune(folder, *words):
    (folder / "tuned.py").write_text(TUNED)
    words = "tlite", "tune", "tuned.py", *TUNE.split(), *words
    return Running(*words, folder=folder, JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="1")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Return the ledger of a tuning in one process."""
    folder = tmp_path_factory.mktemp("tuned")
    with tune(folder) as running:
        assert running.end()[0] == 0
    return ledger(folder / "tuning")


def ledger(tuning):
    """Return the lines of a tuning's ledger without the seconds."""
    lines = (tuning / "trials.jsonl").read_text().splitlines()
    return [{**json.loads(line), "seconds": None} for line in lines]


def test_a_tuning_resumed_after_sigkill_has_the_same_ledger(tuned, tmp_path):
    with tune(tmp_path) as running:
        running.wait_until(lambda: any(tmp_path.glob("tuning/*/checkpoints/*")))
        running.process.kill()
        assert running.end()[0] == -signal.SIGKILL
    assert not (tmp_path / "tuning" / "trials.jsonl").exists()
    with tune(tmp_path, "--resume", "auto") as running:
        assert running.end()[0] == 0
    assert ledger(tmp_path / "tuning") == tuned


def test_two_processes_choose_the_values_that_one_chooses(tuned, tmp_path):
    address = f"localhost:{free_port()}"
    options = "--coordinator", address, "--processes", 2, "--process"
    with tune(tmp_path, *options, 0) as first, tune(tmp_path, *options, 1) as second:
        assert [running.end()[0] for running in (first, second)] == [0, 0]
    together = ledger(tmp_path / "tuning")
    for line, expected in zip(together, tuned, strict=True):
        np.testing.assert_allclose(line["loss"], expected["loss"], atol=1e-4)
        assert {**line, "loss": 0} == {**expected, "loss": 0}
