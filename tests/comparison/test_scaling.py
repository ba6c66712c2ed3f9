"""A scaling law is recovered from its losses, with calibrated intervals and the optimum."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binom, chi2

from tests.helpers.complaints import complaint
from tlite.comparison import scaling
from tlite.comparison.scaling import Law, Runs, bootstrap, fit, interval, predictions

TRUE = Law(E=1.2, A=30.0, B=800.0, alpha=0.4, beta=0.5)
LARGEST = 400_000.0


def runs(noise=0.0, seed=0, seeds=1, sizes=(7e3, 2e4, 6e4, 2e5), budgets=(5e5, 1e6, 2e6, 4e6)):
    """Return a grid of runs with the losses of TRUE, times exp(noise of each seed)."""
    parameters, tokens = (a.ravel() for a in np.meshgrid(sizes, budgets))
    errors = noise * np.random.default_rng(seed).standard_normal((len(tokens), seeds))
    return Runs(parameters, tokens, TRUE.loss(parameters, tokens)[:, None] * np.exp(errors))


def test_a_law_is_fitted_despite_noise_and_one_outlier():
    np.testing.assert_allclose(fit(runs()), TRUE, rtol=1e-4)
    noisy = runs(noise=1e-3, seeds=3)
    law = fit(noisy)
    np.testing.assert_allclose([law.E, law.alpha, law.beta], [1.2, 0.4, 0.5], atol=0.05)
    rescaled = fit(noisy._replace(parameters=noisy.parameters / 1000))
    assert rescaled.alpha == pytest.approx(law.alpha, rel=1e-3)
    assert rescaled.loss(200.0, 4e6) == pytest.approx(law.loss(2e5, 4e6), rel=1e-5)
    noisy.losses[5, 0] *= 1.5
    assert fit(noisy, start=law).loss(2e5, 4e6) == pytest.approx(law.loss(2e5, 4e6), rel=1e-3)


def test_intervals_cover_the_truth_and_a_new_run():
    studies, covered, errors = 24, np.zeros(4), np.zeros(4)
    for study in range(studies):
        noisy = runs(noise=2e-3, seed=study)
        law = fit(noisy, start=TRUE)
        laws = bootstrap(noisy, law, resamples=24, seed=study)
        error = 2e-3 * np.random.default_rng(99 + study).standard_normal()
        new = TRUE.loss(LARGEST, 4e6) * np.exp(error)
        drawn = predictions(noisy, law, laws, np.array([LARGEST]), np.array([4e6]))
        pairs = [(laws.E, TRUE.E), (laws.alpha, TRUE.alpha), (laws.beta, TRUE.beta), (drawn, new)]
        for i, (values, true) in enumerate(pairs):
            lower, upper = interval(values)[:, 0]
            covered[i] += lower <= true <= upper
            errors[i] += ((np.mean(values) - true) / np.std(values)) ** 2
    assert (covered >= binom.ppf(0.001, studies, 0.95)).all(), covered
    # Nor are intervals too wide: squared errors in units of the bootstrap's variance are chi2.
    lowest, highest = chi2.ppf([0.001, 0.999], studies)
    assert ((lowest < errors) & (errors < highest)).all(), errors


def test_undetermined_parameters_of_a_law_stay_finite():
    noisy = runs(noise=0.05, sizes=(7e3, 1e4, 2e4), budgets=(5e5, 1e6, 2e6))
    law = fit(noisy, start=TRUE)
    laws = bootstrap(noisy, law, resamples=6)
    drawn = predictions(noisy, law, laws, LARGEST, 4e6)
    assert all(np.isfinite(values).all() for values in (*law, *laws, drawn))


def test_a_bootstrap_draws_runs_and_their_seeds(monkeypatch):
    noisy = runs(noise=1e-3, seeds=3)
    first, again, other = (bootstrap(noisy, TRUE, resamples=3, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first.E, other.E, rtol=1e-9)
    samples, originals = [], dict(zip(zip(*noisy[:2], strict=True), noisy.losses, strict=True))
    monkeypatch.setattr(scaling, "fit", lambda sample, start: samples.append(sample) or start)
    bootstrap(noisy, TRUE, resamples=20)
    for sample in samples:
        for *run, row in zip(*sample, strict=True):
            assert {*row} <= {*originals[*run]}
    # Three draws from three seeds are all different in 2 of 9 cases.
    rows = np.concatenate([sample.losses for sample in samples])
    assert 0.1 < np.mean([len({*row}) == 3 for row in rows]) < 0.35
    assert any(len(np.unique(sample.losses.max(1))) < 14 for sample in samples)


def test_predictions_correct_errors_for_degrees_of_freedom():
    """Errors grow by sqrt(R / (R - 5)) for R runs; all laws are the same here."""
    noisy = runs(noise=1e-2, sizes=(7e3, 2e4, 6e4), budgets=(5e5, 1e6, 2e6))
    laws = Law(*(np.full((50, 1), value) for value in TRUE))
    losses = predictions(noisy, TRUE, laws, np.array([LARGEST]), np.array([4e6]))
    errors = np.log(noisy.losses / TRUE.loss(noisy.parameters, noisy.tokens)[:, None])
    drawn = np.log(losses / TRUE.loss(LARGEST, 4e6)) / 1.5  # sqrt(9 / 4)
    assert abs(drawn - errors.ravel()).min(1).max() < 1e-12


@pytest.mark.parametrize("flops", [1e10, 1e13])
def test_the_optimal_line_has_the_least_loss_for_its_compute(flops):
    parameters, tokens = TRUE.optimal(flops)
    assert 6 * parameters * tokens == pytest.approx(flops)
    loss = lambda size: TRUE.loss(np.exp(size), flops / 6 / np.exp(size))  # noqa: E731
    minimum = minimize_scalar(loss, bounds=(3, 25))
    assert parameters == pytest.approx(np.exp(minimum.x), rel=1e-3)
    assert TRUE.loss(parameters, tokens) == pytest.approx(minimum.fun)


FEW = {
    "one size": runs(sizes=(7e3,), budgets=(1e5, 2e5, 3e5, 4e5, 5e5, 6e5, 7e5)),
    "two sizes": runs(sizes=(7e3, 2e4)),
    "two budgets": runs(budgets=(5e5, 1e6)),
    "five runs": runs(sizes=(7e3, 2e4, 6e4)).subset(np.array([0, 4, 8, 1, 3])),
}


def test_too_few_runs_and_losses_not_positive_are_errors():
    for few in FEW.values():
        assert f" not {len(few.losses)} runs of" in complaint(fit, few)
    for loss in (np.nan, np.inf, 0.0, -1.0):
        wrong = runs()
        wrong.losses[3] = loss
        assert "positive and finite" in complaint(fit, wrong)
