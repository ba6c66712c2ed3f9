"""Several processes train the same as one: real ones, by `tlite launch`."""

import dataclasses
import json
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.helpers.launching import Launched, launched
from tlite.recipes import open_recipe
from tlite.training import placement
from tlite.training.checkpoints import Checkpoints

EXPERIMENT = Path(__file__).parents[1] / "helpers/divided_experiment.py"
MEMBERS = "--seeds 2 --learning-rates 100 300"


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """The run that processes with so many devices have trained with these options."""
    made = {}

    def call(processes, devices, options="", experiment=EXPERIMENT):
        if (key := (processes, devices, options, experiment)) not in made:
            folder = tmp_path_factory.mktemp("several")
            line = f"train {experiment} {options} --run run"
            launched(line, folder, processes, devices)
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


def assert_close(found, right):
    """Within 1e-5, which is a hundredth of what a step changes."""
    assert found.keys() == right.keys()
    for name in right:
        np.testing.assert_allclose(found[name], right[name], rtol=0, atol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def together(several):
    """What 2 processes with a device each have trained, all whole on both."""
    return several(2, 1)


@pytest.mark.parametrize(("number", "placed"), [(1, "replicated"), (4, "sharded")])
def test_two_processes_train_what_devices_of_one_train(together, alone, number, placed):
    found, step = together.restore("last")
    assert step == 6
    right, losses = alone(together, number, placement=placed)
    assert_close(found.parameters, right)
    np.testing.assert_allclose(losses_of(together, "training"), losses[:, 0], atol=1e-5)


def test_a_model_divided_over_processes_is_trained_as_a_whole_one(several, together):
    divided = several(2, 2, "--placement sharded --model-devices 2")
    found, right = (recipe.restore("last")[0] for recipe in (divided, together))
    assert_close(found.parameters, right.parameters)
    for split in ("training", "validation"):
        ours, theirs = (losses_of(recipe, split) for recipe in (divided, together))
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("member", [0, 3])
def test_members_over_processes_are_each_as_it_is_alone(several, alone, member):
    recipe = several(2, 2, f"--placement sharded {MEMBERS}")
    found, _ = recipe.restore("last")
    seed, rate = recipe.experiment.training.members[member]
    settings = {"seed": seed, "seeds": 1, "learning_rate": rate, "learning_rates": ()}
    right, _ = alone(recipe, 1, placement="replicated", **settings)
    assert_close({name: a[member : member + 1] for name, a in found.parameters.items()}, right)


SMALL = (
    "--width 8 --num-heads 2 --num-blocks 1 --steps 6 --evaluate-every 3 --precision float32 "
    "--learning-rate 100 --adam-epsilon 1000 --warmup-steps 0 --clip-norm None "
)
OTHERS = {
    "classifier": f"reviews_demo --reviews 60 --context 8 --batch-size 4 {SMALL}",
    "translator": "copy_task --sequences 200 --bleu-sentences 1 --beam 1 --buckets 2 --pieces 40 "
    f"--context 40 --select loss --batch-size 64 {SMALL}",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds_train_over_processes_as_in_one(several, train_without_report, kind):
    name, options = OTHERS[kind].split(" ", 1)
    ours, right = several(2, 1, options, name), open_recipe(train_without_report(OTHERS[kind]).run)
    for split in ("training", "validation"):
        assert len(losses_of(right, split)) == {"training": 6, "validation": 2}[split]
        np.testing.assert_allclose(losses_of(ours, split), losses_of(right, split), atol=1e-5)


def test_a_signal_to_one_makes_all_save_the_same_step(tmp_path):
    run = tmp_path / "run"
    with Launched(f"train {EXPERIMENT} --steps 100000 --run run", tmp_path) as both:
        both.wait_until((run / "checkpoints" / "3").exists)
        both.kill(1, signal.SIGTERM)
        code, out, err = both.end()
    step = Checkpoints(run / "checkpoints").steps()[-1]
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == step
    assert code == 128 + signal.SIGTERM
    assert err.startswith(f"tlite: stopped at step {step}, and saved; go on: ")
    assert err.count("\n") == out.count("precision:") == out.count("run folder") == 1


def losses_of(recipe, split):
    lines = map(json.loads, recipe.run.metrics.read_text().splitlines())
    return [line["loss"] for line in lines if line["split"] == split]
