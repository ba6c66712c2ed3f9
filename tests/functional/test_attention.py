"""Attention and masks equal their formulas; masked keys have no influence."""

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
    assert_same,
    attention_parameters,
    exact,
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
def test_attention_equals_its_formula(scores, batch, masked):
    inputs = (*drawn(batch), some_mask(*batch, T, S)) if masked else drawn(batch)
    formula = functools.partial(reference.attention, **scores)
    expected = over_batch(batch, formula, *inputs)
    assert_close(scaled_dot_product_attention(*inputs, **scores), expected)


@given(arrays(bool, (T, S)))
def test_attention_weights_sum_to_one_or_to_zero_if_all_masked(mask):
    output, weights = scaled_dot_product_attention(*drawn(), mask)
    assert_close(np.sum(weights, -1), mask.any(-1).astype(float))
    assert (np.asarray(weights)[~mask] == 0).all()
    assert (np.asarray(output)[~mask.any(-1)] == 0).all()


@pytest.mark.parametrize("blind", [[True, True, True], [False, True, False]], ids=["all", "one"])
def test_fully_masked_queries_have_finite_gradients(blind):
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
def test_masked_keys_have_no_influence_on_any_bit(seen, huge):
    """To the bit, and no gradient."""
    query, key, value = drawn()
    noisy = (np.where(seen[:, None], x, np.float32(huge)) for x in (key, value))
    gradients, results = output_and_gradients(query, *noisy, seen)
    assert_same(results, output_and_gradients(query, key, value, seen)[1])
    for gradient in gradients[1:]:
        assert not np.asarray(gradient)[~seen].any()
        assert_all_finite(gradient)


# Multi-head attention


def head_parameters(num_kv_heads=H, head_dim=K, normed=False):
    kv_dim, norm_dim = num_kv_heads * head_dim, head_dim if normed else None
    return attention_parameters(D, H * head_dim, kv_dim=kv_dim, norm_dim=norm_dim)


HEADS = {
    "plain": {},
    "wide heads": {"head_dim": 5},
    "shared keys": {"num_kv_heads": G},
    "one head of keys": {"num_kv_heads": 1},
    "normed": {"num_kv_heads": G, "normed": True},
    "rotary": {"head_dim": 4},
    "rotary, normed": {"num_kv_heads": G, "head_dim": 4, "normed": True},
}


@pytest.mark.parametrize(("batch", "masked"), [((), False), ((2, 3), True)], ids=["open", "masked"])
@pytest.mark.parametrize("name", HEADS)
def test_multi_head_attention_equals_its_formula(name, batch, masked):
    params, head_dim = head_parameters(**HEADS[name]), HEADS[name].get("head_dim", K)
    inputs = [normal(*batch, n, D, seed=i) for i, n in enumerate((T, S, S))]
    inputs += [some_mask(*batch, H, T, S)] if masked else []
    angles = reference.rotary_angles(7, head_dim) if "rotary" in name else None
    formula = functools.partial(reference.multi_head_attention, num_heads=H, angles=angles)
    expected = over_batch(batch, formula, *inputs, params=params)
    angles = None if angles is None else angles.astype(np.float32)
    kwargs = {"num_heads": H, "angles": angles, "norm": F.rms_norm}
    assert_close(multi_head_attention(params, *inputs, **kwargs), expected)


def test_an_indivisible_width_of_heads_is_named():
    with pytest.raises(ValueError, match=r"8 .* 3 heads"):
        multi_head_attention(head_parameters(), *[normal(T, D)] * 3, num_heads=3)


def test_tapped_scores_exclude_the_mask_and_edits_apply():
    query, key, value, mask = *drawn(), some_mask(T, S)
    tapped = {}
    attend = functools.partial(F.scaled_dot_product_attention, query, key, value, mask)
    plain = attend(scale=2.0, softcap=1.5, bias=normal(T, S, seed=4), tap=tapped.setdefault)
    scores = reference.soft_cap(2 * exact(query) @ exact(key).T, 1.5) + exact(normal(T, S, seed=4))
    assert_close(tapped["scores"], scores)
    assert_same(tapped["weights"], plain[1])
    softmax = np.where(mask, np.exp(3 * scores), 0)
    edited = attend(tap=lambda name, x: 3 * jnp.array(tapped[name]) if name == "scores" else x)
    assert_close(edited[1], softmax / softmax.sum(-1, keepdims=True))


@pytest.mark.parametrize("batch", BATCHES)
def test_update_cache_drops_entries_past_the_end(batch):
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


# Masks

causal_mask = jax.jit(F.causal_mask, static_argnums=0)
padding_mask = jax.jit(F.padding_mask, static_argnums=1)
cache_mask = jax.jit(F.cache_mask, static_argnums=1)
window_mask = jax.jit(F.window_mask, static_argnums=2)
documents = jax.jit(F.segment_ids, static_argnums=1)
segment_mask = jax.jit(F.segment_mask)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_causal_mask_allows_the_present_and_the_past(length):
    mask = np.asarray(causal_mask(length))
    assert mask.shape == (length, length)
    assert all(mask[t, s] == (s <= t) for t in range(length) for s in range(length))


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_padding_mask_excludes_padding_keys(batch):
    tokens = np.asarray(integers(3, *batch, 5))
    mask = np.asarray(padding_mask(tokens, 0))
    assert mask.shape == (*batch, 1, 1, 5)
    assert (mask[..., 0, 0, :] == (tokens != 0)).all()


@given(st.lists(st.none() | arrays(bool, (2, 3)), max_size=4))
def test_combine_masks_is_their_conjunction(masks):
    combined = F.combine_masks(*(None if mask is None else jax.device_put(mask) for mask in masks))
    given_masks = [mask for mask in masks if mask is not None]
    if given_masks:
        assert (combined == np.logical_and.reduce(given_masks)).all()
    else:
        assert combined is None


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_cache_mask_allows_positions_up_to_the_query(batch):
    positions = np.asarray(integers(4, *batch, 3))
    mask = np.asarray(cache_mask(positions, 6))
    assert mask.shape == (*batch, 1, 3, 6)
    for *i, t, s in np.ndindex(*batch, 3, 6):
        assert mask[(*i, 0, t, s)] == (s <= positions[(*i, t)])


@pytest.mark.parametrize("window", [1, 2, 9])
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_window_mask_allows_distances_below_the_window(batch, window):
    positions, key_positions = np.asarray(integers(9, *batch, 3)), np.asarray(integers(9, 5))
    mask = np.asarray(window_mask(positions, key_positions, window))
    assert mask.shape == (*batch, 1, 3, 5)
    for *i, t, s in np.ndindex(*batch, 3, 5):
        distance = abs(int(positions[(*i, t)]) - int(key_positions[s]))
        assert mask[(*i, 0, t, s)] == (distance < window)


@given(arrays(int, (2, 7), elements=st.integers(0, 2)))
def test_an_end_token_belongs_to_the_next_document(tokens):
    numbers = documents(tokens, 0)
    for row, actual in zip(tokens.tolist(), numbers.tolist(), strict=True):
        assert actual == [row[: t + 1].count(0) for t in range(7)]


@given(arrays(int, (2, 5), elements=st.integers(0, 2)))
def test_segment_mask_is_causal_within_each_document(numbers):
    mask = np.asarray(segment_mask(numbers))
    assert mask.shape == (2, 1, 5, 5)
    for b, t, s in np.ndindex(2, 5, 5):
        assert mask[b, 0, t, s] == (s <= t and numbers[b, s] == numbers[b, t])
