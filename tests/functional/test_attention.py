"""Attention, its blocks and masks: equal to their formulas, blind to what is hidden, causal."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.helpers import reference
from tests.helpers.arrays import (
    assert_all_finite,
    assert_close,
    assert_gradients_are_causal,
    assert_same,
    attention_parameters,
    block_parameters,
    decoder_block_parameters,
    integers,
    normal,
    over_batch,
    some_mask,
)
from tlite import functional as F

T, S, K, V = 3, 4, 2, 5
D, H, G = 6, 4, 2  # G heads of keys for H of queries
BATCHES = [(), (2, 3)]


def drawn(batch=()):
    """Query, key and value."""
    return (
        normal(*batch, T, K, seed=1),
        normal(*batch, S, K, seed=2),
        normal(*batch, S, V, seed=3),
    )


scaled_dot_product_attention = jax.jit(
    F.scaled_dot_product_attention, static_argnames=("scale", "softcap")
)
multi_head_attention = jax.jit(F.multi_head_attention, static_argnames=("num_heads", "norm"))
write = jax.jit(F.update_cache)
SCORES = {
    "plain": {},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 0.8},
    "bias": {"bias": normal(T, S, seed=4)},
    "all": {"scale": 2.0, "softcap": 1.5, "bias": normal(T, S, seed=4)},
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES)
def test_attention_is_its_formula(scores, batch, masked):
    inputs = (*drawn(batch), some_mask(*batch, T, S)) if masked else drawn(batch)
    formula = functools.partial(reference.attention, **scores)
    expected = over_batch(batch, formula, *inputs)
    assert_close(scaled_dot_product_attention(*inputs, **scores), expected)


@given(arrays(bool, (T, S)))
def test_weights_sum_to_one_where_something_is_seen_and_to_zero_elsewhere(mask):
    output, weights = scaled_dot_product_attention(*drawn(), mask)
    assert_close(np.sum(weights, -1), mask.any(-1).astype(float))
    assert (np.asarray(weights)[~mask] == 0).all()
    assert (np.asarray(output)[~mask.any(-1)] == 0).all()


@pytest.mark.parametrize("blind", [[True, True, True], [False, True, False]], ids=["all", "one"])
def test_queries_that_see_nothing_have_finite_gradients(blind):
    mask = np.tile(~np.array(blind)[:, None], (1, S))

    def total(inputs, mask):
        return sum((result**2).sum() for result in scaled_dot_product_attention(*inputs, mask))

    gradients = jax.jit(jax.grad(total))(drawn(), mask)
    assert_all_finite(gradients)
    assert (np.asarray(gradients[0])[blind] == 0).all()


@jax.jit
def output_and_gradients(query, key, value, seen):
    def total(*inputs):
        results = scaled_dot_product_attention(*inputs, seen)
        return (results[0] ** 2).sum(), results

    return jax.grad(total, argnums=(0, 1, 2), has_aux=True)(query, key, value)


@given(arrays(bool, S), st.sampled_from([1e30, -1e30]))
def test_hidden_keys_have_no_influence_whatever_their_values(seen, huge):
    """To the bit, and no gradient."""
    query, key, value = drawn()
    noisy = (np.where(seen[:, None], x, np.float32(huge)) for x in (key, value))
    gradients, results = output_and_gradients(query, *noisy, seen)
    assert_same(results, output_and_gradients(query, key, value, seen)[1])
    for gradient in gradients[1:]:
        assert not np.asarray(gradient)[~seen].any()
        assert_all_finite(gradient)


# Multi-head attention


def heads(of_keys=H, width=K, normed=False):
    """Parameters with so many heads of keys, of this width."""
    norms = {"normed": width if normed else None}
    return attention_parameters(D, H * width, of_keys=of_keys * width, **norms)


HEADS = {
    "plain": {},
    "wide heads": {"width": 5},
    "shared keys": {"of_keys": G},
    "one head of keys": {"of_keys": 1},
    "normed": {"of_keys": G, "normed": True},
    "rotary": {"width": 4},
    "rotary, normed": {"of_keys": G, "width": 4, "normed": True},
}


@pytest.mark.parametrize(("batch", "masked"), [((), False), ((2, 3), True)], ids=["open", "masked"])
@pytest.mark.parametrize("name", HEADS)
def test_shared_keys_and_norms_of_heads_are_their_formula(name, batch, masked):
    params, width = heads(**HEADS[name]), HEADS[name].get("width", K)
    inputs = [normal(*batch, n, D, seed=i) for i, n in enumerate((T, S, S))]
    inputs += [some_mask(*batch, H, T, S)] if masked else []
    angles = reference.rotary_angles(7, width) if "rotary" in name else None
    formula = functools.partial(reference.multi_head_attention, num_heads=H, angles=angles)
    expected = over_batch(batch, formula, *inputs, params=params)
    angles = None if angles is None else angles.astype(np.float32)
    settings = {"num_heads": H, "angles": angles, "norm": F.rms_norm}
    assert_close(multi_head_attention(params, *inputs, **settings), expected)


def test_a_width_that_heads_do_not_divide_is_named():
    with pytest.raises(ValueError, match=r"8 .* 3 heads"):
        multi_head_attention(heads(), *[normal(T, D)] * 3, num_heads=3)


@pytest.mark.parametrize("batch", BATCHES)
def test_writing_puts_each_row_at_its_own_place_and_loses_what_is_past_the_end(batch):
    cache = F.KeyValues(normal(*batch, G, 6, K), normal(*batch, G, 6, K, seed=1))
    new = F.KeyValues(normal(*batch, G, 3, K), normal(*batch, G, 3, K, seed=1))
    starts = np.resize([4, 0, 6, 2, 3, 5], batch) if batch else np.array(4)
    for start in (starts, np.int32(3)):  # one place is for all samples
        places = np.broadcast_to(start, batch)
        for before, added, after in zip(cache, new, write(cache, new, start), strict=True):
            expected = np.array(before)
            for i in np.ndindex(*batch):
                for row in range(min(3, 6 - places[i])):
                    expected[i][:, places[i] + row] = np.asarray(added)[i][:, row]
            assert_same(after, expected)


# An attention of one's own

TILT = np.arange(1, H + 1)[:, None, None] * np.arange(T)[:, None] * np.arange(np.float32(T))


def tilted(query, key, value, mask=None):
    """Takes no `tap`; looks at the number of heads and at the places of queries."""
    assert query.shape[-3:-1] == key.shape[-3:-1] == (H, T)
    return F.scaled_dot_product_attention(query, key, value, mask, bias=jnp.asarray(TILT))


def attend(params, x, tap=F.no_tap):
    look = F.Look(H, tap=tap)
    return F.attend(params, x, F.key_values(params, x, look), look, F.with_repeated_kv(tilted))


def test_an_attention_of_ones_own_sees_every_head_and_can_be_seen_but_not_changed():
    params, x = heads(G), normal(2, T, D)

    @jax.jit
    def results(params):
        seen = {}
        return attend(params, x, lambda name, v: seen.setdefault(name, v)), seen["weights"]

    both, seen = results(params)
    formula = functools.partial(reference.multi_head_attention, num_heads=H, bias=TILT)
    assert_close(both, over_batch((2,), lambda p, x: formula(p, x, x, x), x, params=params))
    assert_close(seen, both[1])
    with pytest.raises(ValueError, match="takes no `tap`"):
        attend(params, x, lambda name, v: 2 * v if name == "weights" else v)
    assert_close(attend(params, x, lambda name, v: jnp.array(v)), both)  # copies


def test_cross_attention_has_nothing_of_the_decoder_s_positions():
    look = F.Look(H, window=3, magnitude=2.0, causal=True, bias=jnp.ones(()))
    assert look.at("cross_attention") == F.Look(H)


def test_attention_is_one_function_of_its_parameters_and_settings():
    """Both entries norm queries and keys alike, and no keyword is lost."""
    params, x = heads(normed=True), normal(T, D)
    look = F.Look(H)
    layer = functools.partial(F.attention_layer, params, x, look)
    assert_close(F.multi_head_attention(params, x, x, x, num_heads=H)[0], layer()[0])
    for name, value in (("scale", 100.0), ("softcap", 1.0)):
        assert np.abs(layer()[0] - layer(**{name: value})[0]).max() > 1e-3
        with pytest.raises(ValueError, match=name):
            layer(attention=F.mixed_attention, **{name: value})
    biased = dataclasses.replace(look, bias=jnp.ones((T, T)))
    with pytest.raises(ValueError, match="bias"):
        F.attention_layer(params, x, biased, attention=F.mixed_attention)
    with pytest.raises(TypeError, match="scal"):
        layer(scal=100.0)


# Blocks of an encoder and of a decoder

MEMORY, WIDTH, NUMBER = 5, 4, 2  # length of a memory; width and heads of a block
NORMS = {"layer": (F.layer_norm, reference.layer_norm), "rms": (F.rms_norm, reference.rms_norm)}
both_blocks = pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
both_orders = pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])


def block_and_formula(decoder=False, norm="layer", **options):
    """The block, of an encoder or a decoder, its formula, and parameters for the norm."""
    (ours, theirs), name = NORMS[norm], "decoder_block" if decoder else "encoder_block"
    parameters = decoder_block_parameters if decoder else block_parameters
    return (
        jax.jit(functools.partial(getattr(F, name), num_heads=NUMBER, norm=ours, **options)),
        functools.partial(getattr(reference, name), num_heads=NUMBER, norm=theirs, **options),
        parameters(WIDTH, 6, norm_bias=norm == "layer"),
    )


def x_and_memory(*batch):
    return normal(*batch, T, WIDTH), normal(*batch, MEMORY, WIDTH, seed=1)


@pytest.mark.parametrize(("batch", "masked"), [((), False), ((2, 3), True)], ids=["open", "masked"])
@pytest.mark.parametrize("norm", NORMS)
@both_orders
@both_blocks
def test_blocks_are_their_formula(decoder, pre_norm, norm, batch, masked):
    block, formula, params = block_and_formula(decoder, norm, pre_norm=pre_norm)
    inputs = x_and_memory(*batch)[: 1 + decoder]
    if masked:
        masks = some_mask(*batch, NUMBER, T, T), some_mask(*batch, NUMBER, T, MEMORY)
        inputs = *inputs, *masks[: 1 + decoder]
    expected = over_batch(batch, formula, *inputs, params=params)
    assert_close(block(params, *inputs), expected, 2e-5)


@pytest.mark.parametrize(("norm", "rotary"), [("layer", False), ("rms", True)])
@both_orders
@both_blocks
def test_gradients_never_reach_the_future_and_always_the_past(decoder, pre_norm, norm, rotary):
    angles = F.rotary_angles(T, WIDTH // NUMBER) if rotary else None
    block, _, params = block_and_formula(decoder, norm, pre_norm=pre_norm, angles=angles)
    x, *memory = x_and_memory()[: 1 + decoder]
    assert_gradients_are_causal(lambda x: block(params, x, *memory, F.causal_mask(T)), x)


# Masks

causal_mask = jax.jit(F.causal_mask, static_argnums=0)
padding_mask = jax.jit(F.padding_mask, static_argnums=1)
cache_mask = jax.jit(F.cache_mask, static_argnums=1)
window_mask = jax.jit(F.window_mask, static_argnums=2)
documents = jax.jit(F.segment_ids, static_argnums=1)
segment_mask = jax.jit(F.segment_mask)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_causal_mask_shows_the_present_and_the_past(length):
    mask = np.asarray(causal_mask(length))
    assert mask.shape == (length, length)
    assert all(mask[t, s] == (s <= t) for t in range(length) for s in range(length))


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_padding_mask_hides_padding_from_all_heads_and_queries(batch):
    tokens = np.asarray(integers(3, *batch, 5))
    mask = np.asarray(padding_mask(tokens, 0))
    assert mask.shape == (*batch, 1, 1, 5)
    assert (mask[..., 0, 0, :] == (tokens != 0)).all()


@given(st.lists(st.none() | arrays(bool, (2, 3)), max_size=4))
def test_combined_masks_allow_what_all_allow(masks):
    combined = F.combine_masks(*(None if mask is None else jax.device_put(mask) for mask in masks))
    given_masks = [mask for mask in masks if mask is not None]
    if given_masks:
        assert (combined == np.logical_and.reduce(given_masks)).all()
    else:
        assert combined is None


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_cache_mask_shows_what_was_written_up_to_each_position(batch):
    positions = np.asarray(integers(4, *batch, 3))
    mask = np.asarray(cache_mask(positions, 6))
    assert mask.shape == (*batch, 1, 3, 6)
    for *i, t, s in np.ndindex(*batch, 3, 6):
        assert mask[(*i, 0, t, s)] == (s <= positions[(*i, t)])


@pytest.mark.parametrize("window", [1, 2, 9])
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_window_mask_shows_what_is_nearer_than_the_window(batch, window):
    positions, key_positions = np.asarray(integers(9, *batch, 3)), np.asarray(integers(9, 5))
    mask = np.asarray(window_mask(positions, key_positions, window))
    assert mask.shape == (*batch, 1, 3, 5)
    for *i, t, s in np.ndindex(*batch, 3, 5):
        distance = abs(int(positions[(*i, t)]) - int(key_positions[s]))
        assert mask[(*i, 0, t, s)] == (distance < window)


@given(arrays(int, (2, 7), elements=st.integers(0, 2)))
def test_documents_are_counted_and_an_end_is_the_first_that_the_next_one_sees(tokens):
    numbers = documents(tokens, 0)
    for row, found in zip(tokens.tolist(), numbers.tolist(), strict=True):
        assert found == [row[: t + 1].count(0) for t in range(7)]


@given(arrays(int, (2, 5), elements=st.integers(0, 2)))
def test_document_mask_shows_the_present_and_the_past_of_a_document(numbers):
    mask = np.asarray(segment_mask(numbers))
    assert mask.shape == (2, 1, 5, 5)
    for b, t, s in np.ndindex(2, 5, 5):
        assert mask[b, 0, t, s] == (s <= t and numbers[b, s] == numbers[b, t])
