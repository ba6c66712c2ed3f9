"""Attention: equal to its formula, blind to what is hidden, with rows that a cache keeps."""

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
multi_head_attention = jax.jit(F.multi_head_attention, static_argnames="num_heads")
write = jax.jit(F.write)
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
    assert_close(multi_head_attention(params, *inputs, num_heads=H, angles=angles), expected)


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
    """Takes no `observe`; looks at the number of heads and at the places of queries."""
    assert query.shape[-3:-1] == key.shape[-3:-1] == (H, T)
    return F.scaled_dot_product_attention(query, key, value, mask, bias=jnp.asarray(TILT))


def attend(params, x, observe=F.unobserved):
    settings = {"num_heads": H, "observe": observe}
    keys = F.key_values(params, x, **settings)
    return F.attend(params, x, keys, attention=F.repeating(tilted), **settings)


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
    with pytest.raises(ValueError, match="takes no `observe`"):
        attend(params, x, lambda name, v: 2 * v if name == "weights" else v)
