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
    exact,
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
key_values = jax.jit(F.key_values, static_argnames="num_heads")
attend_to = jax.jit(F.attend, static_argnames="num_heads")
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


@given(arrays(bool, S), st.sampled_from([1e30, -1e30]))
def test_hidden_keys_have_no_influence_whatever_their_values(seen, huge):
    query, key, value = drawn()
    noisy = (np.where(seen[:, None], x, np.float32(huge)) for x in (key, value))
    assert_same(
        scaled_dot_product_attention(query, *noisy, seen),
        scaled_dot_product_attention(query, key, value, seen),
    )


@pytest.mark.parametrize("huge", [False, True])
def test_gradients_of_hidden_keys_are_exactly_zero(huge):
    query, key, value = drawn()
    seen = np.array([True, False, True, False])
    key, value = (np.where(~seen[:, None] & huge, np.float32(1e30), x) for x in (key, value))

    def total(key, value):
        return (scaled_dot_product_attention(query, key, value, seen)[0] ** 2).sum()

    for gradient in jax.jit(jax.grad(total, argnums=(0, 1)))(key, value):
        assert_all_finite(gradient)
        assert (np.asarray(gradient).any(-1) == seen).all()


# Multi-head attention


@jax.jit
def shared_attend(params, x, mask=None, bias=None):
    return attend(params, x, mask, bias=bias)


def attend(params, x, mask=None, *, norm=F.rms_norm, observe=F.unobserved, **settings):
    of_both = {"num_heads": H, "norm": norm, "observe": observe}
    return F.attend(params, x, F.key_values(params, x, **of_both), mask, **of_both, **settings)


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


HEAD_NORMS = {
    "rms": (F.rms_norm, reference.rms_norm),
    "layer": (F.layer_norm, reference.layer_norm),
    "zero-centred": (
        functools.partial(F.rms_norm, offset=1.0, eps=0.1),
        functools.partial(reference.rms_norm, offset=1.0, eps=0.1),
    ),
}


@pytest.mark.parametrize(("norm", "formula"), HEAD_NORMS.values(), ids=HEAD_NORMS)
def test_heads_are_normed_by_the_norm_that_is_given(norm, formula):
    params, x = heads(G, normed=True), normal(T, D)
    expected = reference.multi_head_attention(*exact((params, x, x, x)), num_heads=H, norm=formula)
    assert_close(jax.jit(functools.partial(attend, norm=norm))(params, x), expected)


def repeated(params):
    """Shared parameters with the kernels of keys and values written out for each query head."""

    def repeat(layer):
        kernel, bias = (
            np.repeat(np.asarray(x).reshape(*x.shape[:-1], G, K), H // G, axis=-2).reshape(
                *x.shape[:-1], H * K
            )
            for x in layer
        )
        return F.LinearParameters(kernel, bias)

    return params._replace(key=repeat(params.key), value=repeat(params.value))


SHAPES = [None, (T,), (T, T), (1, T), (T, 1), (H, T, T), (2, 1, T, T), (2, H, T, T)]
BIASES = [None, normal(T, T), normal(H, 1, T), normal(2, H, T, T)]


@pytest.mark.parametrize(("shape", "bias"), [*zip(SHAPES, 2 * BIASES, strict=True)], ids=str)
def test_masks_and_biases_broadcast_where_heads_share_keys_too(shape, bias):
    """As repeated for each query's head, and as a mask for each sample and head."""
    params, x = heads(G), normal(2, T, D)
    mask = None if shape is None else some_mask(*shape)
    full = None if shape is None else np.broadcast_to(mask, (2, H, T, T))
    shared, short, long = (
        shared_attend(p, x, m, bias)
        for p, m in ((params, mask), (repeated(params), mask), (repeated(params), full))
    )
    assert shared[1].shape == (2, H, T, T)
    assert_close(shared, short, 1e-6)
    assert_close(short, long)


