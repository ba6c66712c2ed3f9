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

T, S, K, V = 3, 4, 2, 5  # queries, keys, their width, width of values
D, H, G = 6, 4, 2  # width, query heads, key-value heads
BATCHES = [(), (2, 3)]


def drawn(batch=()):
    """Return queries, keys and values."""
    shapes = (T, K), (S, K), (S, V)
    return tuple(normal(*batch, *shape, seed=seed) for seed, shape in enumerate(shapes, 1))


scaled_dot_product_attention = jax.jit(
    F.scaled_dot_product_attention, static_argnames=("scale", "softcap")
)
multi_head_attention = jax.jit(F.multi_head_attention, static_argnames=("num_heads", "norm"))
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
    query, key, value = drawn()
    noisy = (np.where(seen[:, None], x, np.float32(huge)) for x in (key, value))
    gradients, results = output_and_gradients(query, *noisy, seen)
    assert_same(results, output_and_gradients(query, key, value, seen)[1])
    for gradient in gradients[1:]:
        assert not np.asarray(gradient)[~seen].any()
        assert_all_finite(gradient)


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


def test_heads_and_masks_that_do_not_fit_are_errors():
    with pytest.raises(ValueError, match=r"8 .* 3 heads"):
        multi_head_attention(head_parameters(), *[normal(T, D)] * 3, num_heads=3)
    with pytest.raises(ValueError, match=f"8 keys, but there are {S}"):
        scaled_dot_product_attention(*drawn(), jnp.ones((T, 8), bool))


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
    for start in (starts, np.int32(3)):  # a scalar start is that of every sample
        all_starts = np.broadcast_to(start, batch)
        updated = jax.jit(F.update_cache)(cache, new, start)
        for before, added, after in zip(cache, new, updated, strict=True):
            expected = np.array(before)
            for i in np.ndindex(*batch):
                for row in range(min(3, 6 - all_starts[i])):
                    expected[i][:, all_starts[i] + row] = np.asarray(added)[i][:, row]
            assert_same(after, expected)


@pytest.mark.parametrize("batch", BATCHES)
def test_masks_equal_their_definitions(batch):
    tokens, causal = np.asarray(integers(3, *batch, 5)), np.tri(5, dtype=bool)
    ids = (tokens == 0).cumsum(-1)
    assert_same(F.causal_mask(5), causal)
    assert_same(F.segment_ids(jnp.asarray(tokens), 0), ids)
    assert_same(F.padding_mask(jnp.asarray(tokens), 0), (tokens != 0)[..., None, None, :])
    same_segment = ids[..., :, None] == ids[..., None, :]
    assert_same(F.segment_mask(jnp.asarray(ids)), (causal & same_segment)[..., None, :, :])
    positions, key_positions = np.asarray(integers(9, *batch, 3)), np.asarray(integers(9, 5))
    visible = np.arange(6) <= positions[..., None]
    assert_same(F.cache_mask(jnp.asarray(positions), 6), visible[..., None, :, :])
    distances = np.abs(positions[..., None] - key_positions)
    for window in (1, 2, 9):
        mask = F.window_mask(jnp.asarray(positions), jnp.asarray(key_positions), window)
        assert_same(mask, (distances < window)[..., None, :, :])
    real, own = F.padding_mask(jnp.asarray(tokens), 0), F.causal_mask(5)
    assert_same(F.combine_masks(None, real, own), np.asarray(real) & np.asarray(own))
    assert F.combine_masks(None) is None
