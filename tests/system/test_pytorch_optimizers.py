"""AdamW and SGD are those of PyTorch over 30 steps; Lion and Muon are their formulas.

Adam, Muon and Lion hide a gradient of the wrong scale, SGD does not. PyTorch's Adafactor has a
relative learning rate and factors all matrices; its Muon rounds to bfloat16 and does not correct
the bias of the momentum: Muon is compared with its formula in float64.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tlite.training import SGD, AdamW, Lion, Muon

torch = pytest.importorskip("torch")
RATE, DECAY = 0.02, 0.1
START = {
    "blocks.0.hidden.kernel": np.random.default_rng(0).normal(size=(6, 10)),
    "blocks.0.output.kernel": np.random.default_rng(1).normal(size=(10, 6)),
}
TARGET = np.random.default_rng(2).normal(size=(4, 6))
INPUTS = np.random.default_rng(3).normal(size=(4, 6))


def gradients(parameters):
    """Return those of |tanh(x A) B - y|^2 / 2 in float64."""
    a, b = (np.asarray(parameters[name], np.float64) for name in START)
    hidden = np.tanh(INPUTS @ a)
    error = hidden @ b - TARGET
    inner = error @ b.T * (1 - hidden**2)
    return dict(zip(START, (INPUTS.T @ inner, hidden.T @ error), strict=True))


def ours(optimizer):
    transform = optimizer(RATE, DECAY)
    parameters = {name: jnp.asarray(a, jnp.float32) for name, a in START.items()}
    state, update = transform.init(parameters), jax.jit(transform.update)
    for _ in range(30):
        slopes = {n: jnp.asarray(g, jnp.float32) for n, g in gradients(parameters).items()}
        updates, state = update(slopes, state, parameters)
        parameters = {name: a + updates[name] for name, a in parameters.items()}
    return parameters


def assert_same(found, expected):
    for name, a in expected.items():
        np.testing.assert_allclose(found[name], a, rtol=1e-5, atol=1e-5)
        assert np.abs(a - START[name]).max() > 0.05  # it has moved


PAIRS = {
    "adamw": (AdamW(), lambda p: torch.optim.AdamW(p, RATE, weight_decay=DECAY)),
    "betas": (
        AdamW(0.8, 0.95, 1e-3),
        lambda p: torch.optim.AdamW(p, RATE, (0.8, 0.95), 1e-3, weight_decay=DECAY),
    ),
}


def run_torch(make):
    arrays = {n: torch.tensor(a, dtype=torch.float64) for n, a in START.items()}
    arrays = {name: torch.nn.Parameter(a) for name, a in arrays.items()}
    optimizer = make(list(arrays.values()))
    for _ in range(30):
        slopes = gradients({name: a.detach().numpy() for name, a in arrays.items()})
        for name, a in arrays.items():
            a.grad = torch.tensor(slopes[name])
        optimizer.step()
    return {name: a.detach().numpy() for name, a in arrays.items()}


@pytest.mark.parametrize("name", PAIRS)
def test_adamw_is_that_of_pytorch(name):
    optimizer, make = PAIRS[name]
    assert_same(ours(optimizer), run_torch(make))


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_decoupled_decay_is_that_of_pytorch(nesterov):
    """PyTorch adds decay to the gradient: here its steps have none, and p (1 - rate decay)."""

    def make(parameters):
        sgd = torch.optim.SGD(parameters, RATE, momentum=0.9, nesterov=nesterov)

        def decay(optimizer, *_):
            with torch.no_grad():
                for p in parameters:
                    p.mul_(1 - RATE * DECAY)

        sgd.register_step_pre_hook(decay)
        return sgd

    assert_same(ours(SGD(0.9, nesterov)), run_torch(make))


def test_lion_is_that_of_its_paper():
    """Chen et al. 2023, algorithm 2, in float64."""
    parameters, m = dict(START), dict.fromkeys(START, 0.0)
    for _ in range(30):
        for name, g in gradients(parameters).items():
            step = np.sign(0.9 * m[name] + 0.1 * g) + DECAY * parameters[name]
            parameters = parameters | {name: parameters[name] - RATE * step}
            m[name] = 0.99 * m[name] + 0.01 * g
    assert_same(ours(Lion()), parameters)


def orthogonalise(a):
    """Newton-Schulz iteration of Jordan et al. 2024, five steps."""
    if a.shape[0] > a.shape[1]:
        return orthogonalise(a.T).T
    a = a / np.linalg.norm(a)
    for _ in range(5):
        b = a @ a.T
        a = 3.4445 * a + (-4.7750 * b + 2.0315 * b @ b) @ a
    return a


def test_muon_is_its_formula():
    """Nesterov momentum with bias correction (optax), and updates of 0.2 sqrt(max(I, O))."""
    parameters, m = dict(START), dict.fromkeys(START, 0.0)
    for step in range(1, 31):
        for name, g in gradients(parameters).items():
            m[name] = 0.95 * m[name] + 0.05 * g
            ahead = 0.95 * m[name] / (1 - 0.95 ** (step + 1)) + 0.05 * g / (1 - 0.95**step)
            update = 0.2 * 10**0.5 * orthogonalise(ahead) + DECAY * parameters[name]
            parameters = parameters | {name: parameters[name] - RATE * update}
    assert_same(ours(Muon()), parameters)
