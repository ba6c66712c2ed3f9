"""Tests of the scaling experiment: its grid, and the report of a study."""

import json

import numpy as np
import pytest

from experiments.scaling import BUDGETS, experiment, variants
from experiments.tools.scaling import main, report
from tlite.comparison.scaling import Law
from tlite.comparison.study import Study, Variant
from tlite.config import to_dict
from tlite.errors import UserError

TRUE = Law(E=1.2, A=30.0, B=800.0, alpha=0.4, beta=0.5)


def tokens_of(variant):
    training = variant.training
    return training.steps * training.batch_size * variant.model.context


@pytest.fixture
def study(tmp_path):
    """A study of the grid whose losses follow a law."""
    entries = []
    for name, each in variants.items():
        parameters = 12 * each.model.width**2 * each.model.num_blocks
        entries.append(Variant(name, name, to_dict(each), {}, parameters, ended=True))
        loss = TRUE.loss(parameters, tokens_of(each))
        line = {"step": each.training.steps, "split": "validation", "loss": loss}
        line["loss_replicas"] = [loss, loss]
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    study = Study(tmp_path, experiment.name, tuple(entries))
    study.write()
    return study


def test_a_planted_law_is_recovered_and_predicts(study, capsys):
    report(study.folder)
    out = capsys.readouterr().out
    largest = out.partition("left out of the fit:")[2].partition("compute-optimal")[0]
    assert largest.count("+0.00%") + largest.count("-0.00%") == len(BUDGETS)
    numbers = {name: float(line.split()[1]) for line in out.splitlines()
               if (name := line.split()[0] if line.split() else "") in Law._fields}  # fmt: skip
    np.testing.assert_allclose([numbers[name] for name in Law._fields], TRUE, rtol=1e-2)
    assert (study.folder / "scaling-law.png").stat().st_size > 10_000


def test_too_few_runs_are_an_error(study, capsys, monkeypatch):
    for name in variants:
        study = study if name.endswith("-1M") else study.changed(name, ended=False)
    study.write()
    with pytest.raises(UserError, match="three numbers of tokens"):
        report(study.folder)
    monkeypatch.setattr("sys.argv", ["scaling", str(study.folder / "nowhere")])
    assert main() == 2
    assert "can't read" in capsys.readouterr().err
