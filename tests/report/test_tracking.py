"""`tlite follow`: what metrics.jsonl has for others, also while a run is trained."""

import json
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests.helpers.fake_runs import GENERATOR, fake_run
from tests.helpers.runs import varied
from tlite.cli import main
from tlite.report import tracking
from tlite.training.metrics import summarize_seeds


def training(step, *losses):
    line = summarize_seeds({"loss": np.array(losses or [1 / step, 3 / step])}, has_perplexity=False)
    return {"step": step, "split": "training"} | line | {"tokens_per_second": 10.0}


def validation(step):
    line = summarize_seeds({"loss": np.array([1.0 * step, 3.0 * step])}, has_perplexity=False)
    return {"step": step, "split": "validation"} | line


def text(*lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


ENDED = text(training(1), training(2), validation(2), training(3), validation(3))


@pytest.fixture
def run(tmp_path):
    """A run of three steps whose metrics are written by the test."""
    experiment = varied(GENERATOR, steps=3, evaluate_every=1)
    folder = fake_run(tmp_path / "runs/one", experiment, until=0)
    (folder / "metrics.jsonl").unlink()
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

        monkeypatch.setattr(tracking.time, "sleep", look)
        look()
        assert main(["follow", str(run), "--to", to]) == 0
        assert waiting == []

    return call


# TensorBoard


def shown(folder):
    """{tag: {step: value}} as TensorBoard shows them: a start forgets its step and later ones."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    points = {}
    for path in sorted(folder.glob("events.*")):
        data = path.read_bytes()
        while data:  # length and its checksum, the event and its checksum
            (length,) = struct.unpack("<Q", data[:8])
            event, data = event_pb2.Event.FromString(data[12 : 12 + length]), data[16 + length :]
            if event.session_log.status == event.session_log.START:
                for tag in points.values():
                    for step in [s for s in tag if s >= event.step]:
                        del tag[step]
            for value in event.summary.value:
                tag = points.setdefault(value.tag, {})
                assert event.step not in tag
                tag[event.step] = value.simple_value
    return points


def test_event_files_hold_every_name_and_those_of_each_replica(run, followed):
    pytest.importorskip("tensorboardX")
    for _ in range(2):  # once more changes nothing
        (run / "metrics.jsonl").unlink(missing_ok=True)
        followed("tensorboard", ENDED)
    points = shown(run / "tensorboard")
    both = {"training/loss", "validation/loss"}
    assert points.keys() == both | {f"{n}_spread" for n in both} | {"training/tokens_per_second"}
    assert points["training/loss"] == {1: 2.0, 2: 1.0, 3: pytest.approx(2 / 3)}
    assert points["validation/loss"] == {2: 4.0, 3: 6.0}
    for replica, factor in enumerate((1.0, 3.0)):
        assert shown(run / f"tensorboard/replica-{replica}") == {
            "training/loss": {1: factor, 2: factor / 2, 3: pytest.approx(factor / 3)},
            "validation/loss": {2: factor * 2, 3: factor * 3},
        }


def test_a_run_is_followed_while_it_trains(run, followed):
    pytest.importorskip("tensorboardX")
    written = lambda: shown(run / "tensorboard").get("training/loss")  # noqa: E731
    begun = text(training(1), training(2))[:-9]

    def seen():
        assert written() == {1: 2.0}  # and not the half line of the second step

    ends = text({"step": 3, "split": "validation", "loss": None, "loss_replicas": [None, 3.0]})
    followed("tensorboard", "", begun, seen, ENDED[len(begun) :].replace(text(validation(3)), ends))
    assert written() == {1: 2.0, 2: 1.0, 3: pytest.approx(2 / 3)}
    assert shown(run / "tensorboard/replica-1")["validation/loss"] == {2: 6.0, 3: 3.0}
    assert shown(run / "tensorboard")["validation/loss"] == {2: 4.0}  # not what is not finite


def test_metrics_that_a_resumed_run_truncated_are_written_again(run, followed):
    pytest.importorskip("tensorboardX")
    before = text(training(1), validation(1), training(2), training(3))
    cut = lambda: (run / "metrics.jsonl").write_text(text(training(1), validation(1)))  # noqa: E731
    followed("tensorboard", before, cut, text(training(2, 7.0), training(3, 5.0), validation(3)))
    points = shown(run / "tensorboard")
    assert points["training/loss"] == {1: 2.0, 2: 7.0, 3: 5.0}
    assert points["validation/loss"] == {1: 2.0, 3: 6.0}


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
        tracking.Path(folder).mkdir(parents=True)
        return self

    def log(self, values, step):
        assert step >= max(self.runs[-1].rows, default=0)  # as W&B demands
        self.runs[-1].rows.setdefault(step, {}).update(values)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.runs[-1].done = True


def test_an_offline_run_of_wandb_has_metrics_and_config(run, followed, monkeypatch):
    wandb = Fake()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    followed("wandb", ENDED)
    followed("wandb", "")
    message, again = wandb.runs
    assert message.done
    assert message.settings["settings"]["silent"]
    config = json.loads((run / "config.json").read_text())
    expected = {"mode": "offline", "dir": str(run), "name": "runs/one", "config": config}
    assert expected.items() <= {name: message.settings[name] for name in expected}.items()
    assert list(message.rows) == [1, 2, 3]
    assert message.rows[2]["validation/loss"] == 4.0
    assert message.rows[2]["replica-1/validation/loss"] == 6.0
    assert (message.settings["id"], again.settings["id"]) == (None, "chosen")
    assert message.rows == again.rows
    assert [p.name for p in (run / "wandb").iterdir()] == ["offline-run-1-chosen"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("follow missing --to tensorboard", "missing/config.json: No such file or directory"),
        ("follow runs/one --to wandb", "this needs the package wandb: install it with "),
    ],
)
def test_errors_of_follow_are_one_line(command, message, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    assert main(command.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"tlite: {message}")
    assert err.count("\n") == 1
    assert [path.name for path in run.iterdir()] == ["config.json"]
