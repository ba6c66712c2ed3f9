"""What all runs do alike: go on after an interruption, know their data, keep what they chose."""

import dataclasses
import json
import signal

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
)
from tlite import functional as F
from tlite.errors import Interrupted
from tlite.models import Attention, Block, FeedForward, GeneratorConfig, LogisticConfig
from tlite.models.config import named_parts
from tlite.recipes import open_recipe, start
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


@pytest.mark.parametrize("step", [1, 3])
def test_a_run_that_was_interrupted_ends_as_one_that_never_was(uninterrupted, tmp_path, step):
    folder = tmp_path / "run"
    run = start_like(uninterrupted, folder)
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, step)
        assert f"tlite train --resume {folder}" in stopped(run.train)
    last = read_metrics(folder / "metrics.jsonl")[-1]["step"]
    assert step <= last < STEPS
    assert_same_state(resume(folder), uninterrupted)


def test_a_run_that_never_began_to_train_begins(uninterrupted, tmp_path):
    start(TRANSFORMER, tmp_path / "run")
    assert_same_state(resume(tmp_path / "run"), uninterrupted)


# Checkpoints


def test_checkpoints_are_asked_for_by_name_or_step(uninterrupted, binary, tmp_path):
    assert uninterrupted.parameters("last")[1] == STEPS
    assert uninterrupted.parameters("4")[1] == 4
    for name in ("1", "first", "-1"):
        assert f"there is no checkpoint {name}" in complaint(uninterrupted.parameters, name)
    assert "no checkpoint yet" in complaint(start(binary, tmp_path / "run").parameters, "best")


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


def attend(query, key, value, mask=None):
    return F.scaled_dot_product_attention(query, key, value, mask)


def squash(x):
    return x


@dataclasses.dataclass(frozen=True)
class Tempered(Attention):
    pass


@dataclasses.dataclass(frozen=True)
class Parallel(Block):
    pass


PARTS = {"attention": Tempered(), "block": Parallel()}
INSIDE = {"feed_forward": FeedForward(activation=squash), "norm": squash}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (GeneratorConfig(attention="mixed", norm="rms"), "attention mixed"),
        (GeneratorConfig(attention=Attention("exact", rows=8)), "attention exact by 8 rows"),
        (GeneratorConfig(attention=attend), "attention attend of"),
        (GeneratorConfig(**PARTS), "attention Tempered of, block Parallel of"),
        (GeneratorConfig(**INSIDE), "attention auto, activation squash of, norm squash of"),
        (LogisticConfig(), ""),
    ],
)
def test_attention_and_what_is_the_users_are_told(config, told):
    found = ", ".join(f"{name} {told}" for name, told in named_parts(config))
    assert found.replace("of test_recipe.py", "of") == told
