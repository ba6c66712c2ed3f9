"""Tools of the experiments: benchmarks, data, the study of optimizers, scaling laws, tables."""

import gzip
import hashlib
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.benchmarks.bench import check_losses, check_parameters, compare
from experiments.scaling import BUDGETS, experiment, variants
from experiments.tools import optimizer_study, tables
from experiments.tools.gutenberg import plays, prepare
from experiments.tools.scaling import main, report
from tlite.comparison.scaling import Law
from tlite.comparison.study import Study, Variant
from tlite.config import to_dict
from tlite.errors import UserError
from tlite.training.optimizers import OPTIMIZERS


def contender(name, *seconds, parameters=10, losses=(3.0, 2.0)):
    ready = {"parameters": parameters, "first_seconds": 0.0, "loss": losses[0]}
    rounds = [{"loss": loss} for loss in losses[1:]]
    return SimpleNamespace(name=name, ready=ready, rounds=rounds, seconds=lambda: seconds)


def test_contenders_with_other_losses_are_an_error():
    assert check_losses([contender("a"), contender("b", losses=(3.0, 2.005))]) < 0.006
    for losses in (3.0, 2.02), (3.0, float("nan")):
        with pytest.raises(UserError, match="differ"):
            check_losses([contender("a"), contender("b", losses=losses)])


def test_ratios_are_those_of_the_fastest_of_each_side():
    tlite = [contender("slow", 9, 9), contender("quick", 1, 2)]
    others = [contender("eager", 4, 4), contender("compiled", 6, 6)]
    check_parameters([*tlite, *others])
    result = compare(tlite, others, num_tokens=100)
    assert result["best"] == ["quick", "eager"]
    assert result["ratios"] == [4, 2]
    with pytest.raises(UserError, match="differ"):
        check_parameters([*tlite, contender("larger", parameters=11)])


@pytest.mark.parametrize(
    ("name", "number", "sha256"),
    [
        ("pg100", 38, "2bee93316c076f561c437e1f288da80a50b87f5b59480a828538f35be144f5aa"),
        ("pg1514", 1, "601920b070235c8063f3c18e2a15dba700f811c6c28afff320d0c6f9d03d04ec"),
    ],
)
def test_the_plays_of_shakespeare_are_those_of_the_records(data_folder, name, number, sha256):
    """Their speeches and nothing else, as was read through when the parser was written: of 38 plays
    no heading, list of persons or poem is left, fewer than 4 % of the speakers speak once, and the
    Dream of both layouts has 98 % of its words in common."""
    path = data_folder / "shakespeare" / f"{name}.txt.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    text = gzip.decompress(path.read_bytes()).decode()
    assert len(plays(text)) == number
    assert hashlib.sha256(prepare(text).encode()).hexdigest() == sha256


def test_every_optimizer_of_tlite_is_studied():
    assert {*optimizer_study.RANGES} == {*OPTIMIZERS}
    for name in optimizer_study.RANGES:
        assert optimizer_study.experiment_with(name).training.optimizer == OPTIMIZERS[name]
    losses = {"adamw": 2.0, "muon": 1.9, "sgd": 2.1}  # which budgets reach AdamW's loss?
    budgets = {name: optimizer_study.budgets(name, losses) for name in losses}
    assert budgets == {"adamw": (400,), "muon": (400, 200), "sgd": (400, 600)}


TRUE = Law(E=1.2, A=30.0, B=800.0, alpha=0.4, beta=0.5)


@pytest.fixture
def study(tmp_path):
    """A study of the grid whose losses follow a law."""
    entries = []
    for name, each in variants.items():
        parameters = 12 * each.model.width**2 * each.model.num_blocks
        entries.append(Variant(name, name, to_dict(each), {}, parameters, ended=True))
        steps = each.training.steps
        loss = TRUE.loss(parameters, steps * each.training.batch_size * each.model.context)
        line = {"step": steps, "split": "validation", "loss": loss, "loss_replicas": [loss] * 2}
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
    numbers = dict(re.findall(r"^ +(E|A|B|alpha|beta) +(\S+)", out, re.M))
    np.testing.assert_allclose([float(numbers[name]) for name in Law._fields], TRUE, rtol=1e-2)
    assert (study.folder / "scaling-law.png").stat().st_size > 10_000