@given(arrays(bool, S), st.sampled_from([1e30, -1e30]))
def test_hidden_places_of_a_memory_have_no_influence_whatever_their_values(seen, huge):
    params, x, memory = heads(G), normal(T, D), normal(S, D, seed=1)
    plain = key_values(params, memory, num_heads=H)
    noisy = F.KeyValues(*(np.where(seen[:, None], a, np.float32(huge)) for a in plain))
    assert_same(*(attend_to(params, x, m, seen, num_heads=H)[0] for m in (plain, noisy)))


def test_heads_that_see_nothing_leave_the_output_bias():
    params, x = heads(), normal(T, D)
    output, weights = shared_attend(params, x, np.zeros((T, T), bool))
    assert_same(output, np.tile(params.output.bias, (T, 1)))
    assert not np.asarray(weights).any()


def test_a_width_that_heads_do_not_divide_is_named():
    with pytest.raises(ValueError, match=r"8 .* 3 heads"):
        multi_head_attention(heads(), *[normal(T, D)] * 3, num_heads=3)


def test_shared_keys_show_and_take_values_by_query_head():
    params, x = heads(G), normal(2, T, D)

    @jax.jit
    def observed():
        seen = {}

        def observe(name, value):
            seen[name] = value
            return jnp.zeros_like(value).at[..., 1].set(1.0) if name == "weights" else value

        return seen, attend(params, x, observe=observe)[1]

    seen, weights = jax.device_get(observed())
    shapes = {name: value.shape for name, value in seen.items()}
    assert shapes["key"] == shapes["value"] == (2, G, T, K)
    assert shapes["query"] == shapes["heads"] == (2, H, T, K)
    assert shapes["weights"] == weights.shape == (2, H, T, T)
    assert_close(seen["weights"], shared_attend(params, x)[1])
    of_second = np.repeat(seen["value"][:, :, 1], H // G, axis=1)
    assert_close(seen["heads"], np.broadcast_to(of_second[:, :, None], (2, H, T, K)))
    assert_same(weights[..., 1], np.ones((2, H, T)))


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


def uniform(query, key, value, mask):
    """An attention that takes no `observe`."""
    weights = jnp.broadcast_to(1 / key.shape[-2], (*query.shape[:-1], key.shape[-2]))
    return jnp.einsum("...ts,...sv->...tv", weights, value), weights


@pytest.mark.parametrize("of_keys", [H, G])
def test_an_attention_of_ones_own_can_be_seen_but_not_changed(of_keys):
    params, x = heads(of_keys), normal(2, T, D)
    settings = {"attention": F.repeating(uniform)}

    @jax.jit
    def results():
        seen = {}
        output, weights = attend(params, x, observe=lambda n, v: seen.setdefault(n, v), **settings)
        return output, weights, seen["weights"], attend(params, x, **settings)[0]

    output, weights, seen, unobserved = results()
    assert_close(output, unobserved)
    assert_close(seen, np.full((2, H, T, T), 1 / T))
    assert_close(weights, seen)

    def change(name, value):
        return 2 * value if name == "weights" else value

    with pytest.raises(ValueError, match="takes no `observe`"):
        jax.eval_shape(lambda: attend(params, x, observe=change, **settings))


def test_an_attention_of_ones_own_sees_every_head_where_heads_share_keys():
    """One that looks at the number of heads and the places of queries: keys are repeated for it."""

    def tilted(query, key, value, mask=None):
        heads, length = query.shape[-3:-1]
        tilt = jnp.arange(1, heads + 1)[:, None, None] * jnp.arange(length)[:, None]
        return F.scaled_dot_product_attention(query, key, value, mask, bias=tilt * jnp.ones(T))

    run = jax.jit(functools.partial(attend, attention=F.repeating(tilted)))
    params, x = heads(G), normal(T, D)
    assert_close(run(params, x), run(repeated(params), x), 1e-6)
