"""Effective speedup with its interval."""

import tracemalloc

import numpy as np
import optax
import pytest

from experiments.tools.simulate import BUDGETS, coverage, draw_study, loss
from tests.helpers.fake_runs import GENERATOR, fake_run
from tests.helpers.runs import varied
from tlite.comparison.curves import plot_speedups
from tlite.comparison.results import compare_runs
from tlite.comparison.speedup import group_by_budget, interpolation_weights, speedup
from tlite.comparison.summaries import read_summaries
from tlite.errors import UserError


@pytest.mark.parametrize("paired", [True, False])
def test_speedup_interval_covers_the_true_value(paired):
    covered, _ = coverage(5, 1.5, paired, studies=120)
    assert 0.9 < covered <= 1.0


def test_speedup_without_noise_is_the_true_factor_by_cost():
    rng = np.random.default_rng(1)
    noise = lambda: 1e-9 * rng.normal(size=(3, 2))  # noqa: E731
    run, reference = {b: loss(1.5 * b) + noise() for b in BUDGETS}, loss(2000) + noise()
    assert speedup(run, reference, 2000).value == pytest.approx(1.5, rel=0.01)
    result = speedup(run, reference, 2000, relative_cost=2.0)
    assert result.value == pytest.approx(0.75, rel=0.01)
    assert result.low < result.value < result.high
    assert speedup({2000: run[2000]}, reference, 2000) is None  # one budget
    one_seed = {budget: cells[:1] for budget, cells in run.items()}
    assert speedup(one_seed, reference[:1], 2000) is None


def test_speedups_outside_of_the_budgets_are_not_extrapolated():
    rng = np.random.default_rng(2)
    slow, fast, equal = (speedup(*draw_study(rng, 5, f), 2000) for f in (0.3, 20.0, 1.0))
    assert slow[:4] == (0, 0, 0, 1.0)
    assert "not reached" in str(slow)
    assert fast.low == fast.value == fast.high == np.inf
    assert str(fast) == "above 8.00, 95 % CI [above 8.00, above 8.00]"
    assert fast.largest == 8.0
    assert equal.low == 0
    assert 1 < equal.high < np.inf


def test_many_examples_are_interpolated_in_little_memory():
    run, reference = draw_study(np.random.default_rng(5), 5, 1.5, examples=10_000)
    tracemalloc.start()
    result = speedup(run, reference, 2000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.value == pytest.approx(1.5, rel=0.05)
    assert peak < 40e6  # 401 x 5 x 10,000 numbers are 160e6 bytes


@pytest.mark.parametrize("number", [2, 3, 5])
def test_interpolation_is_exact_at_nodes_and_for_polynomials(number):
    nodes = np.log(np.geomspace(100, 3200, number))
    np.testing.assert_allclose(interpolation_weights(nodes, nodes), np.eye(number), atol=1e-9)
    points = np.linspace(nodes[0], nodes[-1], 17)
    weights = interpolation_weights(nodes, points)
    for power in range(min(number, 3)):
        np.testing.assert_allclose(weights @ nodes**power, points**power, rtol=1e-9)


def write_runs(folder, variants, budgets):
    """Write runs of variants (changes, factor) by name, `factor` times as fast, at each budget."""
    rng = np.random.default_rng(4)
    return [
        fake_run(
            folder / f"{name}{steps}",
            varied(GENERATOR, **changes, steps=steps, evaluate_every=steps),
            examples=loss(50 * factor * steps) + rng.normal(0, 0.02, (3, 200)),
        )
        for name, (changes, factor) in variants.items()
        for steps in budgets
    ]


def test_runs_at_several_budgets_give_a_speedup(tmp_path):
    variants = {"base": ({"width": 8}, 1.0), "wide": ({"width": 16}, 1.6)}
    folders = write_runs(tmp_path, variants, (10, 20, 40))
    folders = folders[2:3] + folders[:2] + folders[3:]  # the reference's largest budget first
    by_steps = compare_runs(folders, match="steps")
    assert [entry.label for entry in by_steps.speedups] == ["base40", "wide40"]
    assert by_steps.speedups[0].speedup is None
    (axes,) = plot_speedups(by_steps).axes
    curves = [line.get_xdata().tolist() for line in axes.lines if line.get_marker() == "o"]
    assert curves == [[10, 20, 40]] * 2
    result = by_steps.speedups[1].speedup
    assert result.low < 1.6 < result.high
    by_flops = compare_runs(folders, match="flops").speedups[1].speedup
    assert by_flops.value < 0.8 * result.value
    with pytest.raises(UserError, match="several numbers of steps"):
        compare_runs(folders[:1] + folders[-1:], match="steps")
    again = write_runs(tmp_path, {"again": ({"width": 8}, 1.0)}, [40])
    with pytest.raises(UserError, match=r"base40 and .*again40 have the same experiment"):
        compare_runs([*folders, *again], match="steps")


@pytest.mark.parametrize("stopped", ["base", "wide"])
def test_a_run_that_patience_ends_counts_its_own_steps(tmp_path, stopped):
    rng, folders = np.random.default_rng(4), []
    for name, width, factor, budgets in (("base", 8, 1.0, (40,)), ("wide", 16, 1.6, (10, 20, 40))):
        for steps in budgets:
            is_stopped = name == stopped and steps == 40
            experiment = varied(
                GENERATOR,
                width=width,
                steps=80 if is_stopped else steps,
                evaluate_every=10 if is_stopped else steps,
                patience=3,
            )
            # Negative losses rise from validation to validation (`metrics_lines`).
            losses = loss(50 * factor * steps) - 10 + rng.normal(0, 0.02, (3, 200))
            folder = tmp_path / f"{name}{steps}"
            folders.append(fake_run(folder, experiment, until=steps, examples=losses))
    base, wide = compare_runs(folders, match="steps").speedups
    assert [*base.budgets, *wide.budgets] == [40, 10, 20, 40]
    assert wide.speedup.low < 1.6 < wide.speedup.high


def test_of_budgets_that_end_at_the_same_step_the_smaller_one_counts(tmp_path):
    experiments = [varied(GENERATOR, steps=n, evaluate_every=10, patience=3) for n in (80, 40, 60)]
    # Negative losses rise from validation to validation (`metrics_lines`).
    losses = loss(50 * 40.0) - 10 + np.random.default_rng(4).normal(0, 0.02, (3, 200))
    settings = {"until": 40, "examples": losses}
    runs = [fake_run(tmp_path / f"r{i}", e, **settings) for i, e in enumerate(experiments)]
    (group,) = group_by_budget(read_summaries(runs)[0]).values()
    assert {step: run.folder.name for step, run in group.items()} == {40: "r1"}
    others = write_runs(tmp_path, {"wide": ({"width": 16}, 1.0)}, [20, 40])
    base, _ = compare_runs([*runs, *others], match="steps").speedups
    assert [*base.budgets] == [40]


def test_a_schedule_that_does_not_know_the_budget_is_noted(tmp_path):
    schedules = {"cosine": "cosine", "line": optax.linear_schedule(1.0, 0.0, 40)}
    variants = {name: ({"schedule": schedule}, 1.0) for name, schedule in schedules.items()}
    notes = compare_runs(write_runs(tmp_path, variants, (20, 40)), match="steps").notes
    (note,) = (note for note in notes if "schedule" in note)
    assert "the schedule of line40 is a function" in note
