"""`tlite follow`: what metrics.jsonl has, thinned, for others; also while a run is trained."""

import json
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tlite.cli import follow, main
from tlite.config import to_dict
from tlite.training import TrainingConfig


def training(step, loss=None):
    loss = [1 / step, 3 / step] if loss is None else loss
    line = {"loss": float(np.mean(loss)), "loss_spread": 1.0, "loss_members": loss}
    return {"step": step, "split": "training"} | line | {"tokens_per_second": 10.0}


def validation(step):
    line = {"loss": 2.0 * step, "loss_spread": 1.0, "loss_members": [step, 3.0 * step]}
    return {"step": step, "split": "validation"} | line


def text(lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def run(tmp_path):
    """A run of three steps whose metrics are written by the test."""
    folder = tmp_path / "runs/one"
    folder.mkdir(parents=True)
    experiment = {"kind": "X", "training": to_dict(TrainingConfig(steps=3, evaluate_every=1))}
    tokenizer = {"file": "tokenizer.json", "sha256": ""}
    content = {"experiment": experiment, "data": {}, "tokenizer": tokenizer}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def followed(run, monkeypatch):
    """Follow the run, to which something happens at each look: a text is added to metrics.jsonl, or
    a function does it."""

    def call(to, *looks):
        waiting = list(looks)

        def look(_=0):
            what = waiting.pop(0)
            if callable(what):
                what()
                return
            with (run / "metrics.jsonl").open("a") as file:
                file.write(what)

        monkeypatch.setattr(follow.time, "sleep", look)
        look()
        code = main(["follow", str(run), "--to", to])
        assert waiting == []
        return code

    return call


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


ENDED = [training(1), training(2), validation(2), training(3), validation(3)]


def test_event_files_hold_every_name_and_those_of_each_member(run, followed):
    pytest.importorskip("tensorboardX")
    for _ in range(2):  # once more changes nothing
        (run / "metrics.jsonl").unlink(missing_ok=True)
        assert followed("tensorboard", text(ENDED)) == 0
    points = shown(run / "tensorboard")
    both = {"training/loss", "validation/loss"}
    assert points.keys() == both | {f"{n}_spread" for n in both} | {"training/tokens_per_second"}
    assert points["training/loss"] == {1: 2.0, 2: 1.0, 3: pytest.approx(2 / 3)}
    assert points["validation/loss"] == {2: 4.0, 3: 6.0}
    for member, factor in enumerate((1.0, 3.0)):
        points = shown(run / f"tensorboard/member-{member}")
        assert points == {
            "training/loss": {1: factor, 2: factor / 2, 3: pytest.approx(factor / 3)},
            "validation/loss": {2: factor * 2, 3: factor * 3},
        }


def test_a_run_is_followed_as_it_is_trained_by_the_means_of_what_is_new(run, followed):
    pytest.importorskip("tensorboardX")
    first, rest = text(ENDED[:2]), text([validation(2), training(3), validation(3)])
    written = lambda: shown(run / "tensorboard")["training/loss"]  # noqa: E731
    seen = []
    looks = [first[:-9], lambda: seen.append(written()), first[-9:] + rest[:30]]
    assert followed("tensorboard", "", *looks, rest[30:]) == 0
    assert seen == [{1: 2.0}]  # and not the half line of the second step
    assert written() == {1: 2.0, 2: 1.0, 3: pytest.approx(2 / 3)}
    (run / "metrics.jsonl").unlink()
    assert followed("tensorboard", "", text([*ENDED[:2], training(3), validation(3)])) == 0
    assert written() == {3: pytest.approx((2 + 1 + 2 / 3) / 3)}


def test_where_a_resumed_run_has_cut_the_metrics_they_are_written_anew(run, followed):
    pytest.importorskip("tensorboardX")
    before = text([training(1), validation(1), training(2), training(3)])
    after = text([training(1), validation(1)])

    def cut():
        (run / "metrics.jsonl").write_text(after)

    ending = text([training(2, [7.0, 9.0]), training(3, [5.0, 5.0]), validation(3)])
    assert followed("tensorboard", before, cut, ending) == 0
    points = shown(run / "tensorboard")
    assert points["training/loss"] == {1: 2.0, 3: 6.5}
    assert points["validation/loss"] == {1: 2.0, 3: 6.0}


def test_what_is_not_finite_is_left_out(run, followed):
    pytest.importorskip("tensorboardX")
    line = validation(3) | {"loss": None, "loss_members": [None, 3.0]}
    assert followed("tensorboard", text([line])) == 0
    assert "validation/loss" not in shown(run / "tensorboard")
    assert not (run / "tensorboard/member-0").exists()
    assert shown(run / "tensorboard/member-1") == {"validation/loss": {3: 3.0}}


def test_of_a_long_run_so_many_points_are_written(run, followed, monkeypatch):
    pytest.importorskip("tensorboardX")
    monkeypatch.setattr(follow, "POINTS", 10)
    lines = [{"step": i, "split": "training", "loss": float(i)} for i in range(1, 100)]
    assert followed("tensorboard", text([*lines, validation(100)])) == 0
    points = shown(run / "tensorboard")["training/loss"]
    assert points == {11 * i: 11 * i - 5 for i in range(1, 10)}


# Weights & Biases, by a module that notes what it is told


class Fake:
    def __init__(self):
        self.runs = []
        self.__spec__ = "there"

    def Settings(self, **settings):
        return settings

    def init(self, **settings):
        name = settings["id"] or "chosen"
        folder = f"{settings['dir']}/wandb/offline-run-{len(self.runs)}-{name}"
        self.runs.append(SimpleNamespace(settings=settings, rows={}, done=False))
        follow.Path(folder).mkdir(parents=True)
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


def test_an_offline_run_gets_the_metrics_and_the_config(run, wandb, followed):
    assert followed("wandb", text(ENDED)) == 0
    (told,) = wandb.runs
    assert told.done
    assert {**told.settings, "settings": None} == {
        "mode": "offline",
        "dir": str(run),
        "project": "tlite",
        "name": "runs/one",
        "id": None,
        "config": json.loads((run / "config.json").read_text()),
        "reinit": "create_new",
        "settings": None,
    }
    assert told.settings["settings"]["silent"]
    assert list(told.rows) == [1, 2, 3]
    assert told.rows[2] == {
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


def test_an_offline_run_is_written_anew_under_the_same_name(run, wandb, followed):
    followed("wandb", text(ENDED))
    followed("wandb", "")
    assert [told.settings["id"] for told in wandb.runs] == [None, "chosen"]
    assert wandb.runs[0].rows == wandb.runs[1].rows
    assert [p.name for p in (run / "wandb").iterdir()] == ["offline-run-1-chosen"]


# What goes wrong


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("follow missing --to tensorboard", "missing has no config.json: it is not a run folder"),
        ("follow runs/one --to wandb", "this needs the package wandb: install it with "),
        ("train demo --follow wandb", "the option --follow is gone: tlite follow RUN --to "),
    ],
)
def test_a_mistake_is_one_sentence(command, told, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    assert main(command.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"tlite: {told}")
    assert err.count("\n") == 1
    assert [path.name for path in run.iterdir()] == ["config.json"]
