"""Both blocks: equal to their formulas in both orders of norm, causal, batched as single."""

import functools
from collections import namedtuple

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
    own_places,
    some_mask,
)
from tlite import functional as F
from tlite.functional import layers

T, S, D, H = 3, 5, 4, 2
NORMS = {"layer": (F.layer_norm, reference.layer_norm), "rms": (F.rms_norm, reference.rms_norm)}
both_orders = pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])


def block_and_formula(norm="layer", **options):
    """The block and its formula; the parameters are for the norm."""
    ours, theirs = NORMS[norm]
    return (
        jax.jit(functools.partial(F.encoder_block, num_heads=H, norm=ours, **options)),
        functools.partial(reference.encoder_block, num_heads=H, norm=theirs, **options),
        block_parameters(D, 6, norm_bias=norm == "layer"),
    )


def decoder_and_formula(norm="layer", inner=None, **options):
    """The same for a decoder block."""
    ours, theirs = NORMS[norm]
    return (
        jax.jit(functools.partial(F.decoder_block, num_heads=H, norm=ours, **options)),
        functools.partial(reference.decoder_block, num_heads=H, norm=theirs, **options),
        decoder_block_parameters(D, 6, inner, norm_bias=norm == "layer"),
    )


rotary_angles = jax.jit(F.rotary_angles, static_argnums=(0, 1))


def x_and_memory(*batch):
    return normal(*batch, T, D), normal(*batch, S, D, seed=1)


masked_or_not = pytest.mark.parametrize(
    ("batch", "masked"), [((), False), ((2, 3), True)], ids=["open", "masked"]
)


@masked_or_not
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
    assert_close(block(params, x, angles=rotary_angles(5, 6)), expected)


