"""The encoder block: equal to its formula in both orders of norm, causal, batched as single."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.functional import reference
from tests.functional.helpers import (
    assert_close,
    assert_gradients_are_causal,
    assert_gradients_are_differences,
    assert_same,
    block_parameters,
    exact,
    normal,
    over_batch,
    some_mask,
)
from tlite import functional as F

T, D, H = 3, 4, 2
NORMS = {"layer": (F.layer_norm, reference.layer_norm), "rms": (F.rms_norm, reference.rms_norm)}
both_orders = pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])


def block_and_formula(norm="layer", **options):
    """The block and its formula; the parameters are for the norm."""
    ours, theirs = NORMS[norm]
    return (
        functools.partial(F.encoder_block, num_heads=H, norm=ours, **options),
        functools.partial(reference.encoder_block, num_heads=H, norm=theirs, **options),
        block_parameters(D, 6, norm_bias=norm == "layer"),
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("norm", NORMS)
@both_orders
def test_blocks_are_their_formula(pre_norm, norm, batch, masked):
    block, formula, params = block_and_formula(norm, pre_norm=pre_norm)
    inputs = [normal(*batch, T, D), some_mask(*batch, H, T, T)][: 1 + masked]
    expected = over_batch(batch, formula, *inputs, params=params)
    assert_close(block(params, *inputs), expected, 2e-5)


@both_orders
def test_blocks_with_rotary_positions_and_free_head_width_are_their_formula(pre_norm):
    params, x = block_parameters(D, 6, inner=H * 6), normal(T, D)
    block, formula, _ = block_and_formula(pre_norm=pre_norm)
    expected = formula(*exact((params, x)), angles=reference.rotary_angles(5, 6))
    assert_close(block(params, x, angles=F.rotary_angles(5, 6)), expected)


@pytest.mark.parametrize("norm", NORMS)
@both_orders
def test_gradients_of_blocks_are_their_differences(pre_norm, norm):
    block, formula, params = block_and_formula(norm, pre_norm=pre_norm)
    mask = jnp.tile(F.causal_mask(T), (H, 1, 1))
    assert_gradients_are_differences(
        lambda *inputs: block(*inputs, mask),
        lambda *inputs: formula(*inputs, mask),
        params,
        normal(T, D),
        tolerance=1e-4,
    )


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("norm", NORMS)
@both_orders
def test_gradients_never_reach_the_future_and_always_the_past(pre_norm, norm, rotary):
    angles = F.rotary_angles(T, D // H) if rotary else None
    block, _, params = block_and_formula(norm, pre_norm=pre_norm, angles=angles)
    assert_gradients_are_causal(lambda x: block(params, x, F.causal_mask(T)), normal(T, D))


@pytest.mark.parametrize("dropout_rate", [0.0, 0.5])
@both_orders
def test_blocks_under_jit_and_vmap_are_the_batched_ones(pre_norm, dropout_rate):
    block, _, params = block_and_formula(pre_norm=pre_norm, dropout_rate=dropout_rate)
    x, keys = normal(3, T, D), jax.random.split(jax.random.key(0), 3)
    single = jax.jit(jax.vmap(lambda x, key: block(params, x, F.causal_mask(T), key=key)))
    assert_close(single(x, keys), block(params, x, F.causal_mask(T), key=keys))


@both_orders
def test_dropout_in_a_block_is_that_of_its_key(pre_norm):
    block, _, params = block_and_formula(pre_norm=pre_norm, dropout_rate=0.5)
    x, (first, second) = normal(T, D), jax.random.split(jax.random.key(0))
    assert_same(block(params, x, key=first), block(params, x, key=first))
    assert np.abs(block(params, x, key=first) - block(params, x, key=second)).max() > 1e-3
    assert_same(block(params, x), F.encoder_block(params, x, num_heads=H, pre_norm=pre_norm))


def test_attention_and_feed_forward_meet_different_noise():
    params, x = block_parameters(1, 1), jnp.zeros((64, 1))

    def constant(params, x):
        return jnp.zeros_like(x)

    ones = jax.tree.map(jnp.ones_like, params)
    block = functools.partial(F.encoder_block, ones, x, num_heads=1, pre_norm=True, norm=constant)
    dropped = block(dropout_rate=0.5, key=jax.random.key(0))
    dropped_twice, kept_twice = (
        (np.asarray(dropped) == value).mean() for value in (0.0, dropped.max())
    )
    assert 0.1 < dropped_twice < 0.4
    assert 0.1 < kept_twice < 0.4
