"""A scaling law: how a loss falls with a model's parameters N and its training tokens D.

    L(N, D) = E + A / N^alpha + B / D^beta

(Hoffmann et al. 2022, "Training compute-optimal large language models", section 3.3.) E is the
irreducible loss; the other terms are due to the size of the model and to the length of its
training. The learning rate of each run must have decayed by its own D.

N counts the parameters of blocks and output layer, without embedding tables, so that training costs
C = 6 N D floating-point operations, apart from attention's scores.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import expit, logit

from tlite.errors import UserError

HUBER_DELTA = 1e-3  # larger relative errors count linearly
MAX_EXPONENT = 3.0  # of alpha and beta, which few runs may leave undetermined
Numbers = Float[np.ndarray, "..."] | float


class Runs(NamedTuple):
    """Measurements of R runs of S seeds each."""

    parameters: Float[np.ndarray, "R"]
    tokens: Float[np.ndarray, "R"]
    losses: Float[np.ndarray, "R S"]

    def subset(self, indices: np.ndarray) -> "Runs":
        """Return the runs that indices or a mask select."""
        return Runs(*(values[indices] for values in self))

    @property
    def num_sizes_and_budgets(self) -> tuple[int, int]:
        """Number of different sizes, and of different numbers of tokens."""
        return len(np.unique(self.parameters)), len(np.unique(self.tokens))


class Law(NamedTuple):
    """Parameters of a scaling law; of several laws if they are arrays (number, 1)."""

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
        exponent_sum = self.alpha + self.beta
        scale = (self.alpha * self.A / (self.beta * self.B)) ** (1 / exponent_sum)
        parameters = scale * (flops / 6) ** (self.beta / exponent_sum)
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
    log_n, log_d, log_loss = (np.log(column).ravel() for column in columns)
    mean_n, mean_d, mean_loss = log_n.mean(), log_d.mean(), log_loss.mean()
    log_n, log_d = log_n - mean_n, log_d - mean_d

    def objective(theta):
        e, a, b, alpha, beta = *theta[:3], *MAX_EXPONENT * expit(theta[3:])
        terms = np.stack([np.full_like(log_n, e), a - alpha * log_n, b - beta * log_d])
        fitted = np.logaddexp.reduce(terms)
        slope = np.clip((fitted - log_loss) / HUBER_DELTA, -1, 1)
        huber = slope * (fitted - log_loss) - HUBER_DELTA / 2 * slope**2
        grad_e, grad_a, grad_b = np.exp(terms - fitted) * slope
        grad_alpha = -log_n * grad_a * alpha * (1 - alpha / MAX_EXPONENT)  # through expit
        grad_beta = -log_d * grad_b * beta * (1 - beta / MAX_EXPONENT)
        gradient = np.sum([grad_e, grad_a, grad_b, grad_alpha, grad_beta], 1)
        return huber.sum() / HUBER_DELTA, gradient / HUBER_DELTA

    if start is None:
        starts = _grid(mean_loss)
    else:
        exponents = logit(np.clip(np.divide(start[3:], MAX_EXPONENT), 1e-6, 1 - 1e-6))
        shifts = [0, start.alpha * mean_n, start.beta * mean_d]
        starts = [[*np.log(start[:3]) - shifts, *exponents]]
    results = [minimize(objective, x, jac=True, method="BFGS", tol=1e-7) for x in starts]
    theta = min(results, key=lambda result: result.fun).x
    e, a, b, alpha, beta = *theta[:3], *MAX_EXPONENT * expit(theta[3:])
    return Law(*np.exp([e, a + alpha * mean_n, b + beta * mean_d]), alpha, beta)


def _grid(mean_loss: float) -> np.ndarray:
    """Return points (32, 5) of `fit` from which BFGS starts."""
    terms, exponents = np.log([0.05, 0.3]), logit(np.array([0.3, 0.8]) / MAX_EXPONENT)
    axes = mean_loss + np.log([0.4, 0.8]), mean_loss + terms, mean_loss + terms
    return np.stack(np.meshgrid(*axes, exponents, exponents), -1).reshape(-1, 5)


def bootstrap(runs: Runs, law: Law, resamples: int = 300, seed: int = 0) -> Law:
    """Return the laws (resamples, 1) of samples of runs, and of seeds of each, with replacement.

    Samples with fewer than three sizes or budgets are drawn again, as no law fits them.
    """
    rng, laws = np.random.default_rng(seed), []
    num_runs, num_seeds = runs.losses.shape
    while len(laws) < resamples:
        sample = runs.subset(rng.integers(num_runs, size=num_runs))
        if min(sample.num_sizes_and_budgets) >= 3:
            seeds = rng.integers(num_seeds, size=(num_runs, num_seeds))
            losses = np.take_along_axis(sample.losses, seeds, axis=1)
            laws.append(fit(sample._replace(losses=losses), start=law))
    return Law(*np.array(laws).T[..., None])


def predictions(runs: Runs, law: Law, laws: Law, parameters, tokens, seed: int = 0) -> np.ndarray:
    """Return the losses (resamples, P) that each law predicts for P new runs, with random errors.

    A loss is multiplied by exp(error), where the error is drawn from the residuals of `law`,
    log loss - log L(N, D), times sqrt(R / (R - 5)).
    """
    residuals = np.log(runs.losses / law.loss(runs.parameters, runs.tokens)[:, None])
    means = laws.loss(parameters, tokens)
    errors = np.random.default_rng(seed).choice(residuals.ravel(), size=means.shape)
    return means * np.exp(errors * (len(residuals) / (len(residuals) - 5)) ** 0.5)


def interval(values: Float[np.ndarray, "resamples ..."], level: float = 0.95) -> np.ndarray:
    """Return the ends (2, ...) of the central interval of resampled values."""
    return np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)


def _check(runs: Runs) -> None:
    if not all(np.isfinite(values).all() and (values > 0).all() for values in runs):
        raise UserError("a scaling law needs sizes, tokens and losses that are positive and finite")
    num_runs, num_sizes, num_budgets = len(runs.losses), *runs.num_sizes_and_budgets
    if num_runs < 6 or min(num_sizes, num_budgets) < 3:
        raise UserError(
            "a scaling law needs at least 6 runs of at least 3 sizes and 3 numbers of tokens, not "
            f"{num_runs} runs of {num_sizes} sizes and {num_budgets} numbers of tokens"
        )
