"""What all runs do alike: they go on after an interruption, give up a member, know their data."""

import dataclasses
import functools
import json
import shutil
import signal

import numpy as np
import pytest

from tests.helpers.complaints import complaint
from tests.helpers.recipes import (
    LOGISTIC,
    STEPS,
    TEXTS,
    TRAINING,
    TRANSFORMER,
    assert_has_examples,
    assert_same_state,
    interrupt,
    labelled,
    resume,
    start_like,
    stopped,
    train,
    without_report,
)
from tlite.errors import Interrupted
from tlite.recipes import open_recipe, start
from tlite.recipes.kinds import take_member
from tlite.training.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("compiled_when_trained")  # some are only started


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return train(TRANSFORMER, tmp_path_factory.mktemp("runs") / "uninterrupted")


@pytest.fixture
def binary(tmp_path):
    """A logistic regression of two classes, not yet trained."""
    return dataclasses.replace(LOGISTIC, data=labelled(tmp_path / "texts.jsonl"))


# Interruption


@pytest.fixture(scope="module")
def halfway(uninterrupted, tmp_path_factory):
    """Runs of two seeds that were interrupted at a step, each made when it is first asked for."""

    @functools.cache
    def run(step):
        folder = tmp_path_factory.mktemp("runs") / "halfway"
        run = start_like(uninterrupted, folder)
        with pytest.MonkeyPatch.context() as patch:
            interrupt(patch, step)
            assert f"tlite train --resume {folder}" in stopped(run.train)
        return run

    return run


@pytest.mark.parametrize("step", [1, 3])
def test_a_run_that_was_interrupted_ends_as_one_that_never_was(
    halfway, uninterrupted, tmp_path, step
):
    folder = shutil.copytree(halfway(step).run.folder, tmp_path / "run")
    last = read_metrics(folder / "metrics.jsonl")[-1]["step"]
    assert step <= last < STEPS
    assert_same_state(resume(folder), uninterrupted)


def test_a_run_that_never_began_to_train_begins(uninterrupted, tmp_path):
    start(TRANSFORMER, tmp_path / "run")
    assert_same_state(resume(tmp_path / "run"), uninterrupted)


# One of the members


def test_a_member_that_is_taken_goes_on_as_among_the_others(halfway, uninterrupted):
    halfway = halfway(3)
    alone = take_member(halfway, 1)
    assert alone.run.folder.name == "halfway-1"
    assert alone.experiment.training.members == TRAINING.members[1:2]
    assert open_recipe(alone.run.folder).run == alone.run
    (taken, step), (together, last) = (run.parameters("last") for run in (alone, halfway))
    assert step == last
    for name, array in taken.items():
        np.testing.assert_array_equal(array[0], together[name][1])
    without_report(alone).train()
    lines = read_metrics(alone.run.metrics)
    assert not any("loss_members" in line for line in lines)
    among = {
        line["step"]: line["loss_members"][1]
        for line in read_metrics(uninterrupted.run.metrics)
        if line["split"] == "training"
    }
    losses = {line["step"]: line["loss"] for line in lines if line["split"] == "training"}
    assert losses == pytest.approx(among, abs=1e-5)
    expected = uninterrupted.parameters("last")[0]
    for name, array in alone.parameters("last")[0].items():
        np.testing.assert_allclose(array[0], expected[name][1], atol=1e-4)


@pytest.mark.parametrize("member", [-1, 2])
def test_a_member_that_there_is_none_of_is_told(halfway, member):
    assert f"there is no member {member}: the run has 2" in complaint(
        take_member, halfway(3), member
    )


def test_a_run_without_a_checkpoint_has_no_member_to_take(binary, tmp_path):
    run = start(binary, tmp_path / "run")
    assert "no checkpoint yet" in complaint(take_member, run, 0)
    assert not (tmp_path / "run-0").exists()


# Checkpoints


