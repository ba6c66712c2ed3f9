"""Effective speedup with its interval."""

import tracemalloc

import numpy as np
import optax
import pytest

from tests.helpers.fake_runs import GENERATOR, fake_run
from tests.helpers.runs import varied
from tlite.comparison.curves import plot_speedups
from tlite.comparison.results import compare_runs
from tlite.comparison.speedup import interpolation_weights, speedup
from tlite.errors import UserError

BUDGETS = 250, 500, 1000, 2000


def loss(steps):
    return 1.2 + 8.0 * np.asarray(steps, float) ** -0.45


def study(rng, seeds, factor, *, paired=True, examples=26):
    """Losses by budget of a run `factor` times as fast as the reference, and the reference's."""
    text, interaction = rng.normal(0, (0.1, 0.01), (examples, 2)).T
    seed, other = rng.normal(0, 0.006, (2, seeds, 1))

    def cells(mean, effect):
        by_run = rng.normal(0, 0.004, (seeds, 1))
        by_cell = rng.normal(0, 0.02, (seeds, examples))
        return mean + text + effect + by_run + by_cell

    run = {b: cells(loss(b * factor), (seed if paired else other) + interaction) for b in BUDGETS}
    return run, cells(loss(BUDGETS[-1]), seed)


@pytest.mark.parametrize("paired", [True, False])
def test_speedup_interval_covers_the_true_value(paired):
    rng, covered, studies = np.random.default_rng(0), 0, 120
    for _ in range(studies):
        run, reference = study(rng, 5, 1.5, paired=paired)
        found = speedup(run, reference, 2000, paired=paired)
        covered += found.low <= 1.5 <= found.high
    assert 0.9 < covered / studies <= 1.0


def test_speedup_without_noise_is_the_true_factor_by_cost():
    rng = np.random.default_rng(1)
    run = {b: np.full((3, 2), loss(1.5 * b)) + 1e-9 * rng.normal(size=(3, 2)) for b in BUDGETS}
    reference = np.full((3, 2), loss(2000)) + 1e-9 * rng.normal(size=(3, 2))
    assert speedup(run, reference, 2000).value == pytest.approx(1.5, rel=0.01)
    found = speedup(run, reference, 2000, relative_cost=2.0)
    assert found.value == pytest.approx(0.75, rel=0.01)
    assert found.low < found.value < found.high


def test_speedups_outside_of_the_budgets_are_not_extrapolated():
    rng = np.random.default_rng(2)
    slow = speedup(*study(rng, 5, 0.3), 2000)
    assert (slow.value, slow.low, slow.high) == (0, 0, 0)
    assert "not reached" in str(slow)
    assert slow.smallest == 1.0
    fast = speedup(*study(rng, 5, 20.0), 2000)
    assert fast.low == fast.value == fast.high == np.inf
    assert str(fast) == "above 8.00, 95 % CI [above 8.00, above 8.00]"
    assert fast.largest == 8.0
    equal = speedup(*study(rng, 5, 1.0), 2000)
    assert equal.low == 0
    assert 1 < equal.high < np.inf


def test_one_seed_or_one_budget_gives_no_speedup():
    run, reference = study(np.random.default_rng(3), 5, 1.5)
    assert speedup({2000: run[2000]}, reference, 2000) is None
    assert speedup({b: cells[:1] for b, cells in run.items()}, reference[:1], 2000) is None


def test_many_examples_are_interpolated_in_little_memory():
    run, reference = study(np.random.default_rng(5), 5, 1.5, examples=10_000)
    tracemalloc.start()
    found = speedup(run, reference, 2000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.value == pytest.approx(1.5, rel=0.05)
    assert peak < 40e6  # 401 x 5 x 10,000 numbers are 160e6 bytes


@pytest.mark.parametrize("number", [2, 3, 5])
def test_interpolation_is_exact_at_nodes_and_for_polynomials(number):
    nodes = np.log(np.geomspace(100, 3200, number))
    np.testing.assert_allclose(interpolation_weights(nodes, nodes), np.eye(number), atol=1e-9)
    points = np.linspace(nodes[0], nodes[-1], 17)
    weights = interpolation_weights(nodes, points)
    for power in range(min(number, 3)):
        np.testing.assert_allclose(weights @ nodes**power, points**power, rtol=1e-9)


def test_runs_at_several_budgets_give_a_speedup_in_steps_and_flops(tmp_path):
    rng, folders = np.random.default_rng(4), []
    for name, width, factor in (("base", 8, 1.0), ("wide", 16, 1.6)):
        for steps in (10, 20, 40):
            examples = loss(50 * factor * steps) + rng.normal(0, 0.02, (3, 200))
            experiment = varied(GENERATOR, width=width, steps=steps, evaluate_every=steps)
            folders.append(fake_run(tmp_path / f"{name}{steps}", experiment, examples=examples))
    folders = folders[2:3] + folders[:2] + folders[3:]  # the reference's largest budget first
    by_steps = compare_runs(folders, match="steps").speedups
    assert [entry.label for entry in by_steps] == ["base40", "wide40"]
    assert by_steps[0].speedup is None
    (axes,) = plot_speedups(compare_runs(folders, match="steps")).axes
    curves = [line.get_xdata().tolist() for line in axes.lines if line.get_marker() == "o"]
    assert curves == [[10, 20, 40]] * 2
    found = by_steps[1].speedup
    assert found.low < 1.6 < found.high
    by_flops = compare_runs(folders, match="flops").speedups[1].speedup
    assert by_flops.value < 0.8 * found.value
    with pytest.raises(UserError, match="several numbers of steps"):
        compare_runs(folders[:1] + folders[-1:], match="steps")
    again = fake_run(tmp_path / "again", varied(GENERATOR, width=8, steps=40), examples=examples)
    with pytest.raises(UserError, match=r"base40 and .*again have the same experiment"):
        compare_runs([*folders, again], match="steps")


def test_a_schedule_that_does_not_know_the_budget_is_noted(tmp_path):
    rng, folders = np.random.default_rng(6), []
    for name, schedule in (("cosine", "cosine"), ("line", optax.linear_schedule(1.0, 0.0, 40))):
        for steps in (20, 40):
            experiment = varied(GENERATOR, schedule=schedule, steps=steps)
            examples = loss(50 * steps) + rng.normal(0, 0.02, (3, 200))
            folders.append(fake_run(tmp_path / f"{name}{steps}", experiment, examples=examples))
    notes = [note for note in compare_runs(folders, match="steps").notes if "schedule" in note]
    assert len(notes) == 1
    assert "the schedule of line40 is a function" in notes[0]
