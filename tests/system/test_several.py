"""Real processes under `tlite launch` train the same as one."""

import json
import signal
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.helpers.corpora import write_corpus
from tests.helpers.launching import EXPERIMENT, assert_close, coordinated, launch, metric_of
from tests.helpers.python import SMALL_DATA
from tlite.cli import main
from tlite.comparison.study import read_study
from tlite.runs import Run
from tlite.training.checkpoints import Checkpoints
from tlite.training.metrics import read_example_scores, read_metrics

pytest_plugins = "tests.helpers.several"


SMALL = (
    "--width 8 --num-heads 2 --num-blocks 1 --steps 6 --evaluate-every 3 --precision float32 "
    "--learning-rate 100 --optimizer.eps 1000 --warmup-steps 0 --clip-norm None "
)
OTHERS = {
    "classifier": f"reviews_demo --reviews 60 --context 8 --batch-size 4 {SMALL}",
    "translator": "copy_task --letters 4 --longest 5 --sequences 200 --bleu-sentences 1 --beam 1 "
    f"--buckets 2 --num-subwords 20 --context 8 --best-metric loss --batch-size 64 {SMALL}",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds_train_over_processes_as_in_one(several, kind, tmp_path, monkeypatch):
    name, options = OTHERS[kind].split(" ", 1)
    run, two = several(2, 1, options, name), jax.devices()[:2]
    monkeypatch.setattr(jax, "devices", lambda *_: two)
    monkeypatch.setattr(Run, "report", lambda _: None)
    assert main(["train", *OTHERS[kind].split(), "--run", str(tmp_path / "run")]) == 0
    single = Run.open(tmp_path / "run")
    assert single.trainer.mesh.size == 2
    for split in ("training", "validation"):
        assert len(metric_of(single, split)) == {"training": 6, "validation": 2}[split]
        np.testing.assert_allclose(metric_of(run, split), metric_of(single, split), atol=1e-5)
    scores, expected = (read_example_scores(each.dir.path) for each in (run, single))
    assert scores.step == expected.step
    np.testing.assert_array_equal(scores.count, expected.count)
    np.testing.assert_allclose(scores.sums["loss"], expected.sums["loss"], atol=1e-4)


def test_variants_of_two_processes_diverge_or_equal_one_process(alone, tmp_path):
    """A diverging variant fails in all; a replica of the other equals a run of its seed alone."""
    command = f"train {EXPERIMENT} --vary learning-rate 100 3e38 --run study"
    with launch(f"{command} --sharding fsdp --seeds 4", tmp_path, devices=2) as both:
        code, _, err = both.end()
    assert code == 2
    assert err.count("warning: variant learning-rate=3e38 failed: ") == 1
    variants = read_study(tmp_path / "study").variants
    assert [(v.failed is None, v.ended) for v in variants] == [(True, True), (False, False)]
    run, replica = Run.open(tmp_path / "study" / variants[0].run), 3
    seed = run.experiment.training.seed_range[replica]
    expected, losses = alone(run, 1, sharding="data_parallel", seed=seed, seeds=1)
    parameters, _ = run.parameters("last")
    assert_close({n: array[replica : replica + 1] for n, array in parameters.items()}, expected)
    replica_losses = [values[replica] for values in metric_of(run, "training", "loss_replicas")]
    np.testing.assert_allclose(replica_losses, losses[:, 0], atol=1e-5)


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
    for folder in (folders := [tmp_path / "host0", tmp_path / "host1"]):
        folder.mkdir()
    ends = coordinated(f"train {EXPERIMENT} --run run --sharding fsdp", *folders)
    assert [code for code, *_ in ends] == [2, 2]
    assert ends[0][2] == ends[1][2]
    assert ends[0][2].startswith("tlite: process 1 does not see the run folder run of process 0")
    assert not list(tmp_path.glob("host*/run/checkpoints/*"))


HEARTBEAT = 5
# The embedding table is large enough to be sharded.
GPT2 = (
    "--vocabulary-size 4160 --width 16 --num-heads 2 --num-blocks 1 --context 16 "
    "--batch-size 8 --per-device-batch-size 1 --sharding fsdp --precision float32 "
    "--attention exact --schedule constant --warmup-steps 5 --learning-rate 0.01 "
    "--validation-tokens 256 --evaluate-every 5"
)


def damage(checkpoint: Path) -> None:
    for path in filter(Path.is_file, checkpoint.rglob("d/*")):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def test_a_run_resumes_with_other_numbers_of_processes(tmp_path, capsys, monkeypatch):
    """Four processes train GPT-2's experiment until one is killed, two resume from a damaged
    checkpoint for five more steps, and one generates."""

    def losses(name, split):
        lines = read_metrics(tmp_path / name / "metrics.jsonl")
        return [line["loss"] for line in lines if line["split"] == split]

    run, line = tmp_path / "run", f"gpt2 --folder {write_corpus(tmp_path / 'corpus')} {GPT2}"
    train = f"train {line} --steps 30 --run run --heartbeat {HEARTBEAT}"
    with launch(train, tmp_path, 4) as four:
        four.wait_until((run / "checkpoints" / "10").exists)
        four.kill(2)
        killed = time.monotonic()
        code, out, err = four.end()
    assert time.monotonic() - killed < HEARTBEAT + 10
    assert code == 128 + signal.SIGKILL
    assert "tlite: process 2 was ended by SIGKILL: " in err
    assert "devices=4xcpu" in out
    assert len(losses("run", "validation")) < 6

    *_, intact, last = Checkpoints(run / "checkpoints").steps()
    damage(run / "checkpoints" / str(last))
    with launch("train --resume run --steps 35", tmp_path) as two:
        code, out, err = two.end()
    message = f"checkpoint {last} is damaged: using checkpoint {intact} instead"
    assert (code, err.count(message), "devices=2xcpu" in out) == (0, 1, True)
    assert (run / "checkpoints" / f"damaged-{last}").is_dir()
    one = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: one)
    monkeypatch.setattr(Run, "report", lambda _: None)
    assert main(f"train {line} --steps 35 --run {tmp_path / 'alone'}".split()) == 0
    for split, number in (("training", 35), ("validation", 7)):
        resumed, expected = (losses(name, split) for name in ("run", "alone"))
        assert len(resumed) == len(expected) == number
        np.testing.assert_allclose(resumed, expected, rtol=1e-4)

    capsys.readouterr()
    assert main(["generate", str(run), "--prompt", "9 bottles", "--tokens", "20"]) == 0
    assert capsys.readouterr().out.startswith("9 bottles")


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
TUNE = "tune tuned.py --vary learning-rate 1e-4..1 --trials 2 --tuning-seeds 1 --run tuning"


def test_two_processes_choose_the_values_that_one_chooses(tmp_path, monkeypatch):
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
        (folder / "tuned.py").write_text(TUNED)
    ends = coordinated(TUNE, *[folders[1]] * 2)
    assert [code for code, *_ in ends] == [0, 0], ends
    monkeypatch.chdir(folders[0])
    one = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: one)
    assert main(TUNE.split()) == 0
    texts = [(folder / "tuning" / "trials.jsonl").read_text() for folder in folders]
    ledgers = [[json.loads(line) for line in text.splitlines()] for text in texts]
    for line, expected in zip(*ledgers, strict=True):
        np.testing.assert_allclose(line.pop("loss"), expected.pop("loss"), atol=1e-4)
        assert line | {"seconds": 0} == expected | {"seconds": 0}