def test_checkpoints_are_asked_for_by_name_or_step(uninterrupted):
    assert uninterrupted.parameters("last")[1] == STEPS
    assert uninterrupted.parameters("4")[1] == 4
    losses = {
        line["step"]: line["loss"]
        for line in read_metrics(uninterrupted.run.metrics)
        if line["split"] == "validation"
    }
    assert uninterrupted.parameters("best")[1] == min(losses, key=losses.get)
    for name in ("1", "first", "-1"):
        assert f"there is no checkpoint {name}" in complaint(uninterrupted.parameters, name)


@pytest.mark.parametrize("select", ["loss", "accuracy"])
def test_the_best_checkpoint_is_the_best_by_what_is_selected(binary, tmp_path, select):
    training = dataclasses.replace(TRAINING, evaluate_every=1, select=select, learning_rate=0.5)
    run = train(dataclasses.replace(binary, training=training), tmp_path / "run")
    lines = [line for line in read_metrics(run.run.metrics) if line["split"] == "validation"]
    scores = {line["step"]: line[select] for line in lines}
    best = max(scores.values()) if select == "accuracy" else min(scores.values())
    assert scores[run.parameters("best")[1]] == best
    assert_has_examples(run)


# The data


@pytest.mark.parametrize(
    "rows",
    [
        TEXTS[:-1],
        [TEXTS[1], TEXTS[0], *TEXTS[2:]],
        [(TEXTS[0][0], "1"), *TEXTS[1:]],
        [*TEXTS[:2], (TEXTS[2][0], "5"), *TEXTS[3:]],
    ],
    ids=["one less", "another order", "another label", "left out"],
)
def test_data_that_has_changed_since_the_run_began_is_told(binary, tmp_path, rows):
    start(binary, tmp_path / "run")
    assert open_recipe(tmp_path / "run").experiment.data == binary.data
    labelled(tmp_path / "texts.jsonl", rows)
    message = complaint(open_recipe, tmp_path / "run")
    assert f"the data of {tmp_path / 'run'} has changed since the run began" in message
    assert "training" in message


# What a run decides before it begins, and keeps


def test_auto_is_decided_once_and_kept(tmp_path, monkeypatch, capsys):
    asked = []
    found = lambda name: asked.append(name) or ("mixed", "it was measured")  # noqa: E731
    monkeypatch.setattr("tlite.recipes.kinds.choose_precision", found)
    model = dataclasses.replace(TRANSFORMER.model, attention="auto", context=128)
    training = dataclasses.replace(TRAINING, precision="auto")
    run = start(dataclasses.replace(TRANSFORMER, model=model, training=training), tmp_path / "run")

    def stop(*_, **__):
        raise Interrupted("stopped", signal.SIGINT)

    monkeypatch.setattr("tlite.recipes.recipe.fit", stop)
    stopped(run.train)
    printed = capsys.readouterr().out
    assert "precision: it was measured" in printed
    assert "in mixed precision, attention mixed on" in printed
    saved = json.loads((tmp_path / "run" / "config.json").read_text())["experiment"]
    assert saved["training"]["precision"] == "mixed"
    assert saved["model"]["attention"]["function"] == "mixed"
    again = open_recipe(tmp_path / "run")
    assert again.experiment == run.experiment
    assert again.trainer.model.config.attention.function == "mixed"
    assert asked == ["auto"]


def test_mixed_that_can_not_be_is_told_before_there_is_a_folder(binary, tmp_path, monkeypatch):
    def refuse(*_):
        raise RuntimeError("Unsupported element type for DotThunk")

    monkeypatch.setattr("tlite.training.precision._try_attention", refuse)
    training = dataclasses.replace(binary.training, precision="mixed")
    mixed = dataclasses.replace(binary, training=training)
    assert "mixed precision can't be" in complaint(start, mixed, tmp_path / "run")
    assert not (tmp_path / "run").exists()
