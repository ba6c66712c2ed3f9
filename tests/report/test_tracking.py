"""`tlite follow` writes metrics.jsonl for TensorBoard and W&B, also while a run trains."""

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
def follow(run, monkeypatch):
    """Return a function that follows the run.

    Before each read of metrics.jsonl the next event happens: a text is appended to the file, or a
    function is called.
    """

    def call(to, *events):
        remaining = list(events)

        def next_event(_=0):
            event = remaining.pop(0)
            if callable(event):
                event()
                return
            with (run / "metrics.jsonl").open("a") as file:
                file.write(event)

        monkeypatch.setattr(tracking.time, "sleep", next_event)
        next_event()
        assert main(["follow", str(run), "--to", to]) == 0
        assert remaining == []

    return call


# TensorBoard


def read_events(folder):
    """Return {tag: {step: value}} as TensorBoard does: a START drops its step and later ones."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    points = {}
    for path in sorted(folder.glob("events.*")):
        data = path.read_bytes()
        while data:  # length, its checksum, event, its checksum
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


def test_event_files_hold_every_name_and_those_of_each_replica(run, follow):
    pytest.importorskip("tensorboardX")
    for _ in range(2):  # a second time changes nothing
        (run / "metrics.jsonl").unlink(missing_ok=True)
        follow("tensorboard", ENDED)
    points = read_events(run / "tensorboard")
    both = {"training/loss", "validation/loss"}
    assert points.keys() == both | {f"{n}_spread" for n in both} | {"training/tokens_per_second"}
    assert points["training/loss"] == {1: 2.0, 2: 1.0, 3: pytest.approx(2 / 3)}
    assert points["validation/loss"] == {2: 4.0, 3: 6.0}
    for replica, factor in enumerate((1.0, 3.0)):
        assert read_events(run / f"tensorboard/replica-{replica}") == {
            "training/loss": {1: factor, 2: factor / 2, 3: pytest.approx(factor / 3)},
            "validation/loss": {2: factor * 2, 3: factor * 3},
        }


def test_a_run_is_followed_while_it_trains(run, follow):
    pytest.importorskip("tensorboardX")
    written = lambda: read_events(run / "tensorboard").get("training/loss")  # noqa: E731
    start = text(training(1), training(2))[:-9]

    def check():
        assert written() == {1: 2.0}  # not the incomplete line of the second step

    ends = text({"step": 3, "split": "validation", "loss": None, "loss_replicas": [None, 3.0]})
    follow("tensorboard", "", start, check, ENDED[len(start) :].replace(text(validation(3)), ends))
    assert written() == {1: 2.0, 2: 1.0, 3: pytest.approx(2 / 3)}
    assert read_events(run / "tensorboard/replica-1")["validation/loss"] == {2: 6.0, 3: 3.0}
    # A loss that is not finite is skipped.
    assert read_events(run / "tensorboard")["validation/loss"] == {2: 4.0}


def test_metrics_that_a_resumed_run_truncated_are_written_again(run, follow):
    pytest.importorskip("tensorboardX")
    before = text(training(1), validation(1), training(2), training(3))
    cut = lambda: (run / "metrics.jsonl").write_text(text(training(1), validation(1)))  # noqa: E731
    follow("tensorboard", before, cut, text(training(2, 7.0), training(3, 5.0), validation(3)))
    points = read_events(run / "tensorboard")
    assert points["training/loss"] == {1: 2.0, 2: 7.0, 3: 5.0}
    assert points["validation/loss"] == {1: 2.0, 3: 6.0}


# Weights & Biases: a fake module records its calls


class Fake:
    __spec__ = "installed"
    Settings = dict

    def __init__(self):
        self.runs = []

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


def test_an_offline_run_of_wandb_has_metrics_and_config(run, follow, monkeypatch):
    wandb = Fake()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    follow("wandb", ENDED)
    follow("wandb", "")
    first, again = wandb.runs
    assert first.done
    assert first.settings["settings"]["silent"]
    config = json.loads((run / "config.json").read_text())
    expected = {"mode": "offline", "dir": str(run), "name": "runs/one", "config": config}
    assert expected.items() <= first.settings.items()
    assert list(first.rows) == [1, 2, 3]
    assert first.rows[2]["validation/loss"] == 4.0
    assert first.rows[2]["replica-1/validation/loss"] == 6.0
    assert (first.settings["id"], again.settings["id"]) == (None, "chosen")
    assert first.rows == again.rows
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
