"""Runs with optimizers, schedules and losses of the user's, and with low-rank updates."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import tlite
from tests.helpers.golden import FOLDER
from tlite.data import TextFile
from tlite.experiment import GeneratorExperiment
from tlite.models import GeneratorConfig
from tlite.models.parameters import named_arrays
from tlite.runs import Run
from tlite.runs.experiment_files import load_experiment
from tlite.training import LowRank, TrainingConfig
from tlite.training.run_dir import find_runs

pytestmark = pytest.mark.usefixtures("one_device")

FILE = """
import jax, jax.numpy as jnp, optax
from tlite.data import TextFile
from tlite.experiment import GeneratorExperiment
from tlite.models import GeneratorConfig
from tlite.training import TrainingConfig


def sign_momentum(learning_rate):
    sign = optax.stateless(lambda g, _: jax.tree.map(jnp.sign, g))
    return optax.chain(optax.trace(0.9), sign, optax.scale_by_learning_rate(learning_rate))


def triangle(step):
    return 1 - jnp.abs(step / 4 - 1) / 2


def hinge(logits, targets):
    right = jnp.take_along_axis(logits, jnp.maximum(targets, 0)[..., None], -1)
    return jnp.where(targets < 0, 0, jnp.maximum(0, 1 + logits - right).sum(-1) - 1)


experiment = GeneratorExperiment(
    "own",
    TextFile({path!r}, validation_fraction=0.1),
    GeneratorConfig(context=16, width=8, num_heads=2, num_blocks=1),
    TrainingConfig(
        steps=4, batch_size=4, learning_rate=1e-2, evaluate_every=2, seeds=2,
        optimizer=sign_momentum, schedule=triangle, loss=hinge,
    ),
)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(FILE.replace("{path!r}", repr(str(FOLDER / "text.txt"))))
    return path


def parameters(run: Run) -> dict[str, np.ndarray]:
    return {name: np.asarray(a) for name, a in run.parameters("last")[0].items()}


def test_a_run_with_own_functions_resumes_bitwise(file, tmp_path):
    experiment = load_experiment(file)
    whole = Run.create(experiment, tmp_path / "whole").train(report=False)
    half = tlite.override(experiment, {"training.steps": 2})
    Run.create(half, tmp_path / "half").train(report=False)
    resumed = Run.open(tmp_path / "half", steps=4).train(report=False)
    expected = parameters(whole)
    for name, array in parameters(resumed).items():
        np.testing.assert_array_equal(array, expected[name])
    assert find_runs(tmp_path)[0].total == 4  # read without the user's code


@pytest.mark.parametrize("replica", [0, "all"])
def test_a_loaded_model_has_its_low_rank_updates(replica, tmp_path):
    experiment = GeneratorExperiment(
        "lora",
        TextFile(str(FOLDER / "text.txt"), validation_fraction=0.1),
        GeneratorConfig(context=16, width=8, num_heads=2, num_blocks=1),
        TrainingConfig(
            steps=2, batch_size=4, learning_rate=0.1, seeds=2,
            low_rank=LowRank(rank=2),
        ),
    )  # fmt: skip
    run = Run.create(experiment, tmp_path / "run").train(report=False)
    model, _ = tlite.load(run, replica=replica)
    models = run.trainer.models(run.parameters()[0])
    tokens = jnp.arange(16) % 5
    if replica == "all":
        expected = jnp.stack([each(tokens) for each in models])
        np.testing.assert_allclose(model.mean(lambda m: m(tokens)).shape, expected[0].shape)
        kernels = named_arrays(run.ensemble(run.parameters()[0]))
        assert not any("lora" in name for name in kernels)
        return
    np.testing.assert_allclose(model(tokens), models[0](tokens), atol=1e-6)
    initial = run.trainer.models(run.trainer.init().parameters)[0]
    assert np.abs(np.asarray(model(tokens) - initial(tokens))).max() > 1e-3
