"""A user's class of runs, `experiments/masked_language_model.py`, is equal to tlite's own."""

import numpy as np
import pytest

import tlite
from tests.helpers.complaints import complaint
from tests.helpers.runs import train
from tlite.cli import main
from tlite.experiment import GeneratorExperiment
from tlite.runs import Run
from tlite.runs.models import open_model
from tlite.training.run_dir import find_runs

pytestmark = pytest.mark.usefixtures("one_device")

SMALL = {
    "model.width": 16, "model.num_heads": 2, "model.num_blocks": 1, "model.context": 16,
    "training.steps": 6, "training.evaluate_every": 2, "training.precision": "float32",
    "training.batch_size": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    experiment = tlite.override(tlite.load_experiment("masked_language_model"), SMALL)
    return train(experiment, tmp_path_factory.mktemp("masked") / "run")


def test_opened_run_evaluates_as_the_trained_one(run, capsys):
    opened = Run.open(run.dir.path)
    assert type(opened).__name__ == "MaskedRun"
    opened.evaluate()
    line = capsys.readouterr().out
    sums = run.trainer.evaluate(run.parameters()[0], run.validation())
    loss = np.sum(sums["loss"], dtype=np.float64) / np.sum(sums["count"], dtype=np.float64)
    assert f"validation loss {loss:.4f} nats" in line


def test_commands_accept_a_run_of_a_user_class(run, tmp_path, monkeypatch, capsys):
    assert "another kind of model" in complaint(open_model, run.dir.path, GeneratorExperiment)
    (listed,) = find_runs(run.dir.path.parent)
    assert (listed.kind, listed.experiment) == ("masked", "masked_language_model")
    for line in (f"inspect {run.dir.path} --to pictures", f"compare {run.dir.path} {run.dir.path}"):
        assert main(line.split()) == 0
    assert "identical scores" in capsys.readouterr().out
