"""AdamW takes the steps of PyTorch's; Muon, which differs from PyTorch's, those of its formula.

PyTorch's Muon rounds to bfloat16 and does not correct the bias of the momentum.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_close, numbers
from tlite.training import AdamW, Muon

torch = pytest.importorskip("torch")
RATE, DECAY, STEPS = 0.02, 0.1, 30
SHAPES = {"blocks.0.hidden.kernel": (6, 10), "blocks.0.output.kernel": (10, 6)}
START = {name: numbers(*shape) for name, shape in SHAPES.items()}
GRADIENTS = [{n: numbers(*s, seed=1 + i) for n, s in SHAPES.items()} for i in range(STEPS)]


def train(optimizer):
    transform, parameters = optimizer(RATE, DECAY), jax.device_put(START)
    state, update = transform.init(parameters), jax.jit(transform.update)
    for gradients in GRADIENTS:
        updates, state = update(jax.device_put(gradients), state, parameters)
        parameters = jax.tree.map(jnp.add, parameters, updates)
    return parameters


@pytest.mark.parametrize("fields", [(0.9, 0.999, 1e-8), (0.8, 0.95, 1e-3)])
def test_adamw_is_that_of_pytorch(fields):
    b1, b2, eps = fields
    arrays = {name: torch.nn.Parameter(torch.tensor(a)) for name, a in START.items()}
    optimizer = torch.optim.AdamW(arrays.values(), RATE, (b1, b2), eps, weight_decay=DECAY)
    for gradients in GRADIENTS:
        for name, gradient in gradients.items():
            arrays[name].grad = torch.tensor(gradient)
        optimizer.step()
    assert_close(train(AdamW(*fields)), {name: a.detach().numpy() for name, a in arrays.items()})


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
    expected = {}
    for name, start in START.items():
        a, m = np.float64(start), 0.0
        for step, g in enumerate((np.float64(g[name]) for g in GRADIENTS), 1):
            m = 0.95 * m + 0.05 * g
            ahead = 0.95 * m / (1 - 0.95 ** (step + 1)) + 0.05 * g / (1 - 0.95**step)
            a = a - RATE * (0.2 * 10**0.5 * orthogonalise(ahead) + DECAY * a)
        expected[name] = a
    assert_close(train(Muon()), expected)