@pytest.mark.parametrize(("norm", "rotary"), [("layer", False), ("rms", True)])
@both_orders
def test_gradients_never_reach_the_future_and_always_the_past(pre_norm, norm, rotary):
    angles = rotary_angles(T, D // H) if rotary else None
    block, _, params = block_and_formula(norm, pre_norm=pre_norm, angles=angles)
    assert_gradients_are_causal(lambda x: block(params, x, F.causal_mask(T)), normal(T, D))


@both_orders
def test_blocks_under_jit_and_vmap_are_the_batched_ones(pre_norm):
    block, _, params = block_and_formula(pre_norm=pre_norm, dropout_rate=0.5)
    x, keys = normal(3, T, D), jax.random.split(jax.random.key(0), 3)
    single = jax.jit(jax.vmap(lambda x, key: block(params, x, F.causal_mask(T), key=key)))
    assert_close(single(x, keys), block(params, x, F.causal_mask(T), key=keys))


@both_orders
def test_dropout_in_a_block_is_that_of_its_key(pre_norm):
    block, _, params = block_and_formula(pre_norm=pre_norm, dropout_rate=0.5)
    x, (first, second) = normal(T, D), jax.random.split(jax.random.key(0))
    of_first = np.asarray(block(params, x, key=first))
    assert_same(block(params, x, key=first), of_first)
    assert np.abs(of_first - block(params, x, key=second)).max() > 1e-3
    assert_same(block(params, x), block_and_formula(pre_norm=pre_norm)[0](params, x))


def test_attention_and_feed_forward_meet_different_noise():
    params, x = block_parameters(1, 1), jnp.zeros((64, 1))

    def constant(params, x):
        return jnp.zeros_like(x)

    ones = jax.tree.map(jnp.ones_like, params)
    block = functools.partial(F.encoder_block, ones, x, num_heads=1, pre_norm=True, norm=constant)
    dropped = np.asarray(jax.jit(lambda: block(dropout_rate=0.5, key=jax.random.key(0)))())
    dropped_twice, kept_twice = ((dropped == value).mean() for value in (0.0, dropped.max()))
    assert 0.1 < dropped_twice < 0.4
    assert 0.1 < kept_twice < 0.4


# The decoder block


@masked_or_not
@pytest.mark.parametrize("norm", NORMS)
@both_orders
def test_decoder_blocks_are_their_formula(pre_norm, norm, batch, masked):
    block, formula, params = decoder_and_formula(norm, pre_norm=pre_norm)
    inputs = x_and_memory(*batch)
    if masked:
        inputs = (*inputs, some_mask(*batch, H, T, T), some_mask(*batch, H, T, S))
    expected = over_batch(batch, formula, *inputs, params=params)
    assert_close(block(params, *inputs), expected, 2e-5)


@both_orders
def test_decoder_blocks_turn_only_their_own_queries_and_keys(pre_norm):
    block, formula, params = decoder_and_formula(inner=H * 6, pre_norm=pre_norm)
    inputs = x_and_memory()
    expected = formula(*exact((params, *inputs)), angles=reference.rotary_angles(5, 6))
    assert_close(block(params, *inputs, angles=rotary_angles(5, 6)), expected)


@both_orders
def test_gradients_of_decoder_blocks_are_their_differences(pre_norm):
    block, formula, _ = decoder_and_formula(pre_norm=pre_norm)
    masks = jnp.asarray(np.tile(np.tri(2, dtype=bool), (H, 1, 1))), some_mask(H, 2, 3)
    assert_gradients_are_differences(
        lambda *inputs: block(*inputs, *masks),
        lambda *inputs: formula(*inputs, *masks),
        decoder_block_parameters(D, 3),
        normal(2, D),
        normal(3, D, seed=1),
        tolerance=1e-4,
    )


@both_orders
def test_gradients_of_a_decoder_never_reach_the_future_and_always_the_past(pre_norm):
    angles = rotary_angles(T, D // H)
    block, _, params = decoder_and_formula(pre_norm=pre_norm, angles=angles)
    x, memory = x_and_memory()
    assert_gradients_are_causal(lambda x: block(params, x, memory, F.causal_mask(T)), x)


@both_orders
def test_gradients_reach_what_is_seen_of_the_memory_and_nothing_else(pre_norm):
    block, _, params = decoder_and_formula(pre_norm=pre_norm)
    (x, memory), seen = x_and_memory(), jnp.array([True, False, True, True, False])
    weights = normal(D)
    rows = jax.jacrev(lambda m: block(params, x, m, F.causal_mask(T), seen) @ weights)
    assert_same(np.asarray(jax.jit(rows)(memory)).any(-1), np.tile(seen, (T, 1)))


@both_orders
def test_what_is_hidden_of_target_or_memory_changes_no_other_row(pre_norm):
    block, _, params = decoder_and_formula(pre_norm=pre_norm)
    x, memory = x_and_memory(2)
    real = np.arange(T) < np.array([1, 3])[:, None]
    seen = np.array([[1, 1, 0, 0, 0], [1] * 5], bool)
    masks = jnp.asarray((np.tri(T, dtype=bool) & real[:, None])[:, None]), seen[:, None, None]
    noise = 100 * np.asarray(normal(2, S, D, seed=2))
    noisy = (
        np.where(given[..., None], values, noise[:, : values.shape[1]])
        for given, values in ((real, x), (seen, memory))
    )
    plain, other = (np.asarray(block(params, *pair, *masks)) for pair in ((x, memory), noisy))
    assert_same(other[real], plain[real])


@both_orders
def test_a_decoder_block_with_a_cache_is_the_whole_one_piece_by_piece(pre_norm):
    angles = rotary_angles(8, 6)
    settings = {"num_heads": H, "pre_norm": pre_norm}
    params = decoder_block_parameters(D, 6, H * 6)
    x, memory = normal(2, 5, D), normal(2, S, D, seed=1)
    seen = some_mask(2, 1, 1, S)

    @jax.jit
    def results():
        mask = F.causal_mask(5)
        whole = F.decoder_block(params, x, memory, mask, seen, angles=angles, **settings)
        return whole, F.key_values(params.cross_attention, memory, num_heads=H)

    @jax.jit
    def extend(piece, cache, rows):
        cached = {"cache": cache, "start": rows[:, 0], "angles": angles[rows][:, None]}
        mask = F.cache_mask(rows, 8)
        return F.block(params, piece, mask, seen_across, seen, **cached, **settings)

    whole, seen_across = results()
    cache = F.KeyValues(normal(2, H, 8, 6), normal(2, H, 8, 6))
    # The last piece starts anew at another place for each sample.
    for starts, length in [((0, 0), 2), ((2, 2), 1), ((3, 3), 2), ((3, 1), 1)]:
        rows = np.add.outer(starts, range(length))
        piece, expected = (
            np.take_along_axis(np.asarray(y), rows[..., None], 1) for y in (x, whole)
        )
        output, cache = extend(piece, cache, rows)
        assert_close(output, expected)


@both_orders
def test_sequences_in_a_decoder_block_share_a_memory_and_a_cache(pre_norm):
    params, number = decoder_block_parameters(D, 6), 3
    x, memory, seen = normal(2, number, T, D), normal(2, S, D, seed=1), some_mask(2, 1, 1, S)
    settings = {"num_heads": H, "pre_norm": pre_norm}

    @jax.jit
    def results():
        repeated, masks = (jnp.repeat(a[:, None], number, 1) for a in (memory, seen))
        expected = F.decoder_block(params, x, repeated, F.causal_mask(T), masks, **settings)
        return expected, F.key_values(params.cross_attention, memory, num_heads=H)

    @jax.jit
    def extend(tokens, own, cache, start):
        cached = {"cache": cache, "start": start}
        return F.block(params, tokens, own, seen_across, seen, **cached, **settings)

    expected, seen_across = results()
    cache = F.KeyValues(*[normal(2, H, number * T, D // H)] * 2)
    for t in range(T):
        tokens, own = np.asarray(x)[:, :, t], own_places(number, T, t)
        output, cache = extend(tokens, own, cache, number * t)
        assert_close(output, np.asarray(expected)[:, :, t])


@both_orders
def test_decoder_blocks_under_jit_and_vmap_are_the_batched_ones(pre_norm):
    rates = {"dropout_rate": 0.3, "hidden_dropout_rate": 0.5}
    block, _, params = decoder_and_formula(pre_norm=pre_norm, **rates)
    (x, memory), keys = x_and_memory(3), jax.random.split(jax.random.key(0), 3)

    def whole(x, memory, key):
        return block(params, x, memory, F.causal_mask(T), key=key)

    assert_close(jax.jit(jax.vmap(whole))(x, memory, keys), jax.jit(whole)(x, memory, keys))


@pytest.mark.parametrize("rate", ["dropout_rate", "hidden_dropout_rate"])
@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
def test_each_rate_of_dropout_is_that_of_the_key(decoder, rate):
    make = decoder_and_formula if decoder else block_and_formula
    block, _, params = make(**{rate: 0.5})
    inputs = x_and_memory()[: 1 + decoder]
    first, second = jax.random.split(jax.random.key(0))
    of_first = np.asarray(block(params, *inputs, key=first))
    assert_same(block(params, *inputs, key=first), of_first)
    for other in (block(params, *inputs, key=second), block(params, *inputs)):
        assert np.abs(of_first - other).max() > 1e-3
    assert_same(block(params, *inputs), make()[0](params, *inputs))


def test_every_place_of_dropout_in_a_decoder_has_noise_of_its_own(monkeypatch):
    keys = []

    def random_bits(key, shape):
        keys.append(jax.random.key_data(key))
        return F.random_bits(key, shape)

    monkeypatch.setattr(layers, "random_bits", random_bits)
    settings = {"dropout_rate": 0.5, "hidden_dropout_rate": 0.5, "key": jax.random.key(0)}

    @jax.jit
    def found():
        F.decoder_block(decoder_block_parameters(D, 6), *x_and_memory(), num_heads=H, **settings)
        return keys

    assert len(np.unique(found(), axis=0)) == len(keys) == 4


# Options: norms of outputs, norms left out, normed heads, functions of one's own


def with_norms(params, **norms):
    """The parameters with other or further norms."""
    fields = params._asdict() | norms
    return namedtuple("Parameters", fields)(**fields)


def with_output_norms(params):
    return with_norms(
        params,
        attention_output_norm=norm_parameters(D, seed=11),
        feed_forward_output_norm=norm_parameters(D, seed=12),
    )


@pytest.mark.parametrize("change", ["output norms", "no attention norm", "no feed-forward norm"])
@both_orders
def test_blocks_with_more_or_fewer_norms_are_their_formula(pre_norm, change):
    block, formula, params = block_and_formula(pre_norm=pre_norm)
    plain, x = block(params, normal(T, D)), normal(T, D)
    if change == "output norms":
        changed = with_output_norms(params)
    else:
        name = change.removeprefix("no ").replace(" ", "_").replace("-", "_")
        changed = with_norms(params, **{name: None})
    output = np.asarray(block(changed, x))
    assert_close(output, formula(exact(changed), exact(x)))
    assert np.abs(output - plain).max() > 1e-2


@both_orders
def test_decoder_blocks_with_more_and_fewer_norms_are_their_formula(pre_norm):
    block, formula, params = decoder_and_formula(pre_norm=pre_norm)
    changed = with_norms(
        params,
        cross_attention_norm=None,
        cross_attention_output_norm=norm_parameters(D, seed=13),
        feed_forward_output_norm=norm_parameters(D, seed=12),
    )
    inputs = x_and_memory()
    assert_close(block(changed, *inputs), formula(exact(changed), *exact(inputs)))


@both_orders
def test_a_bias_of_scores_is_that_of_self_attention_alone(pre_norm):
    bias = normal(H, T, T, seed=5)
    block, formula, params = decoder_and_formula(pre_norm=pre_norm)
    inputs = x_and_memory()
    expected = formula(*exact((params, *inputs)), bias=exact(bias))
    assert_close(block(params, *inputs, bias=bias), expected)


def test_decoder_blocks_norm_heads_by_the_given_norm():
    params = decoder_block_parameters(D, 6)
    params = params._replace(
        attention=attention_parameters(D, D, normed=D // H),
        cross_attention=attention_parameters(D, D, normed=D // H, seed=5),
    )
    inputs = x_and_memory()
    norms = {"norm": functools.partial(F.layer_norm, eps=0.1)}
    expected = reference.decoder_block(
        *exact((params, *inputs)),
        num_heads=H,
        norm=functools.partial(reference.layer_norm, eps=0.1),
    )
    block = jax.jit(functools.partial(F.decoder_block, num_heads=H, **norms))
    assert_close(block(params, *inputs), expected)


@both_orders
def test_a_block_with_all_options_and_a_cache_is_the_whole_one_piece_by_piece(pre_norm):
    params = block_parameters(D, 6)._replace(
        attention=attention_parameters(D, 2 * H * 4, of_keys=H * 4, normed=4),
        feed_forward=feed_forward_parameters(D, 6, gated=True),
    )
    params, x, length = with_output_norms(params), normal(2, 5, D), 5
    settings = {"num_heads": 2 * H, "pre_norm": pre_norm, "norm": F.layer_norm}
    settings["attention"] = functools.partial(F.scaled_dot_product_attention, softcap=0.9)

    def of_positions(rows, keys):
        mask = F.combine_masks(F.cache_mask(rows, len(keys)), F.window_mask(rows, keys, 3))
        angles = rows[..., None, :, None] * F.rotary_frequencies(4)
        return {"mask": mask, "bias": F.alibi(rows, keys, 2 * H), "angles": angles}

    @jax.jit
    def extend(piece, rows, cache):
        cached = of_positions(rows, jnp.arange(8)) | {"cache": cache, "start": rows[:, 0]}
        return F.block(params, piece, **cached, **settings)

    rows = np.tile(np.arange(length), (2, 1))
    run = jax.jit(lambda rows: F.block(params, x, **of_positions(rows, rows[0]), **settings))
    whole, seen = run(rows)
    assert seen.key.shape == (2, H, length, 4)
    cache = F.KeyValues(*[normal(2, H, 8, 4)] * 2)
    for starts, size in [((0, 0), 2), ((2, 1), 2), ((4, 3), 1)]:
        rows = np.add.outer(starts, range(size))
        piece, expected = (
            np.take_along_axis(np.asarray(y), rows[..., None], 1) for y in (x, whole)
        )
        output, cache = extend(piece, rows, cache)
        assert_close(output, expected)


@both_orders
def test_a_feed_forward_of_ones_own_gets_what_it_takes(pre_norm):
    params, x = block_parameters(D, 6), normal(T, D)
    key = jax.random.key(0)
    taken = []

    def plain(params, x):
        return F.linear(params.output, jnp.tanh(F.linear(params.hidden, x)))

    def curious(params, x, *, activation, key, observe):
        taken.append((activation, key is None, observe is F.unobserved))
        return plain(params, x)

    settings = {"num_heads": H, "pre_norm": pre_norm, "activation": jnp.tanh, "key": key}

    @jax.jit
    def results():
        expected = F.encoder_block(params, x, **settings)
        own = (plain, curious)
        return expected, [F.encoder_block(params, x, feed_forward=f, **settings) for f in own]

    expected, of_own = results()
    assert_close(of_own, [expected] * 2)
    assert taken == [(jnp.tanh, False, True)]
