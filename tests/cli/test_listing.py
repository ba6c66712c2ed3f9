"""`tlite experiments`, `tlite runs`, and `latest` for the newest run."""

import re
import shutil
import sys

import pytest

from tests.helpers.fake_runs import make_run, write
from tlite.runs.experiment_files import (
    experiment_kind,
    find_experiments,
    first_sentence,
    load_experiment,
)

pytestmark = pytest.mark.usefixtures("one_device")
MINE = '''"""Mine is the best.  It is long.

More."""
import sys
import dataclasses
from experiments.demo import experiment as base

wide = dataclasses.replace(base, name="wide")
experiment = dataclasses.replace(wide, name="mine")
sys.exit("it was run")
'''


def test_experiments_are_listed_with_kind_and_owner(works, tmp_path):
    for name, content in {
        "mine": MINE,
        "demo": "from experiments.trec import experiment",
        "made": "experiment = make()",
        "broken": "experiment = (",
        "tool": "from a import experiment as base",
    }.items():
        write(tmp_path / "experiments" / f"{name}.py", content)
    (tmp_path / "experiments" / "damaged.py").write_bytes(b"\xff")
    rows = {name: words for name, *words in map(str.split, works("experiments").splitlines())}
    assert rows["mine"] == ["classifier", "yours", "Mine", "is", "the", "best."]
    assert rows["demo"] == ["classifier", "yours"]
    assert rows["made"] == rows["broken"] == ["yours"]
    assert not {"tool", "damaged"} & rows.keys()
    assert rows["trec"][0] == "classifier"
    assert "yours" not in rows["trec"]


def test_kinds_read_from_text_are_those_of_the_experiments(monkeypatch):
    before = set(sys.modules)
    files = find_experiments()
    texts = {name: file.read_text() for name, file in files.items()}
    for name, file in files.items():
        kind = experiment_kind(name, texts)
        assert type(load_experiment(file)).__name__.lower() == f"{kind}experiment", name
        assert first_sentence(texts[name]).endswith((".", "?")), name
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "experiments":
            monkeypatch.delitem(sys.modules, name)


def test_runs_are_listed_and_latest_is_the_newest(works, fails, generator, tmp_path):
    (tmp_path / "runs").mkdir()
    assert "there are no runs in runs" in fails("runs")
    make_run(tmp_path / "runs" / "tiny" / "one", 20, scores=[(6, 1.5)])
    make_run(tmp_path / "runs" / "two", 10, steps=4000)
    write(tmp_path / "runs" / "bad" / "config.json", "{")
    head, *rows = [re.split(r"  +", line) for line in works("runs").splitlines()]
    assert head == ["folder", "experiment", "kind", "done", "best validation", "created"]
    assert [row[0] for row in rows] == ["runs/bad", "runs/two", "runs/tiny/one"]
    assert rows[0][1] == "damaged"
    assert rows[1][1:4] == ["tiny", "generator", "0 of 4,000 steps"]
    assert rows[2][3:5] == ["6 of 9 steps", "loss 1.5000"]
    assert works("runs runs/tiny").count("\n") == 2

    shutil.copytree(generator.run, tmp_path / "runs" / "new")
    make_run(tmp_path / "latest", 0)  # a folder of this name is not the newest run

    text = works("generate latest --tokens 3")
    assert text == works("generate runs --tokens 3") == works("generate runs/new --tokens 3")
    assert works("train --resume latest").endswith("generate runs/new\n")
    assert "is at" not in works("compare latest runs/new --to here")
