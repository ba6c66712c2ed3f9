"""What a table says of a log is what it says of the model, not of what stands beside it."""

import pytest

from experiments import tables

CLASSIFIER = """$ tlite train trec --wide.bigrams 60000
900 training texts, 100 validation texts
3 x 800 steps in float32 precision, run folder runs/trec
validation accuracy 70.1 ± 0.1 %, loss 0.4530
TF-IDF + logistic regression: validation accuracy 60.1 %
"""
TESTED = """
$ tlite evaluate runs/trec --split test --member all
step 660: test accuracy 50.0 ± 1.0 %, 2,500 texts
95 % for new seeds and texts: ± 2.9 (seeds 2.5, texts 1.4)
TF-IDF + logistic regression: test accuracy 60.2 %
the ensemble of all 3 members: accuracy 55.0 %, loss 0.3867 (of one: 0.4221 ± 0.0128)
"""
GENERATOR = """$ tlite evaluate runs/record_tiny_shakespeare-{seed}
step 9: validation loss {loss} nats per character, perplexity 4.0{seed}0, accuracy 5, 700 characters
"""


def cells(lines: list[str]) -> dict[str, str]:
    """The one row of a table, by its header."""
    header, _, row = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    return dict(zip(header, row, strict=True))


@pytest.fixture
def keep(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    return lambda name, text: (tmp_path / f"{name}.log").write_text(text)


def test_a_classifier_is_told_by_its_test_part_and_before_that_by_validation(keep):
    keep("trec", CLASSIFIER)
    found = cells(tables.classifiers())
    assert (found["texts"], found["accuracy, %"]) == ("100 of validation", "70.1 ± 0.1")
    assert (found["seeds"], found["TF-IDF + LR"], found["all members"]) == ("3", "60.1", "")
    assert found["what"].endswith("(`--wide.bigrams 60000`)")
    keep("trec", CLASSIFIER + TESTED)
    found = cells(tables.classifiers())
    assert (found["texts"], found["accuracy, %"]) == ("2,500 of test", "50.0 ± 1.0")
    assert (found["95 %"], found["TF-IDF + LR"]) == ("± 2.9 (seeds 2.5, texts 1.4)", "60.2")
    assert found["all members"] == "55.0"


def test_runs_of_one_seed_each_are_a_mean_and_its_spread(keep):
    runs = [GENERATOR.format(seed=seed, loss=f"{1 + seed}.0000") for seed in range(3)]
    keep("record-tiny", "\n".join(runs))
    found = cells(tables.generators())
    assert (found["seeds"], found["characters"]) == ("3", "700")
    assert found["validation loss, nats"] == "2.0000 ± 1.0000"
    assert found["perplexity"] == "4.010 ± 0.010"
    trained = (
        "1 x 9 steps\nvalidation loss 1.0000 nats per character, perplexity 4.000, accuracy 5\n"
    )
    keep("record-tiny", f"$ tlite train record_tiny_shakespeare\n{trained}")
    found = cells(tables.generators())
    assert (found["validation loss, nats"], found["characters"]) == ("1.0000", "–")
    keep("record-tiny", f"$ tlite train record_tiny_shakespeare\n{trained}{runs[0]}")
    found = cells(tables.generators())
    assert (found["validation loss, nats"], found["characters"]) == ("1.0000", "700")
