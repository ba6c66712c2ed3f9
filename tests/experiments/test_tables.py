"""Tables read the figures of the model from a log, not those of its baselines."""

import pytest

from experiments.tools import tables

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
