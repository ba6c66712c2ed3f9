"""Successive halving drops a value only if the interval of its difference says so."""

import numpy as np
import pytest

from tlite.comparison.halving import is_worse, losses_by_example, rungs, survivors
from tlite.training.metrics import ExampleScores


def test_rungs_halve_the_steps():
    assert [rungs(2000, number) for number in (8, 4, 1, 0)] == [[500, 1000], [1000], [], []]
    assert rungs(2, 8) == [1]


@pytest.mark.parametrize(("shape", "worse"), [((1, 1), False), ((1, 9), True), ((3, 1), True)])
def test_a_single_loss_is_no_evidence(shape, worse):
    differences = 1 + 0.01 * np.random.default_rng(0).normal(size=shape)
    assert is_worse(differences) == worse
    assert not is_worse(-differences)


def test_values_that_only_look_worse_survive():
    rng = np.random.default_rng(0)
    common = rng.normal(0, 1, (3, 20))
    scores = {
        "best": common,
        "tied": common + rng.normal(0.001, 0.1, (3, 20)),
        "worse": common + rng.normal(1, 0.1, (3, 20)),
        "diverged": None,
        "nan": common * np.nan,
    }
    assert set(survivors(scores, 1)) == {"best", "tied"}
    assert "worse" in survivors(scores, 3)
    assert survivors({"diverged": None}, 1) == []


def test_losses_by_example_have_the_means_of_the_scores():
    rng, count = np.random.default_rng(0), np.full(40, 7.0)
    scores = {i: ExampleScores(1, count, {"loss": rng.normal(9, 1, (2, 40))}) for i in range(3)}
    scores[3] = ExampleScores(1, count, {"loss": np.full((2, 40), np.inf)})
    for contiguous in (True, False):
        losses = losses_by_example(scores, contiguous=contiguous)
        assert losses.keys() == {0, 1, 2}
        assert len({array.shape for array in losses.values()}) == 1
        for value, array in losses.items():
            expected = scores[value].sums["loss"].sum(1) / count.sum()
            np.testing.assert_allclose(array.mean(1), expected)
    one = ExampleScores(1, count[:1], {"loss": np.ones((2, 1))})
    assert losses_by_example({0: one}, contiguous=True)[0].shape == (2, 1)
    assert losses_by_example({3: scores[3]}, contiguous=True) == {}


def test_the_best_loss_per_target_is_first_whatever_the_context():
    long = ExampleScores(1, np.full(10, 64.0), {"loss": np.full((2, 10), 64 * 2.0)})
    short = ExampleScores(1, np.full(40, 16.0), {"loss": np.full((2, 40), 16 * 3.0)})
    losses = losses_by_example({"short": short, "long": long}, contiguous=True)
    assert [*losses] == ["long", "short"]
