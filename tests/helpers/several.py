"""Fixtures: the runs of real processes, and what this process trains alone."""

import dataclasses

import jax
import pytest

from tests.helpers.launching import EXPERIMENT, launched
from tlite.recipes import open_recipe
from tlite.training import placement


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """The run that processes with so many devices have trained with these options."""
    made = {}

    def call(processes, devices, options="", experiment=EXPERIMENT):
        if (key := (processes, devices, options, experiment)) not in made:
            folder = tmp_path_factory.mktemp("several")
            launched(f"train {experiment} {options} --run run", folder, processes, devices)
            made[key] = folder / "run"
        return open_recipe(made[key])

    return call


@pytest.fixture
def alone(monkeypatch):
    """The parameters (M, ...) and losses that this process trains on so many devices."""
    monkeypatch.setattr(placement, "WHOLE_BELOW", 64)
    devices = jax.devices()

    def call(recipe, number, **settings):
        training = dataclasses.replace(recipe.experiment.training, **settings)
        experiment = dataclasses.replace(recipe.experiment, training=training)
        monkeypatch.setattr(jax, "devices", lambda *_: devices[:number])
        run = dataclasses.replace(recipe.run, experiment=experiment)
        trainer = type(recipe)(run, recipe.tokenizer, recipe.data).trainer
        assert trainer.mesh.size == number
        members, losses = trainer.train(trainer.init(), 0, training.steps)
        return members.parameters, losses["loss"]

    return call
