"""Fixtures that train in several processes, and in this process alone."""

import dataclasses
import functools

import jax
import pytest

from tests.helpers.launching import EXPERIMENT, launched
from tlite.runs import Run
from tlite.training import sharding


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Train with (processes, devices per process, options, experiment), once each."""

    @functools.cache
    def train(processes, devices, options="", experiment=EXPERIMENT):
        folder = tmp_path_factory.mktemp("several")
        launched(f"train {experiment} {options} --run run", folder, processes, devices)
        return folder / "run"

    return lambda *arguments: Run.open(train(*arguments))


@pytest.fixture
def alone(monkeypatch):
    """Train in this process on `number` devices; return parameters (M, ...) and losses."""
    monkeypatch.setattr(sharding, "MIN_SHARDED_SIZE", 64)
    devices = jax.devices()

    def train(run, number, **settings):
        training = dataclasses.replace(run.experiment.training, **settings)
        experiment = dataclasses.replace(run.experiment, training=training)
        monkeypatch.setattr(jax, "devices", lambda *_: devices[:number])
        run_dir = dataclasses.replace(run.dir, experiment=experiment)
        trainer = type(run)(run_dir, run.built).trainer
        assert trainer.mesh.size == number
        replicas, losses = trainer.train(trainer.init(), 0, training.steps)
        return replicas.parameters, losses["loss"]

    return train
