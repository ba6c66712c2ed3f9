"""Followers get what metrics.jsonl has, thinned; they go on where a run does, and harm nothing."""

import dataclasses
import json
import struct
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.recipes import TRANSFORMER
from tlite.errors import UserError
from tlite.models import GeneratorConfig
from tlite.recipes import start
from tlite.training import Trainer, TrainingConfig, followers, generator_task, validation_batches
from tlite.training.followers import FollowedMetrics, check_followers
from tlite.training.loop import fit, host_copy
from tlite.training.metrics import MetricsFile, read_metrics


def training(step, loss=None):
    loss = [1 / step, 3 / step] if loss is None else loss
    line = {"loss": float(np.mean(loss)), "loss_spread": 1.0, "loss_members": loss}
    return {"step": step, "split": "training"} | line | {"tokens_per_second": 10.0}


def validation(step):
    line = {"loss": 2.0 * step, "loss_spread": 1.0, "loss_members": [step, 3.0 * step]}
    return {"step": step, "split": "validation"} | line


@pytest.fixture
def clock(monkeypatch):
    """Time passes where a test says so."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(followers.time, "monotonic", lambda: now.seconds)
    return now


def written(folder, names, lines, step=0):
    """Lines, one a call, of a run that goes on from a step."""
    folder.mkdir(exist_ok=True)
    with FollowedMetrics(folder / "metrics.jsonl", names) as metrics:
        metrics.cut_after(step)
        for line in lines:
            metrics.write([line])


# TensorBoard


def checksum(data):
    """CRC-32C (Castagnoli), bit by bit, masked as in event files."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    register ^= 0xFFFFFFFF
    return ((register >> 15 | register << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events(path):
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack("<Q", data[at : at + 8])
        body = data[at + 12 : at + 12 + length]
        ends = data[at + 8 : at + 12], data[at + 12 + length : at + 16 + length]
        for part, end in zip((data[at : at + 8], body), ends, strict=True):
            assert struct.unpack("<I", end) == (checksum(part),)
        yield event_pb2.Event.FromString(body)
        at += length + 16


def shown(folder):
    """{tag: {step: value}} as TensorBoard shows them: a start forgets its step and later ones."""
    points = {}
    for path in sorted(folder.glob("events.*")):
        for event in events(path):
            if event.session_log.status == event.session_log.START:
                for tag in points.values():
                    for step in [s for s in tag if s >= event.step]:
                        del tag[step]
            for value in event.summary.value:
                tag = points.setdefault(value.tag, {})
                assert event.step not in tag
                tag[event.step] = value.simple_value
    return points


@pytest.fixture
def tensorboard():
    pytest.importorskip("tensorboardX")
    return ("tensorboard",)


def test_event_files_hold_every_name_and_those_of_each_member(tmp_path, tensorboard, clock):
    written(tmp_path, tensorboard, [training(1), training(2), validation(2)])
    points = shown(tmp_path / "tensorboard")
    both = {"training/loss", "validation/loss"}
    assert points.keys() == both | {f"{n}_spread" for n in both} | {"training/tokens_per_second"}
    assert points["training/loss"] == {1: 2.0, 2: 1.0}
    assert points["validation/loss"] == {2: 4.0}
    for member, factor in enumerate((1.0, 3.0)):
        points = shown(tmp_path / f"tensorboard/member-{member}")
        assert points == {
            "training/loss": {1: factor, 2: factor / 2},
            "validation/loss": {2: factor * 2},
        }


def test_of_many_steps_a_second_the_means_are_written(tmp_path, tensorboard, clock):
    calls = [[training(step) for step in range(n, n + 50)] for n in range(1, 501, 50)]
    with FollowedMetrics(tmp_path / "metrics.jsonl", tensorboard) as metrics:
        metrics.cut_after(0)
        for lines in calls:
            metrics.write(lines)
            clock.seconds += 0.1
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 500  # every step, there
    found = shown(tmp_path / "tensorboard")["training/loss"]
    assert list(found) == [50, 300, 500]  # at once, 0.5 s later, and at the end
    for first, last in ((1, 50), (51, 300), (301, 500)):
        mean = np.mean([2 / step for step in range(first, last + 1)])
        np.testing.assert_allclose(found[last], mean, rtol=1e-6)


def test_a_resumed_run_goes_on_without_what_was_cut_off(tmp_path, tensorboard, clock):
    lines = [training(1), validation(1), training(2), training(3), validation(3)]
    written(tmp_path, tensorboard, lines)
    again = [training(2, [7.0, 9.0]), validation(2)]
    written(tmp_path, tensorboard, again, step=1)
    points = shown(tmp_path / "tensorboard")
    assert points["training/loss"] == {1: 2.0, 2: 8.0}
    assert points["validation/loss"] == {1: 2.0, 2: 4.0}
    assert shown(tmp_path / "tensorboard/member-1")["training/loss"] == {1: 3.0, 2: 9.0}


def test_what_was_not_followed_so_far_is_made_up_for(tmp_path, tensorboard, clock):
    written(tmp_path, (), [training(1), validation(1), training(2)])
    written(tmp_path, tensorboard, [training(2, [7.0, 9.0])], step=1)
    points = shown(tmp_path / "tensorboard")
    assert points["training/loss"] == {1: 2.0, 2: 8.0}
    assert points["validation/loss"] == {1: 2.0}


def test_what_is_not_finite_is_left_out(tmp_path, tensorboard, clock):
    line = validation(1) | {"loss": None, "loss_members": [None, 3.0]}
    written(tmp_path, tensorboard, [line])
    assert "validation/loss" not in shown(tmp_path / "tensorboard")
    assert shown(tmp_path / "tensorboard/member-0") == {}
    assert shown(tmp_path / "tensorboard/member-1") == {"validation/loss": {1: 3.0}}


def test_a_member_that_is_out_ends_no_curve_of_the_others(tmp_path, tensorboard, clock):
    lines = [training(step) | {"loss_members": [None, step]} for step in (2, 4)]
    (tmp_path / "run").mkdir()
    with FollowedMetrics(tmp_path / "run" / "metrics.jsonl", tensorboard) as metrics:
        metrics.cut_after(0)
        metrics.write(lines)
    folder = tmp_path / "run" / "tensorboard"
    assert shown(folder / "member-0") == {}
    assert shown(folder / "member-1") == {"training/loss": {4: 3.0}}


# Weights & Biases, by a module that notes what it is told


class Fake:
    def __init__(self):
        self.runs = []

    def Settings(self, **settings):
        return settings

    def init(self, **settings):
        name = settings["id"] or "chosen"
        folder = f"{settings['dir']}/wandb/offline-run-{len(self.runs)}-{name}"
        self.runs.append(SimpleNamespace(settings=settings, rows={}, done=False))
        followers.Path(folder).mkdir(parents=True)
        return self

    def log(self, values, step):
        assert step >= max(self.runs[-1].rows, default=0)  # as W&B demands
        self.runs[-1].rows.setdefault(step, {}).update(values)

    def finish(self):
        self.runs[-1].done = True


@pytest.fixture
def wandb(monkeypatch):
    fake = Fake()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_an_offline_run_gets_the_metrics_and_the_config(tmp_path, wandb, clock):
    folder = tmp_path / "runs/one"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"experiment": {"name": "demo"}}')
    written(folder, ("wandb",), [training(1), training(2), validation(2)])
    (run,) = wandb.runs
    assert run.done
    assert {**run.settings, "settings": None} == {
        "mode": "offline",
        "dir": str(folder),
        "project": "tlite",
        "name": "runs/one",
        "id": None,
        "config": {"experiment": {"name": "demo"}},
        "reinit": "create_new",
        "settings": None,
    }
    assert run.settings["settings"]["silent"]
    assert list(run.rows) == [1, 2]
    assert run.rows[2] == {
        "training/loss": 1.0,
        "training/loss_spread": 1.0,
        "training/tokens_per_second": 10.0,
        "validation/loss": 4.0,
        "validation/loss_spread": 1.0,
        "member-0/training/loss": 0.5,
        "member-1/training/loss": 1.5,
        "member-0/validation/loss": 2,
        "member-1/validation/loss": 6.0,
    }


def test_a_resumed_offline_run_is_written_anew_under_the_same_name(tmp_path, wandb, clock):
    written(tmp_path, ("wandb",), [training(1), validation(1), training(2), training(3)])
    written(tmp_path, ("wandb",), [training(2, [7.0, 9.0]), validation(2)], step=1)
    assert [run.settings["id"] for run in wandb.runs] == [None, "chosen"]
    rows = wandb.runs[1].rows
    assert {step: row.get("training/loss") for step, row in rows.items()} == {1: 2.0, 2: 8.0}
    assert [row["validation/loss"] for row in rows.values()] == [2.0, 4.0]
    assert [p.name for p in (tmp_path / "wandb").iterdir()] == ["offline-run-1-chosen"]


# What goes wrong


def test_a_follower_that_fails_is_told_once_and_the_others_go_on(tmp_path, wandb, capsys, clock):
    pytest.importorskip("tensorboardX")
    (tmp_path / "tensorboard").touch()  # where its folder should be
    lines = [training(1), validation(1), training(2), validation(2)]
    written(tmp_path, ("tensorboard", "wandb"), lines)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("warning: --follow tensorboard has ended (")
    assert list(wandb.runs[0].rows) == [1, 2]
    assert read_metrics(tmp_path / "metrics.jsonl") == lines


@pytest.mark.parametrize("name", ["init", "log", "finish"])
def test_whatever_weights_and_biases_raises_the_metrics_are_kept(
    name, tmp_path, wandb, capsys, monkeypatch
):
    def fail(*_, **__):
        raise RuntimeError("the service\nhas died")

    monkeypatch.setattr(wandb, name, fail)
    lines = [training(1), validation(1), training(2)]
    written(tmp_path, ("wandb",), lines)
    message = "warning: --follow wandb has ended (the service has died): the training goes on\n"
    assert capsys.readouterr().err == message
    assert read_metrics(tmp_path / "metrics.jsonl") == lines


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_package_is_told_with_its_extra_before_anything_is_made(
    name, package, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"package {package}: install it with .*\[{name}\]"):
        check_followers([name])
    settings = dataclasses.replace(TRANSFORMER.training, follow=(name,))
    experiment = dataclasses.replace(TRANSFORMER, training=settings)
    with pytest.raises(UserError, match="install it"):
        start(experiment, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_can_not_be_imported_is_told(tmp_path, monkeypatch):
    (tmp_path / "wandb.py").write_text("raise TypeError('descriptors\\nare old')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(UserError, match="wandb can't be imported: descriptors are old"):
        check_followers(["wandb"])


# The loop


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Parameters and lines of a training, followed or not."""
    tokens = np.tile(np.arange(5), 20)
    model = GeneratorConfig(vocabulary_size=5, context=8, width=8, num_heads=2, num_blocks=1)
    config = TrainingConfig(steps=6, batch_size=4, evaluate_every=3, seeds=2)
    trainer = Trainer(generator_task(model), config, jnp.asarray(tokens), jax.devices()[:1])
    batches = validation_batches(tokens, model.context, 4, 1)
    start = host_copy(trainer.init())

    def call(follow=()):
        folder = tmp_path_factory.mktemp("fitted")
        trainer.config = dataclasses.replace(config, follow=follow)
        begin = lambda: trainer.place(start)  # noqa: E731
        members = fit(trainer, folder, batches, model.context, begin)
        return folder, members.parameters, read_metrics(folder / "metrics.jsonl")

    return call


def test_a_run_that_is_followed_is_the_same_run(fitted, tensorboard):
    _, parameters, lines = fitted()
    folder, followed, same = fitted(tensorboard)
    jax.tree.map(np.testing.assert_array_equal, parameters, followed)
    for line, other in zip(lines, same, strict=True):
        assert line | {"tokens_per_second": 0} == other | {"tokens_per_second": 0}
    for member in range(2):
        found = shown(folder / f"tensorboard/member-{member}")["validation/loss"]
        expected = {n["step"]: n["loss_members"][member] for n in same if n["split"] != "training"}
        assert found == pytest.approx(expected, rel=1e-6)


def test_without_followers_it_is_the_same_file(tmp_path):
    paths = tmp_path / "followed.jsonl", tmp_path / "plain.jsonl"
    for path, kind in zip(paths, (lambda p: FollowedMetrics(p, ()), MetricsFile), strict=True):
        with kind(path) as metrics:
            metrics.write([training(1), validation(1)])
            metrics.cut_after(0)
            metrics.write([training(1)])
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert json.loads(paths[0].read_text()) == training(1)
    assert sorted(tmp_path.iterdir()) == sorted(paths)
