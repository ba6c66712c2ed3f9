"""Attention: equal to the formula and to Flax's; masks hide what they hide."""

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
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
    own_places,
    some_mask,
)
from tlite import functional as F

T, S, K, V = 3, 4, 2, 5
D, H = 6, 2
BATCHES = [(), (2, 3)]


def drawn(batch=(), queries=T, keys=S, width=K, values=V):
    """Query, key and value."""
    return (
        normal(*batch, queries, width, seed=1),
        normal(*batch, keys, width, seed=2),
        normal(*batch, keys, values, seed=3),
    )


def drawn_for_heads(batch=()):
    return drawn(batch, width=D, values=D)


scaled_dot_product_attention = jax.jit(
    F.scaled_dot_product_attention, static_argnames=("scale", "softcap")
)
multi_head_attention = jax.jit(F.multi_head_attention, static_argnames="num_heads")
compiled_attend = jax.jit(F.attend, static_argnames=("num_heads", "norm"))
key_values = jax.jit(F.key_values, static_argnames=("num_heads", "norm"))
write = jax.jit(F.write)
rotary_angles = jax.jit(F.rotary_angles, static_argnums=(0, 1))


# Attention


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", BATCHES)
def test_attention_is_its_formula(batch, masked):
    inputs = (*drawn(batch), some_mask(*batch, T, S)) if masked else drawn(batch)
    expected = over_batch(batch, reference.attention, *inputs)
    assert_close(scaled_dot_product_attention(*inputs), expected)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_that_of_flax(masked):
    query, key, value = drawn((2, H), values=K)
    mask = some_mask(2, H, T, S) if masked else None
    expected = jax.jit(nnx.dot_product_attention)(
        *(np.swapaxes(x, 1, 2) for x in (query, key, value)), mask=mask
    )
    output, _ = scaled_dot_product_attention(query, key, value, mask)
    assert_close(output, np.swapaxes(expected, 1, 2))


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


@pytest.mark.parametrize("shape", [(T, S), (1, S), (2, 1, 1, S), (2, H, T, S), (H, 1, S), (T, 1)])
def test_masks_broadcast(shape):
    inputs, mask = drawn((2, H)), some_mask(*shape)
    full = np.broadcast_to(mask, (2, H, T, S))
    assert_close(
        scaled_dot_product_attention(*inputs, mask), scaled_dot_product_attention(*inputs, full)
    )


def test_padding_has_no_influence():
    tokens = np.array([[5, 6, 0, 0], [7, 0, 0, 0]])
    params, x = attention_parameters(D, D), normal(2, 4, D)
    noise = np.where((tokens == 0)[..., None], 100 * np.asarray(normal(2, 4, D, seed=5)), x)
    mask = F.padding_mask(jnp.asarray(tokens), 0)
    plain, noisy = (
        multi_head_attention(params, x, other, other, mask, num_heads=H)[0] for other in (x, noise)
    )
    assert_same(plain, noisy)


SCORES = {
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 0.8},
    "bias": {"bias": normal(T, S, seed=4)},
    "all": {"scale": 2.0, "softcap": 1.5, "bias": normal(T, S, seed=4)},
}
each_way_to_score = pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES)


@pytest.mark.parametrize("masked", [False, True])
@each_way_to_score
def test_scaled_bounded_and_biased_scores_are_their_formula(scores, masked):
    inputs = (*drawn((2,)), some_mask(2, T, S)) if masked else drawn((2,))
    formula = functools.partial(reference.attention, **scores)
    expected = over_batch((2,), formula, *inputs)
    assert_close(scaled_dot_product_attention(*inputs, **scores), expected)
    plain = scaled_dot_product_attention(*inputs)[0]
    assert np.abs(plain - expected[0]).max() > 1e-2


def test_a_scale_of_one_over_the_root_of_the_width_is_the_default():
    expected = scaled_dot_product_attention(*drawn(width=4))
    assert_close(scaled_dot_product_attention(*drawn(width=4), scale=0.5), expected, 1e-6)


# Multi-head attention