def test_too_few_runs_are_an_error(study, capsys, monkeypatch):
    for name in variants:
        study = study if name.endswith("-1M") else study.changed(name, ended=False)
    study.write()
    with pytest.raises(UserError, match="not 5 runs of 5 sizes and 1 "):
        report(study.folder)
    monkeypatch.setattr("sys.argv", ["scaling", str(study.folder / "nowhere")])
    assert main() == 2
    assert "can't read" in capsys.readouterr().err


CLASSIFIER = """$ tlite train trec --wide.bigrams 60000
900 training texts, 100 validation texts
3 x 800 steps in float32 precision, run folder runs/trec
validation accuracy 70.1 ± 0.1 %, loss 0.4530
TF-IDF + logistic regression: validation accuracy 60.1 %
"""
TESTED = """
$ tlite evaluate runs/trec --split test --replica all
step 660: test accuracy 50.0 ± 1.0 %, 2,500 texts
95 % for new seeds and new texts: ± 2.9 (seeds 2.5, texts 1.4)
TF-IDF + logistic regression: test accuracy 60.2 %
above TF-IDF + logistic regression: -10.2 points, 95 % for new seeds and new texts: ± 3.0 (seeds 1)
the ensemble of all 3 replicas: accuracy 55.0 %, loss 0.3867 (of one: 0.4221 ± 0.0128)
"""
GENERATOR = """$ tlite evaluate runs/record_tiny_shakespeare-{seed}
step 9: validation loss {loss} nats per character, perplexity 4.0{seed}0, accuracy 5, 700 characters
"""
ACCURACY, LOSS = "accuracy, %, mean (SD)", "validation loss, nats, mean (SD)"


def cells(lines: list[str]) -> dict[str, str]:
    """Return the one row of a table by its header."""
    header, _, row = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    return dict(zip(header, row, strict=True))


@pytest.mark.parametrize(
    ("line", "cell"),
    [
        ("95 % for new seeds and texts: ± 2.6 (seeds 1.0, texts 2.5)", "–"),
        ("95 % for new seeds and text: ± 0.0251 (seeds 0.0051, text 0.0246)", "–"),
        ("95 % for new seeds and new texts: ± 2.6 (seeds 1.4)", "± 2.6 (seeds 1.4)"),
        ("95 % for new texts, with this seed: ± 2.5", "± 2.5, with this seed"),
        ("95 % for new texts: 96.3 to 100.0 (Wilson)", "96.3 to 100.0 (Wilson)"),
    ],
)
def test_intervals_by_the_earlier_formula_are_not_shown(line, cell):
    assert tables.interval(f"step 9: accuracy\n{line}\nmore") == cell


@pytest.fixture
def keep(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    return lambda name, text: (tmp_path / f"{name}.log").write_text(text)


def test_a_test_evaluation_replaces_that_of_validation(keep):
    keep("trec", CLASSIFIER)
    row = cells(tables.classifiers())
    assert (row["texts"], row[ACCURACY]) == ("100 of validation", "70.1 (0.1)")
    assert (row["seeds"], row["TF-IDF + LR"], row["all replicas"]) == ("3", "60.1", "")
    assert row["what"].endswith("(`--wide.bigrams 60000`)")
    keep("trec", CLASSIFIER + TESTED)
    row = cells(tables.classifiers())
    assert (row["texts"], row[ACCURACY]) == ("2,500 of test", "50.0 (1.0)")
    assert row[tables.OVER_BOTH] == "± 2.9 (seeds 2.5, texts 1.4)"
    assert row["TF-IDF + LR"] == "60.2"
    assert row["above TF-IDF, points, 95 % CI"] == "-10.2 ± 3.0 (seeds 1)"
    assert row["all replicas"] == "55.0"


def test_runs_of_one_seed_each_are_a_mean_and_its_spread(keep):
    runs = [GENERATOR.format(seed=seed, loss=f"{1 + seed}.0000") for seed in range(3)]
    keep("record-tiny", "\n".join(runs))
    row = cells(tables.generators())
    assert (row["seeds"], row["characters"]) == ("3", "700")
    assert row[LOSS] == "2.0000 (1.0000)"
    assert row["perplexity, mean (SD)"] == "4.010 (0.010)"
    half = 4.30265 / 3**0.5  # t(0.975, 2) SD / sqrt(3)
    assert row[tables.OVER_SEEDS] == f"± {half:.4f}"
