"""Losses with one value per target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tlite.functional as F
from tlite.training import Focal

LOGITS = jax.random.normal(jax.random.key(0), (3, 5, 7)) * 3
TARGETS = jax.random.randint(jax.random.key(1), (3, 5), 0, 7).at[0, 1].set(-1)


def probabilities():
    logits = np.asarray(LOGITS, np.float64)
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def test_z_loss_and_focal_loss_equal_their_formulas():
    p = np.take_along_axis(probabilities(), np.maximum(TARGETS, 0)[..., None], -1)[..., 0]
    is_target = np.asarray(TARGETS) >= 0
    log_sum = np.log(np.exp(np.asarray(LOGITS, np.float64)).sum(-1))
    np.testing.assert_allclose(F.z_loss(LOGITS, TARGETS), is_target * log_sum**2, rtol=1e-5)
    for gamma in (0.0, 0.5, 2.0):
        expected = is_target * -((1 - p) ** gamma) * np.log(p)
        loss = F.focal_loss(LOGITS, TARGETS, gamma)
        np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)


def test_focal_loss_with_gamma_0_is_the_cross_entropy():
    np.testing.assert_allclose(
        Focal(gamma=0.0)(LOGITS, TARGETS), F.token_cross_entropy(LOGITS, TARGETS), rtol=1e-5
    )
    with pytest.raises(ValueError, match="gamma must not be negative"):
        Focal(gamma=-1.0)


def test_focal_gradient_is_finite_for_a_certain_target():
    logits = jnp.array([200.0, 0.0])
    gradient = jax.grad(lambda z: F.focal_loss(z, jnp.array(0), 0.5))(logits)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("loss", [F.token_cross_entropy, F.z_loss, F.focal_loss])
def test_losses_ignore_padding_and_accept_16_bits(loss):
    values = loss(LOGITS.astype(jnp.bfloat16), TARGETS)
    assert values.dtype == jnp.float32
    assert values[0, 1] == 0
    gradient = jax.grad(lambda z: loss(z, TARGETS).sum())(LOGITS)
    assert np.isfinite(gradient).all()
    assert not gradient[0, 1].any()
