"""Scalars that layers add to the loss (`aux`): each kind of model adds, weighs and logs them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.masked_language_model import experiment as masked_language_model
from tests.helpers.golden import CLASSIFIER, GENERATOR, SIZES, TRANSLATOR, first_batch, table
from tests.helpers.runs import varied
from tlite import functional as F
from tlite.runs import Run
from tlite.training.step import total_loss

pytestmark = pytest.mark.usefixtures("one_device", "compiled_when_trained")
EXPERIMENTS = {
    "generator": GENERATOR,
    "classifier": CLASSIFIER,
    "sentences": varied(CLASSIFIER, data=table("good"), sentences=2),
    "translator": TRANSLATOR,
    "masked": varied(masked_language_model, data=GENERATOR.data, precision="float32", **SIZES),
}


def penalized(params, x, inputs):
    y = F.feed_forward(params, x, jax.nn.relu)
    return y, None, {"number": jnp.float32(1), "square": (y**2).mean()}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_scalars_of_layers_are_added_and_logged(name, tmp_path):
    experiment = varied(EXPERIMENTS[name], feed_forward=penalized, aux_weight=0.5)
    run = Run.create(experiment, tmp_path / "run")
    trainer, state = run.trainer, run.init_state()
    (model,) = trainer.models(state.parameters)
    batch = tuple(map(jnp.asarray, first_batch(trainer)))
    keys = jax.random.split(jax.random.key(0), len(batch[0]))
    total, sums = jax.jit(partial(total_loss, trainer.task, trainer.config))(model, batch, keys)
    added = sums["aux_number"][0] + sums["aux_square"][0]
    np.testing.assert_allclose(total, sums["loss"][0] + 0.5 * added, rtol=1e-6)
    _, means = trainer.train(state, 0, 1)
    num_layers = 2 if name == "translator" else 1  # encoder and decoder
    np.testing.assert_allclose(means["aux_number"], num_layers, rtol=1e-6)
    assert means["aux_square"] > 0
