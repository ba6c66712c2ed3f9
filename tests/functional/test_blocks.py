"""Both blocks: equal to their formulas in both orders of norm, causal, batched as single."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import reference
from tests.helpers.arrays import (
    assert_close,
    assert_gradients_are_causal,
    assert_gradients_are_differences,
    block_parameters,
    decoder_block_parameters,
    normal,
    over_batch,
    some_mask,
)
from tlite import functional as F

T, S, D, H = 3, 5, 4, 2
NORMS = {"layer": (F.layer_norm, reference.layer_norm), "rms": (F.rms_norm, reference.rms_norm)}
both_blocks = pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
both_orders = pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])


def block_and_formula(decoder=False, norm="layer", inner=None, **options):
    """The block, of an encoder or a decoder, its formula, and parameters for the norm."""
    (ours, theirs), name = NORMS[norm], "decoder_block" if decoder else "encoder_block"
    parameters = decoder_block_parameters if decoder else block_parameters
    return (
        jax.jit(functools.partial(getattr(F, name), num_heads=H, norm=ours, **options)),
        functools.partial(getattr(reference, name), num_heads=H, norm=theirs, **options),
        parameters(D, 6, inner, norm_bias=norm == "layer"),
    )


def x_and_memory(*batch):
    return normal(*batch, T, D), normal(*batch, S, D, seed=1)


@pytest.mark.parametrize(("batch", "masked"), [((), False), ((2, 3), True)], ids=["open", "masked"])
@pytest.mark.parametrize("norm", NORMS)
@both_orders
@both_blocks
def test_blocks_are_their_formula(decoder, pre_norm, norm, batch, masked):
    block, formula, params = block_and_formula(decoder, norm, pre_norm=pre_norm)
    inputs = x_and_memory(*batch)[: 1 + decoder]
    if masked:
        masks = some_mask(*batch, H, T, T), some_mask(*batch, H, T, S)
        inputs = *inputs, *masks[: 1 + decoder]
    expected = over_batch(batch, formula, *inputs, params=params)
    assert_close(block(params, *inputs), expected, 2e-5)


@pytest.mark.parametrize(("norm", "rotary"), [("layer", False), ("rms", True)])
@both_orders
@both_blocks
def test_gradients_never_reach_the_future_and_always_the_past(decoder, pre_norm, norm, rotary):
    angles = F.rotary_angles(T, D // H) if rotary else None
    block, _, params = block_and_formula(decoder, norm, pre_norm=pre_norm, angles=angles)
    x, *memory = x_and_memory()[: 1 + decoder]
    assert_gradients_are_causal(lambda x: block(params, x, *memory, F.causal_mask(T)), x)


@both_orders
def test_gradients_of_decoder_blocks_are_their_differences(pre_norm):
    block, formula, _ = block_and_formula(True, pre_norm=pre_norm)
    masks = jnp.asarray(np.tile(np.tri(2, dtype=bool), (H, 1, 1))), some_mask(H, 2, 3)
    assert_gradients_are_differences(
        lambda *inputs: block(*inputs, *masks),
        lambda *inputs: formula(*inputs, *masks),
        decoder_block_parameters(D, 3),
        normal(2, D),
        normal(3, D, seed=1),
        tolerance=1e-4,
    )