@pytest.mark.parametrize("head_width", [D // H, 5])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", BATCHES)
def test_multi_head_attention_is_its_formula(batch, masked, head_width):
    params = attention_parameters(D, H * head_width)
    inputs = drawn_for_heads(batch)
    if masked:
        inputs = (*inputs, some_mask(*batch, H, T, S))
    formula = functools.partial(reference.multi_head_attention, num_heads=H)
    expected = over_batch(batch, formula, *inputs, params=params)
    assert_close(multi_head_attention(params, *inputs, num_heads=H), expected)


def test_multi_head_attention_with_rotary_positions_is_its_formula():
    params, inputs = attention_parameters(D, H * 4), drawn_for_heads()
    expected = reference.multi_head_attention(
        *exact((params, *inputs)), num_heads=H, angles=reference.rotary_angles(7, 4)
    )
    angles = rotary_angles(7, 4)
    assert_close(multi_head_attention(params, *inputs, num_heads=H, angles=angles), expected)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_multi_head_attention_is_that_of_flax(masked, bias):
    def without_head_axes(layer):
        biases = layer.bias.reshape(D) if bias else None
        return F.LinearParameters(layer.kernel.reshape(D, D), biases)

    @jax.jit
    def results(*inputs, mask):
        draw = jax.nn.initializers.normal()
        flax = nnx.MultiHeadAttention(
            H, D, use_bias=bias, bias_init=draw, decode=False, rngs=nnx.Rngs(0)
        )
        layers = (flax.query, flax.key, flax.value, flax.out)
        params = F.AttentionParameters(*map(without_head_axes, layers))
        ours, _ = F.multi_head_attention(params, *inputs, mask, num_heads=H)
        return ours, flax(*inputs, mask=mask)

    mask = some_mask(2, H, T, S) if masked else None
    assert_close(*results(*drawn_for_heads((2,)), mask=mask))


@pytest.mark.parametrize("shape", [(T, S), (2, 1, 1, S), (2, H, T, S)])
def test_masks_broadcast_over_heads(shape):
    params, inputs, mask = attention_parameters(D, D), drawn_for_heads((2,)), some_mask(*shape)
    full = np.broadcast_to(mask, (2, H, T, S))
    short, long = (multi_head_attention(params, *inputs, m, num_heads=H) for m in (mask, full))
    assert_close(short, long)


def test_heads_that_see_nothing_leave_the_output_bias():
    params, inputs = attention_parameters(D, D), drawn_for_heads()
    output, weights = multi_head_attention(params, *inputs, np.zeros((T, S), bool), num_heads=H)
    assert_same(output, np.tile(params.output.bias, (T, 1)))
    assert not np.asarray(weights).any()


def test_a_width_that_heads_do_not_divide_is_named():
    with pytest.raises(ValueError, match=r"6 .* 4 heads"):
        multi_head_attention(attention_parameters(D, D), *drawn_for_heads(), num_heads=4)


@pytest.mark.parametrize("batch", BATCHES)
def test_merging_heads_undoes_splitting_them(batch):
    x = np.asarray(normal(*batch, T, D))
    heads, merged = jax.jit(lambda x: (F.split_heads(x, H), F.merge_heads(F.split_heads(x, H))))(x)
    assert_same(np.asarray(heads)[..., 1, :, 0], x[..., D // H])
    assert_same(merged, x)


def test_attention_under_jit_and_vmap_is_the_batched_one():
    params, inputs, mask = attention_parameters(D, D), drawn_for_heads((2,)), some_mask(2, H, T, S)

    def attend(*inputs):
        return multi_head_attention(params, *inputs, num_heads=H)

    assert_close(jax.jit(jax.vmap(attend))(*inputs, mask), attend(*inputs, mask))


# Keys and values as an argument: a cache's, a memory's


CAUSAL = np.tri(5, dtype=bool)


@jax.jit
def cached_attention(params, x, cache, start, mask=None, angles=None):
    """Attention of what comes at `start`, causal unless a mask is given; and the cache with it."""
    settings = {"num_heads": H, "angles": angles}
    cache = F.write(cache, F.key_values(params, x, **settings), start)
    if mask is None:
        mask = F.cache_mask(F.positions_from(start, x.shape[-2]), cache.key.shape[-2])
    return F.attend(params, x, cache, mask, **settings)[0], cache


@pytest.mark.parametrize("rotary", [False, True])
def test_cached_attention_of_pieces_is_causal_attention_of_the_whole(rotary):
    params, x, angles = attention_parameters(D, H * 4), normal(2, 5, D), rotary_angles(8, 4)
    whole, _ = multi_head_attention(
        params, x, x, x, CAUSAL, num_heads=H, angles=angles if rotary else None
    )
    cache = F.KeyValues(normal(2, H, 8, 4), normal(2, H, 8, 4))
    # The last piece starts anew at another place for each sample.
    for starts, length in [((0, 0), 2), ((2, 2), 1), ((3, 3), 2), ((3, 1), 1)]:
        rows = np.add.outer(starts, range(length))
        piece, expected = (
            np.take_along_axis(np.asarray(y), rows[..., None], axis=1) for y in (x, whole)
        )
        turned = np.asarray(angles)[rows][:, None] if rotary else None
        output, cache = cached_attention(params, piece, cache, np.array(starts), angles=turned)
        assert_close(output, expected)


def test_sequences_that_share_a_cache_see_their_own_places_by_the_mask():
    params, x = attention_parameters(D, D), normal(2, 3, 4, D)  # three sequences of four tokens
    whole, _ = multi_head_attention(params, x, x, x, np.tri(4, dtype=bool), num_heads=H)
    cache = F.KeyValues(*[np.zeros((2, H, 12, D // H), np.float32)] * 2)
    for t in range(4):
        piece = np.asarray(x)[:, :, t], cache, np.int32(3 * t), own_places(3, 4, t)
        output, cache = cached_attention(params, *piece)
        assert_close(output, np.asarray(whole)[:, :, t])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("head_width", [D // H, 5])
@pytest.mark.parametrize("batch", BATCHES)
def test_attention_on_keys_and_values_made_before_is_attention_on_the_memory(
    batch, head_width, masked
):
    params = attention_parameters(D, H * head_width)
    x, memory = normal(*batch, T, D), normal(*batch, S, D, seed=1)
    mask = some_mask(*batch, 1, 1, S) if masked else None
    seen = key_values(params, memory, num_heads=H)
    assert seen.key.shape == seen.value.shape == (*batch, H, S, head_width)
    expected = multi_head_attention(params, x, memory, memory, mask, num_heads=H)
    assert_same(compiled_attend(params, x, seen, mask, num_heads=H), expected)


@given(arrays(bool, S), st.sampled_from([1e30, -1e30]))
def test_hidden_places_of_a_memory_have_no_influence_whatever_their_values(seen, huge):
    params, x, memory = attention_parameters(D, D), normal(T, D), normal(S, D, seed=1)
    plain = key_values(params, memory, num_heads=H)
    noisy = F.KeyValues(*(np.where(seen[:, None], a, np.float32(huge)) for a in plain))
    assert_same(*(compiled_attend(params, x, m, seen, num_heads=H)[0] for m in (plain, noisy)))


# Options: shared keys, norms of queries and keys, a function of one's own

G, WIDE = 2, 4  # two heads of keys for four of queries


def grouped(normed=None):
    return attention_parameters(D, WIDE * K, of_keys=G * K, normed=normed)


def repeated(params):
    """Grouped parameters with the kernels of keys and values written out for each query head."""

    def repeat(layer):
        kernel, bias = (
            np.repeat(np.asarray(x).reshape(*x.shape[:-1], G, K), WIDE // G, axis=-2).reshape(
                *x.shape[:-1], WIDE * K
            )
            for x in layer
        )
        return F.LinearParameters(kernel, bias)

    return params._replace(key=repeat(params.key), value=repeat(params.value))


def attend(params, x, mask=None, **settings):
    heads = {"num_heads": WIDE, "observe": settings.get("observe", F.unobserved)}
    return F.attend(params, x, F.key_values(params, x, **heads), mask, num_heads=WIDE, **settings)


shared_attend = jax.jit(attend)

MASKS = {"open": None} | {
    str(shape): some_mask(*shape)
    for shape in [(T,), (T, T), (1, T), (T, 1), (WIDE, T, T), (2, 1, T, T), (2, WIDE, T, T)]
}
BIASES = [None, normal(T, T), normal(WIDE, 1, T), normal(2, WIDE, T, T)]
each_mask = pytest.mark.parametrize(
    ("mask", "bias"), [*zip(MASKS.values(), 2 * BIASES, strict=True)], ids=MASKS
)


@each_mask
def test_shared_keys_are_keys_repeated_for_each_query_head(mask, bias):
    params, x = grouped(), normal(2, T, D)
    assert key_values(params, x, num_heads=WIDE).key.shape == (2, G, T, K)
    shared, full = (shared_attend(p, x, mask, bias=bias) for p in (params, repeated(params)))
    assert shared[1].shape == (2, WIDE, T, T)
    assert_close(shared, full, 1e-6)


@pytest.mark.parametrize("normed", [None, K], ids=["plain", "normed"])
@pytest.mark.parametrize("rotary", [False, True])
def test_shared_keys_and_norms_of_heads_are_their_formula(rotary, normed):
    params, x, mask = grouped(normed), normal(T, D), some_mask(WIDE, T, T)
    settings = {"num_heads": WIDE, "angles": rotary_angles(7, K) if rotary else None}
    expected = reference.multi_head_attention(*exact((params, x, x, x)), mask, **settings)
    assert_close(multi_head_attention(params, x, x, x, mask, **settings), expected)


@pytest.mark.parametrize("name", ["layer_norm", "zero_centred_rms_norm"])
def test_heads_are_normed_by_the_norm_that_is_given(name):
    params, x = grouped(normed=K), normal(T, D)
    norm = functools.partial(getattr(F, name), eps=0.1)
    formula = functools.partial(getattr(reference, name), eps=0.1)
    seen = key_values(params, x, num_heads=WIDE, norm=norm)
    expected = reference.multi_head_attention(
        *exact((params, x, x, x)), num_heads=WIDE, norm=formula
    )
    assert_close(compiled_attend(params, x, seen, num_heads=WIDE, norm=norm), expected)


def test_one_head_of_keys_serves_all_queries():
    params, x = attention_parameters(D, WIDE * K, of_keys=K), normal(T, D)
    expected = reference.multi_head_attention(*exact((params, x, x, x)), num_heads=WIDE)
    assert_close(multi_head_attention(params, x, x, x, num_heads=WIDE), expected)


def test_shared_keys_show_and_take_values_by_query_head():
    params, x = grouped(), normal(2, T, D)

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
    assert shapes["query"] == shapes["heads"] == (2, WIDE, T, K)
    assert shapes["weights"] == weights.shape == (2, WIDE, T, T)
    assert_close(seen["weights"], shared_attend(params, x)[1])
    of_second = np.repeat(seen["value"][:, :, 1], WIDE // G, axis=1)
    assert_close(seen["heads"], np.broadcast_to(of_second[:, :, None], (2, WIDE, T, K)))
    assert_same(weights[..., 1], np.ones((2, WIDE, T)))


def test_shared_keys_in_a_cache_are_those_of_the_whole():
    params, x = grouped(normed=K), normal(2, 5, D)
    whole, _ = shared_attend(params, x, CAUSAL)
    cache = F.KeyValues(normal(2, G, 8, K), normal(2, G, 8, K))

    @jax.jit
    def extended(piece, cache, rows):
        new = F.key_values(params, piece, num_heads=WIDE)
        cache = F.write(cache, new, rows[:, 0])
        output, _ = F.attend(params, piece, cache, F.cache_mask(rows, 8), num_heads=WIDE)
        return output, cache

    for starts, length in [((0, 0), 2), ((2, 1), 2), ((4, 3), 1)]:
        rows = np.add.outer(starts, range(length))
        piece, expected = (
            np.take_along_axis(np.asarray(y), rows[..., None], axis=1) for y in (x, whole)
        )
        output, cache = extended(piece, cache, rows)
        assert_close(output, expected)


@pytest.mark.parametrize("batch", BATCHES)
def test_writing_puts_new_keys_and_values_at_the_places_of_each_sample(batch):
    cache = F.KeyValues(normal(*batch, H, 6, K), normal(*batch, H, 6, K, seed=1))
    new = F.KeyValues(normal(*batch, H, 2, K), normal(*batch, H, 2, K, seed=1))
    start = np.asarray(np.random.default_rng(0).integers(0, 5, batch))
    for before, added, after in zip(cache, new, write(cache, new, start), strict=True):
        expected = np.array(before)
        for i in np.ndindex(*batch):
            expected[i][:, int(start[i]) : int(start[i]) + 2] = np.asarray(added)[i]
        assert_same(after, expected)


def test_writing_at_one_place_is_for_all_samples():
    cache, new = (F.KeyValues(*[normal(2, H, n, K)] * 2) for n in (6, 2))
    assert_same(write(cache, new, np.int32(3)), write(cache, new, np.array([3, 3])))


class OwnAttention(NamedTuple):
    query: F.LinearParameters
    key: F.LinearParameters
    value: F.LinearParameters
    output: F.LinearParameters
    own: Any = None


def uniform(query, key, value, mask):
    """An attention that takes no `observe`."""
    weights = jnp.broadcast_to(1 / key.shape[-2], (*query.shape[:-1], key.shape[-2]))
    return jnp.einsum("...ts,...sv->...tv", weights, value), weights


both_kinds_of_keys = pytest.mark.parametrize("of_keys", [None, G * K], ids=["own", "shared"])


@both_kinds_of_keys
def test_an_attention_of_ones_own_can_be_seen_but_not_changed(of_keys):
    params, x = attention_parameters(D, WIDE * K, of_keys=of_keys), normal(2, T, D)
    settings = {"attention": uniform}

    @jax.jit
    def results():
        seen = {}
        output, weights = attend(params, x, observe=lambda n, v: seen.setdefault(n, v), **settings)
        return output, weights, seen["weights"], attend(params, x, **settings)[0]

    output, weights, seen, unobserved = results()
    assert_close(output, unobserved)
    assert_close(seen, np.full((2, WIDE, T, T), 1 / T))
    assert_close(weights, seen)

    def change(name, value):
        return 2 * value if name == "weights" else value

    with pytest.raises(ValueError, match="takes no `observe`"):
        jax.eval_shape(lambda: attend(params, x, observe=change, **settings))


@both_kinds_of_keys
def test_an_attention_with_parameters_of_its_own_gets_them_first(of_keys):
    plain, x = attention_parameters(D, WIDE * K, of_keys=of_keys), normal(2, T, D)
    params = OwnAttention(*plain[:4], own=SimpleNamespace(temperature=3.0))

    def tempered(own, query, key, value, mask, observe=F.unobserved):
        query = query / own.temperature
        return F.scaled_dot_product_attention(query, key, value, mask, observe=observe)

    colder = functools.partial(F.scaled_dot_product_attention, scale=1 / (3 * np.sqrt(K)))

    @jax.jit
    def results():
        seen, mask = {}, F.causal_mask(T)
        settings = {"attention": tempered, "observe": lambda n, v: seen.setdefault(n, v)}
        output, weights = attend(params, x, mask, **settings)
        return output, weights, seen["weights"], attend(plain, x, mask, attention=colder)[0]

    output, weights, seen, expected = results()
    assert_close(output, expected)
    assert_close(seen, weights)


def test_bind_gives_a_function_its_own_parameters_if_there_are_any():
    own = SimpleNamespace(own=2.0)
    assert F.bind(jnp.add, own)(1.0) == 3
    assert F.bind(jnp.add, SimpleNamespace()) is jnp.add
    assert F.bind(jnp.add, SimpleNamespace(own=None)) is jnp.add


def test_an_attention_of_ones_own_sees_every_head_where_heads_share_keys():
    """One that looks at the number of heads and the places of queries: keys are repeated for it."""

    def tilted(query, key, value, mask=None):
        heads, length = query.shape[-3], query.shape[-2]
        tilt = jnp.arange(1, heads + 1)[:, None, None] * jnp.arange(length)[:, None]
        return F.scaled_dot_product_attention(query, key, value, mask, bias=tilt * jnp.ones(5))

    shared, x = attention_parameters(8, 8, of_keys=4), normal(5, 8)

    @jax.jit
    def results():
        seen = F.key_values(shared, x, num_heads=4)
        assert seen.key.shape[-3] == 2
        repeated = F.KeyValues(*(jnp.repeat(a, 2, axis=-3) for a in seen))
        both = seen, repeated
        return [F.attend(shared, x, of, num_heads=4, attention=tilted)[0] for of in both]

    assert_close(*results())
