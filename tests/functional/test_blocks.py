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
    assert_same,
    attention_parameters,
    block_parameters,
    decoder_block_parameters,
    exact,
    feed_forward_parameters,
    norm_parameters,
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


# Norms of outputs, norms left out, normed heads, rotary positions, biases of scores


MORE_NORMS = {
    "attention_output_norm": norm_parameters(D, seed=11),
    "feed_forward_output_norm": norm_parameters(D, seed=12),
}
NORMS_OF_BLOCKS = [MORE_NORMS, {"attention_norm": None}, {"feed_forward_norm": None}]


@pytest.mark.parametrize("norms", NORMS_OF_BLOCKS, ids=["more", "no first", "no second"])
@both_orders
def test_blocks_with_more_or_fewer_norms_are_their_formula(pre_norm, norms):
    block, formula, params = block_and_formula(pre_norm=pre_norm)
    changed, x = params._replace(**norms), normal(T, D)
    output = np.asarray(block(changed, x))
    assert_close(output, formula(exact(changed), exact(x)))
    assert np.abs(output - block(params, x)).max() > 1e-2


@both_orders
def test_a_decoder_block_with_all_options_is_its_formula(pre_norm):
    """Angles and biases are those of self-attention; heads are normed as the block is."""
    block, formula, params = block_and_formula(True, inner=H * 6, pre_norm=pre_norm)
    params = params._replace(
        attention=attention_parameters(D, H * 6, normed=6),
        cross_attention=attention_parameters(D, H * 6, normed=6, seed=5),
        cross_attention_norm=None,
        cross_attention_output_norm=norm_parameters(D, seed=13),
        feed_forward_output_norm=norm_parameters(D, seed=12),
    )
    inputs, bias = x_and_memory(), normal(H, T, T, seed=5)
    angles = reference.rotary_angles(5, 6)
    expected = formula(*exact((params, *inputs)), angles=angles, bias=exact(bias))
    output = block(params, *inputs, angles=angles.astype(np.float32), bias=bias)
    assert_close(output, expected, 2e-5)


# With layers that are given


def of_parts(pre_norm=False, dropout=0.0, hidden_dropout=0.0, softcap=None, feed_forward=None):
    """A decoder block of layers with these settings, as a function of (params, x, look)."""
    feed = functools.partial(F.feed_forward_layer, dropout_rate=hidden_dropout)
    attention = functools.partial(F.attention_layer, softcap=softcap)
    parts = F.BlockParts(attention, feed_forward or feed, F.layer_norm, pre_norm, dropout)
    return lambda params, x, look: F.block(params, x, look, parts)


def remembered(params, memory, num_heads=H):
    return F.key_values(params.cross_attention, memory, num_heads=num_heads)


def shifted(params, x, look):
    """A layer of what stood before each place, whose rows are kept."""
    rows, places = look.remember(x), jnp.maximum(look.positions - 1, 0)
    before = jnp.take_along_axis(rows, places[..., None], axis=-2)
    return F.linear(params.output, jnp.tanh(F.linear(params.hidden, before))), rows


@pytest.mark.parametrize("feed_forward", [None, shifted], ids=["library", "own"])
@both_orders
def test_a_block_with_all_options_and_a_cache_is_the_whole_one_piece_by_piece(
    pre_norm, feed_forward
):
    params = decoder_block_parameters(D, 6, inner=2 * H * 4)._replace(
        attention=attention_parameters(D, 2 * H * 4, of_keys=H * 4, normed=4),
        feed_forward=feed_forward_parameters(D, 6, gated=True),
        **MORE_NORMS,
    )
    x, length, capacity = normal(2, 5, D), 5, 8
    block = of_parts(pre_norm, softcap=0.9, feed_forward=feed_forward)
    memory = jax.jit(lambda: remembered(params, normal(2, S, D, seed=1), 2 * H))()

    def look(rows, keys, **cached):
        mask = F.combine_masks(F.cache_mask(rows, len(keys)), F.window_mask(rows, keys, 3))
        angles = rows[..., None, :, None] * F.rotary_frequencies(4)
        of_positions = {"mask": mask, "bias": F.alibi(rows, keys, 2 * H), "angles": angles}
        of_positions |= {"positions": rows, "key_positions": keys, "norm": F.layer_norm}
        seen = {"memory": memory, "memory_mask": some_mask(2, 1, 1, S)}
        return F.Look(2 * H, **seen, **of_positions, **cached)

    @jax.jit
    def extend(piece, rows, cache):
        cached = {"cache": cache, "start": rows[:, 0]}
        return block(params, piece, look(rows, jnp.arange(capacity), **cached))

    rows = np.tile(np.arange(length), (2, 1))
    whole, of_keys = jax.jit(lambda rows: block(params, x, look(rows, rows[0])))(rows)
    assert of_keys["attention"].key.shape == (2, H, length, 4)
    cache = {"attention": F.KeyValues(*[normal(2, H, capacity, 4)] * 2), "feed_forward": None}
    if feed_forward:
        cache["feed_forward"] = normal(2, capacity, D)
    # The last pieces start anew at another place for each sample.
    for starts, size in [((0, 0), 2), ((2, 1), 2), ((4, 3), 1), ((3, 1), 1)]:
        rows = np.add.outer(starts, range(size))
        piece, expected = (
            np.take_along_axis(np.asarray(y), rows[..., None], 1) for y in (x, whole)
        )
        output, cache = extend(piece, rows, cache)
        assert_close(output, expected)


@pytest.mark.parametrize("rate", ["dropout", "hidden_dropout"])
@both_blocks
def test_each_rate_of_dropout_is_that_of_the_key(decoder, rate):
    params, (x, memory) = decoder_block_parameters(D, 6), x_and_memory()
    memory = jax.jit(remembered)(params, memory) if decoder else None
    noisy, plain = (
        jax.jit(lambda rng, block=block: block(params, x, F.Look(H, memory=memory, rng=rng))[0])
        for block in (of_parts(**{rate: 0.5}), of_parts())
    )
    first, second = jax.random.split(jax.random.key(0))
    of_first = np.asarray(noisy(first))
    assert_same(noisy(first), of_first)
    for other in (noisy(second), noisy(None)):
        assert np.abs(of_first - other).max() > 1e-3
    assert_same(noisy(None), plain(None))
