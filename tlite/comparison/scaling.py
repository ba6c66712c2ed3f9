"""A scaling law: how a loss falls with a model's parameters N and its training tokens D.

    L(N, D) = E + A / N^alpha + B / D^beta

(Hoffmann et al. 2022, "Training compute-optimal large language models", section 3.3.) E is what no
model learns of the text; the other terms are due to the size of the model and to the length of its
training. Each run's schedule must end at its own D.

N counts the parameters of blocks and output layer, without embedding tables, so that training costs
C = 6 N D floating-point operations, apart from attention's scores.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import expit, logit

from tlite.errors import UserError

HUBER_DELTA = 1e-3  # larger relative errors count by their size, not by its square
MAX_EXPONENT = 3.0  # of the exponents, which a few runs may leave undetermined
Numbers = Float[np.ndarray, "..."] | float


class Runs(NamedTuple):
    """Measurements of R runs of S seeds each."""

    parameters: Float[np.ndarray, "R"]
    tokens: Float[np.ndarray, "R"]
    losses: Float[np.ndarray, "R S"]

    def subset(self, which: np.ndarray) -> "Runs":
        """Return the runs that a mask or indices select."""
        return Runs(*(values[which] for values in self))

    @property
    def num_sizes_and_budgets(self) -> tuple[int, int]:
        """Number of different sizes, and of different numbers of tokens."""
        return len(np.unique(self.parameters)), len(np.unique(self.tokens))


class Law(NamedTuple):
    """Parameters of a law; arrays (number, 1) of several laws."""

    E: Numbers
    A: Numbers
    B: Numbers
    alpha: Numbers
    beta: Numbers

    def loss(self, parameters, tokens):
        """Return L(N, D) in nats; the arguments broadcast."""
        return self.E + self.A / parameters**self.alpha + self.B / tokens**self.beta

    def optimal(self, flops):
        """Return N* and D* of the least loss for C = 6 N D operations:

        N*(C) = G (C / 6)^(beta / (alpha + beta)),  D*(C) = (C / 6) / N*(C),
        G = (alpha A / (beta B))^(1 / (alpha + beta)).
        """
        both = self.alpha + self.beta
        scale = (self.alpha * self.A / (self.beta * self.B)) ** (1 / both)
        parameters = scale * (flops / 6) ** (self.beta / both)
        return parameters, flops / 6 / parameters


def fit(runs: Runs, start: Law | None = None) -> Law:
    """Return the law with the least sum of Huber(log L(N, D) - log loss) over runs and seeds.

    With A = exp(a) and so on, log L = logsumexp(e, a - alpha log N, b - beta log D). BFGS starts
    from a grid, or from `start`. Exponents stay between 0 and 3. Logarithms are centred and the sum
    is divided by delta, so that BFGS does not stop early (Besiroglu et al. 2024, "Chinchilla
    scaling: a replication attempt").

    Raises:
        UserError: fewer than six runs, three sizes or three budgets; numbers that are not positive.
    """
    _check(runs)
    columns = np.broadcast_arrays(runs.parameters[:, None], runs.tokens[:, None], runs.losses)
    size, length, loss = (np.log(column).ravel() for column in columns)
    at, of, level = size.mean(), length.mean(), loss.mean()
    size, length = size - at, length - of

    def objective(theta):
        e, a, b, alpha, beta = *theta[:3], *MAX_EXPONENT * expit(theta[3:])
        terms = np.stack([np.full_like(size, e), a - alpha * size, b - beta * length])
        fitted = np.logaddexp.reduce(terms)
        slope = np.clip((fitted - loss) / HUBER_DELTA, -1, 1)
        huber = slope * (fitted - loss) - HUBER_DELTA / 2 * slope**2
        of_e, of_a, of_b = np.exp(terms - fitted) * slope
        of_alpha = -size * of_a * alpha * (1 - alpha / MAX_EXPONENT)
        of_beta = -length * of_b * beta * (1 - beta / MAX_EXPONENT)
        gradient = np.sum([of_e, of_a, of_b, of_alpha, of_beta], 1)
        return huber.sum() / HUBER_DELTA, gradient / HUBER_DELTA

    if start is None:
        parts, exponents = level + np.log([0.05, 0.3]), logit(np.array([0.3, 0.8]) / MAX_EXPONENT)
        axes = level + np.log([0.4, 0.8]), parts, parts, exponents, exponents
        starts = np.stack(np.meshgrid(*axes), -1).reshape(-1, 5)
    else:
        exponents = logit(np.clip(np.divide(start[3:], MAX_EXPONENT), 1e-6, 1 - 1e-6))
        starts = [[*np.log(start[:3]) - [0, start.alpha * at, start.beta * of], *exponents]]
    results = [minimize(objective, x, jac=True, method="BFGS", tol=1e-7) for x in starts]
    theta = min(results, key=lambda result: result.fun).x
    e, a, b, alpha, beta = *theta[:3], *MAX_EXPONENT * expit(theta[3:])
    return Law(*np.exp([e, a + alpha * at, b + beta * of]), alpha, beta)


def bootstrap(runs: Runs, law: Law, resamples: int = 300, seed: int = 0) -> Law:
    """Return laws (resamples, 1) of runs, and seeds of each, drawn with replacement.

    Samples with fewer than three sizes or budgets are drawn again, as no law fits them.
    """
    random, laws = np.random.default_rng(seed), []
    number, seeds = runs.losses.shape
    while len(laws) < resamples:
        drawn = runs.subset(random.integers(number, size=number))
        if min(drawn.num_sizes_and_budgets) >= 3:
            replicas = random.integers(seeds, size=(number, seeds))
            losses = np.take_along_axis(drawn.losses, replicas, axis=1)
            laws.append(fit(drawn._replace(losses=losses), start=law))
    return Law(*np.array(laws).T[..., None])


def predictions(runs: Runs, law: Law, laws: Law, parameters, tokens, seed: int = 0) -> np.ndarray:
    """Return losses (resamples, P) of P new runs: each law's, times exp(error).

    Errors are drawn from those of the fit, log loss - log L(N, D), times sqrt(R / (R - 5)).
    """
    errors = np.log(runs.losses / law.loss(runs.parameters, runs.tokens)[:, None])
    means = laws.loss(parameters, tokens)
    drawn = np.random.default_rng(seed).choice(errors.ravel(), size=means.shape)
    return means * np.exp(drawn * (len(errors) / (len(errors) - 5)) ** 0.5)


def interval(values: Float[np.ndarray, "resamples ..."], level: float = 0.95) -> np.ndarray:
    """Return the ends (2, ...) of the central interval of resampled values."""
    return np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)


def _check(runs: Runs) -> None:
    if not all(np.isfinite(values).all() and (values > 0).all() for values in runs):
        raise UserError("a scaling law needs sizes, tokens and losses that are positive and finite")
    number, sizes, budgets = len(runs.losses), *runs.num_sizes_and_budgets
    if number < 6 or min(sizes, budgets) < 3:
        needed = "needs 6 runs or more, of three sizes and three numbers of tokens"
        actual = f"{number} of {sizes} and {budgets}"
        raise UserError(f"a scaling law has five numbers: it {needed}, not {actual}")
