"""Texts and classes with control characters: none reaches a terminal."""

import json
import re

import pytest

from tlite.runs.run import Run

pytest.importorskip("sklearn")
pytestmark = [
    pytest.mark.filterwarnings("ignore:Glyph"),
    pytest.mark.usefixtures("one_device"),
]

CLASSES = ["$x_{$", "\x1b[31mred"]
ROWS = [("It is \x1b[2J good. \x9b1m", "1"), ("It is \x07 bad \r now", "2")] * 4
TINY = (
    "--width 8 --num-heads 2 --num-blocks 1 --context 8 --steps 2 --batch-size 4 "
    "--evaluate-every 1 --precision float32"
)
EXPERIMENT = """
from tlite.data import LabelledText
from tlite.experiment import ClassifierExperiment, Words

labels = {labels!r}
data = LabelledText(training=({path!r},), validation=({path!r},), labels=labels)
experiment = ClassifierExperiment("foreign", data, Words(min_document_frequency=1))
"""
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture(scope="module")
def trained(train_without_report, tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign")
    rows = "".join(json.dumps({"text": t, "label": v}) + "\n" for t, v in ROWS)
    (folder / "rows.jsonl").write_text(rows)
    labels = dict(zip("12", CLASSES, strict=True))
    code = EXPERIMENT.format(labels=labels, path=str(folder / "rows.jsonl"))
    (folder / "foreign.py").write_text(code)
    return train_without_report(f"{folder / 'foreign.py'} {TINY}")


@pytest.fixture
def on_terminal(tlite, monkeypatch):
    """What a command prints where standard output is a terminal."""

    def call(line, **names):
        with monkeypatch.context() as patch:
            patch.setattr("_pytest.capture.CaptureIO.isatty", lambda _: True)
            patch.setattr("_pytest.capture.EncodedFile.isatty", lambda _: True, raising=False)
            code, out, _ = tlite(line, **names)
        assert code == 0
        return out

    return call


@pytest.mark.parametrize(
    "line",
    [
        "classify {run} 'a \x1b[31m \x9b'",
        "classify {run} 'a \x1b[31m \x9b' --format jsonl",
        "evaluate {run}",
    ],
)
def test_a_terminal_gets_no_control_characters(on_terminal, tlite, line, monkeypatch):
    monkeypatch.setattr(Run, "save_plots", lambda *_: None)
    shown = on_terminal(line)
    assert not STEERING.search(shown)
    if "jsonl" not in line:
        assert "␛[31mred" in shown
        assert "\x1b[31mred" in tlite(line)[1]  # where there is no terminal
