"""What is said of a validation part that is small, and of a model that overfits."""

import pytest

from tlite.recipes.evaluation import few_scored, overfitted


@pytest.mark.parametrize(
    ("number", "what", "few"),
    [
        (99, "texts", True),
        (100, "texts", False),
        (3, "pairs", True),
        (1999, "bytes", True),
        (2000, "characters", False),
    ],
)
def test_a_handful_is_warned_of(number, what, few):
    warning = f"warning: the validation part has {number:,} {what}: differences of a few percent"
    assert few_scored(number, what).startswith(warning) == few
    assert bool(few_scored(number, what)) == few


def lines(validations, training=()):
    """By step the losses of metrics.jsonl."""
    found = [{"step": s, "split": "validation", "loss": v} for s, v in dict(validations).items()]
    return found + [{"step": s, "split": "training", "loss": v} for s, v in dict(training).items()]


def test_overfitting_is_said_with_where_the_best_was_and_how_training_went_on():
    told = overfitted(lines({500: 1.52, 1000: 1.6, 2000: 1.84}, {1000: 1.0, 1500: 0.7, 2000: 0.56}))
    assert told == (
        "validation is best at step 500 (loss 1.52); training went on to 0.63, validation to 1.84: "
        "the model overfits"
    )


@pytest.mark.parametrize(
    "validations",
    [
        {},
        {500: 1.5},
        {500: 1.5, 1000: 1.4, 2000: 1.3},
        {500: 1.5, 1000: 1.4, 1800: 1.3, 2000: 1.9},  # best near the end
        {500: 1.5, 1000: 1.4, 2000: 1.42},  # hardly worse
        {500: None, 1000: 1.4, 2000: None},
    ],
    ids=str,
)
def test_nothing_is_said_where_the_end_is_about_the_best(validations):
    assert overfitted(lines(validations)) == ""


def test_what_diverges_does_not_overfit():
    training = {50: 2.0, 100: 1.9, 150: 5.0, 200: 12.0}
    assert overfitted(lines({100: 2.1, 200: 12.1}, training)) == ""
