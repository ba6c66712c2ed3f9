"""Fixtures: the runs of real processes, and what this process trains alone."""

import dataclasses

import jax
import pytest

from tests.helpers.launching import EXPERIMENT, launched
from tlite.runs import Run
from tlite.training import sharding


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """The run that processes with so many devices have trained with these options."""
    made = {}

    def call(processes, devices, options="", experiment=EXPERIMENT):
        if (key := (processes, devices, options, experiment)) not in made:
            folder = tmp_path_factory.mktemp("several")
            launched(f"train {experiment} {options} --run run", folder, processes, devices)
            made[key] = folder / "run"
        return Run.open(made[key])

    return call


@pytest.fixture
def alone(monkeypatch):
    """The parameters (M, ...) and losses that this process trains on so many devices."""
    monkeypatch.setattr(sharding, "MIN_SHARDED_SIZE", 64)
    devices = jax.devices()

    def call(run, number, **settings):
        training = dataclasses.replace(run.experiment.training, **settings)
        experiment = dataclasses.replace(run.experiment, training=training)
        monkeypatch.setattr(jax, "devices", lambda *_: devices[:number])
        run_dir = dataclasses.replace(run.dir, experiment=experiment)
        trainer = type(run)(run_dir, run.data).trainer
        assert trainer.mesh.size == number
        replicas, losses = trainer.train(trainer.init(), 0, training.steps)
        return replicas.parameters, losses["loss"]

    return call
