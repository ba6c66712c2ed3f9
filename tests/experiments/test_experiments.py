import json

import pytest

from tlite.cli import find_experiments, load_experiment
from tlite.config import from_dict, to_dict
from tlite.experiment import Experiment


@pytest.mark.parametrize("name", find_experiments())
def test_every_experiment_loads_names_its_runs_and_fits_into_json(name):
    experiment = load_experiment(name)
    assert experiment.name == name
    content = json.loads(json.dumps(to_dict(experiment)))
    assert from_dict(Experiment, content) == experiment


@pytest.mark.parametrize("name", find_experiments())
def test_every_experiment_says_how_it_is_run(name):
    assert "command   " in find_experiments()[name].read_text()
