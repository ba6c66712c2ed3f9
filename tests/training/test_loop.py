"""The loop: it ends when patience is out, keeps as many checkpoints as asked, and stays ended."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tlite.models import GeneratorConfig
from tlite.training import Trainer, TrainingConfig, language_task, validation_batches
from tlite.training.checkpoints import Checkpoints
from tlite.training.loop import fit, out_of, selection_score
from tlite.training.metrics import read_metrics

TOKENS = np.tile(np.arange(5), 20)
MODEL = GeneratorConfig(vocabulary_size=5, context=8, width=8, num_heads=2, num_blocks=1)
TRAINING = TrainingConfig(
    steps=12, batch_size=4, evaluate_every=2, select="accuracy", precision="float32"
)


@pytest.mark.parametrize(
    ("patience", "scores", "ended"),
    [
        (0, [1.0, 2.0, 3.0, 4.0], False),
        (1, [], False),
        (1, [3.0], False),
        (1, [3.0, 2.0], False),
        (1, [2.0, 3.0], True),
        (1, [2.0, 2.0], True),
        (2, [2.0, 3.0], False),
        (2, [2.0, 3.0, 2.5], True),
        (2, [2.0, 3.0, 1.0, 3.0], False),
        (2, [2.0, 3.0, 1.0, 3.0, 1.5], True),
        (3, [2.0, 3.0, 1.0, 3.0, 1.5], False),
    ],
)
def test_patience_is_out_when_so_many_scores_are_no_better_than_the_best(patience, scores, ended):
    assert out_of(patience, scores) == ended


def test_the_least_score_is_the_best_of_what_is_selected():
    line = {"loss": 2.0, "accuracy": 0.25, "bleu": 30.0}
    scores = {"loss": 2.0, "accuracy": -0.25, "bleu": -30.0}
    for select, score in scores.items():
        assert selection_score(dataclasses.replace(TRAINING, select=select), line) == score


@pytest.fixture(scope="module")
def trained():
    """Train in a folder; validations find the accuracies given, in turn."""
    trainer = Trainer(language_task(MODEL), TRAINING, jnp.asarray(TOKENS))

    def train(folder, accuracies, **changes):
        trainer.config = dataclasses.replace(TRAINING, **changes)  # of none that is compiled
        found = iter(accuracies)
        batches = validation_batches(TOKENS, MODEL.context, 4, trainer.mesh.shape["data"])

        def measure(members):
            return {"accuracy": np.array([next(found)])}

        folder.mkdir(exist_ok=True)
        return fit(trainer, folder, batches, MODEL.context, measure=measure)

    return train


def validated(folder):
    lines = read_metrics(folder / "metrics.jsonl")
    return [line["step"] for line in lines if line["split"] == "validation"]


def saved(folder):
    checkpoints = Checkpoints(folder / "checkpoints")
    try:
        return checkpoints.steps()
    finally:
        checkpoints.close()


def test_training_ends_when_patience_is_out_and_does_not_go_on(trained, tmp_path, capsys):
    folder = tmp_path / "run"
    members = trained(folder, [0.1, 0.5, 0.4, 0.5], patience=2)
    assert "no better validation in the last 2: ended at step 8\n" in capsys.readouterr().out
    assert validated(folder) == [2, 4, 6, 8]
    content = (folder / "metrics.jsonl").read_text()
    again = trained(folder, [], patience=2)
    assert "ended at step 8" in capsys.readouterr().out
    assert (folder / "metrics.jsonl").read_text() == content
    jax.tree.map(np.testing.assert_array_equal, again.parameters, members.parameters)


def test_more_patience_goes_on_where_less_has_ended(trained, tmp_path):
    trained(tmp_path / "run", [0.5, 0.4], patience=1)
    assert validated(tmp_path / "run") == [2, 4]
    trained(tmp_path / "run", [0.6, 0.1, 0.1, 0.1], patience=3)
    assert validated(tmp_path / "run") == [2, 4, 6, 8, 10, 12]


def test_without_patience_training_goes_on_and_keeps_the_last_checkpoints_and_the_best(
    trained, tmp_path
):
    trained(tmp_path / "run", [0.1, 0.9, 0.1, 0.1, 0.1, 0.1], keep=3)
    assert validated(tmp_path / "run") == [2, 4, 6, 8, 10, 12]
    assert saved(tmp_path / "run") == [4, 8, 10, 12]
