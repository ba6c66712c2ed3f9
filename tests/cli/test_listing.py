"""`tlite experiments`, `tlite runs`, and `latest` for the newest run."""

import re
import shutil
import sys

from tests.helpers.folders import make_run, write
from tlite.runs.experiment_files import (
    experiment_kind,
    find_experiments,
    first_sentence,
    load_experiment,
)

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
    write(tmp_path / "experiments" / "mine.py", MINE)
    write(tmp_path / "experiments" / "demo.py", "from experiments.trec import experiment")
    write(tmp_path / "experiments" / "made.py", "experiment = make()")
    write(tmp_path / "experiments" / "broken.py", "experiment = (")
    write(tmp_path / "experiments" / "tool.py", "from a import experiment as base")
    (tmp_path / "experiments" / "damaged.py").write_bytes(b"\xff")
    found = {line.split()[0]: line.split()[1:] for line in works("experiments").splitlines()}
    assert found["mine"] == ["classifier", "yours", "Mine", "is", "the", "best."]
    assert found["demo"] == ["classifier", "yours"]
    assert found["made"] == found["broken"] == ["yours"]
    assert not {"tool", "damaged"} & found.keys()
    assert found["trec"][0] == "classifier"
    assert "yours" not in found["trec"]


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


def test_runs_are_listed_newest_first_and_damaged_ones_named(works, fails, tmp_path):
    assert "there is no folder runs" in fails("runs")
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


def test_latest_is_the_newest_run_despite_a_file_of_that_name(works, fails, generator, tmp_path):
    assert "there is no latest generator's run" in fails("generate latest")
    assert "there is no latest run" in fails("evaluate latest")
    shutil.copytree(generator.run, tmp_path / "runs" / "new")
    make_run(tmp_path / "runs" / "old", 10)
    make_run(tmp_path / "latest", 0)
    make_run(tmp_path / "runs" / "of words", 0, kind="ClassifierExperiment", created=-3e9)
    assert works("generate latest --tokens 3") == works("generate runs/new --tokens 3")
    assert works("generate runs --tokens 3") == works("generate runs/new --tokens 3")
    shutil.rmtree(tmp_path / "runs" / "of words")
    assert works("train --resume latest").endswith("generate runs/new\n")
    assert "is at" not in works("compare latest runs/new --to here")
