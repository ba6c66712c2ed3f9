"""Pooling: equal to its formulas, blind to padding, 0 and finite without a word."""

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
    exact,
    linear_parameters,
    normal,
    over_batch,
    some_mask,
)
from tlite import functional as F

T, D = 5, 4
PARAMS = linear_parameters(D, 1)
POOLS = {
    "dense": (F.dense_pool, reference.dense_pool),
    "mean": (
        lambda params, x, mask: F.mean_pool(x, mask),
        lambda params, x, mask: reference.mean_pool(x, mask),
    ),
    "attention": (F.attention_pool, reference.attention_pool),
}
each_pool = pytest.mark.parametrize(("pool", "formula"), POOLS.values(), ids=POOLS)
masks = arrays(bool, (T,)).map(jnp.asarray)


@pytest.mark.parametrize("batch", [(), (2, 3)])
@each_pool
def test_pools_are_their_formulas(pool, formula, batch):
    x, mask = normal(*batch, T, D), some_mask(*batch, T)
    expected = over_batch(batch, formula, x, mask, params=PARAMS)
    assert_close(pool(PARAMS, x, mask), expected)


@each_pool
def test_pools_without_bias_are_their_formulas(pool, formula):
    params, x, mask = linear_parameters(D, 1, bias=False), normal(T, D), some_mask(T)
    assert_close(pool(params, x, mask), formula(*exact((params, x, mask))))


@each_pool
@given(masks, st.sampled_from([0.0, 1.0, -100.0, 1e30]))
def test_padding_cannot_change_the_result_by_a_bit_and_has_no_gradient(pool, formula, mask, size):
    x = normal(T, D)
    changed = jnp.where(mask[:, None], x, size * normal(T, D, seed=1))
    weights = normal(*pool(PARAMS, x, mask).shape)

    def loss(params, x):
        return (weights * pool(params, x, mask)).sum()

    assert_same(pool(PARAMS, changed, mask), pool(PARAMS, x, mask))
    by_params, by_x = jax.grad(loss, argnums=(0, 1))(PARAMS, changed)
    assert_all_finite((by_params, by_x))
    assert_close(by_params, jax.grad(loss)(PARAMS, x), 1e-6)
    assert_same(by_x[~mask], jnp.zeros_like(x)[~mask])


@given(masks)
def test_a_text_with_padding_pools_as_its_words_alone(mask):
    x, words = normal(T, D), normal(T, D)[mask]
    everything = jnp.ones(len(words), bool)
    assert_close(F.mean_pool(x, mask), F.mean_pool(words, everything))
    assert_close(F.attention_pool(PARAMS, x, mask), F.attention_pool(PARAMS, words, everything))
    dense = F.dense_pool(PARAMS, x, mask)
    assert_close(dense[mask], F.dense_pool(PARAMS, words, everything))
    assert_same(dense[~mask], jnp.zeros(T)[~mask])


@pytest.mark.parametrize("words", [T, 0], ids=["only padding", "not even padding"])
@each_pool
def test_no_words_pool_to_zeros_with_finite_gradients(pool, formula, words):
    x, mask = normal(T, D)[:words], jnp.zeros(words, bool)
    pooled = pool(PARAMS, x, mask)
    assert_same(pooled, jnp.zeros_like(pooled))
    gradients = jax.grad(lambda params, x: pool(params, x, mask).sum(), argnums=(0, 1))(PARAMS, x)
    assert_same(gradients, jax.tree.map(jnp.zeros_like, (PARAMS, x)))


@given(masks, st.permutations(range(T)).map(np.array))
def test_the_order_of_words_is_kept_by_the_dense_pool_alone(mask, order):
    x = normal(T, D)
    assert_close(F.mean_pool(x[order], mask[order]), F.mean_pool(x, mask))
    assert_close(F.attention_pool(PARAMS, x[order], mask[order]), F.attention_pool(PARAMS, x, mask))
    assert_close(F.dense_pool(PARAMS, x[order], mask[order]), F.dense_pool(PARAMS, x, mask)[order])


def test_attention_with_equal_scores_is_the_mean_and_with_one_large_score_that_word():
    x, mask = normal(T, D), some_mask(T)
    indifferent = F.LinearParameters(jnp.zeros((D, 1)), jnp.array([3.0]))
    assert_close(F.attention_pool(indifferent, x, mask), F.mean_pool(x, mask))
    decided = F.LinearParameters(1e4 * PARAMS.kernel, PARAMS.bias)
    scores = jnp.where(mask, (x @ PARAMS.kernel)[:, 0], -jnp.inf)
    assert_close(F.attention_pool(decided, x, mask), x[scores.argmax()])


@each_pool
def test_pools_under_jit_and_vmap_are_those_of_each_text(pool, formula):
    x, mask = normal(3, T, D), some_mask(3, T)
    mapped = jax.jit(jax.vmap(pool, in_axes=(None, 0, 0)))(PARAMS, x, mask)
    assert_close(mapped, pool(PARAMS, x, mask))


# Sentences

probabilities = arrays(np.float32, (T,), elements=st.floats(0, 1, width=32)).map(jnp.asarray)


@given(probabilities, masks)
def test_the_parabolic_average_is_its_formula(p, mask):
    average = F.parabolic_average(p, mask)
    assert_close(average, reference.parabolic_average(*exact((p, mask))))


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_the_parabolic_average_of_a_batch_is_its_formula_for_each_text(batch):
    p, mask = jax.nn.sigmoid(normal(*batch, T)), some_mask(*batch, T)
    expected = over_batch(batch, reference.parabolic_average, p, mask)
    assert_close(F.parabolic_average(p, mask), expected)
    assert_close(jax.jit(F.parabolic_average)(p, mask), expected)


@given(probabilities, masks)
def test_the_parabolic_average_has_finite_gradients_and_none_where_no_sentence_is(p, mask):
    gradient = jax.grad(F.parabolic_average)(p, mask)
    assert_all_finite(gradient)
    assert_same(gradient[~mask], jnp.zeros(T)[~mask])


@given(probabilities, probabilities, masks)
def test_what_stands_in_place_of_no_sentence_does_not_count(p, other, mask):
    changed = jnp.where(mask, p, other)
    assert_same(F.parabolic_average(changed, mask), F.parabolic_average(p, mask))


@given(probabilities)
def test_the_parabolic_average_is_an_average_and_treats_both_classes_alike(p):
    everything = jnp.ones(T, bool)
    average = F.parabolic_average(p, everything)
    leaning = p[p != 0.5]
    if len(leaning):
        assert leaning.min() - 1e-6 <= average <= leaning.max() + 1e-6
    assert_close(F.parabolic_average(1 - p, everything), 1 - average)


def test_sure_sentences_count_most_and_undecided_ones_not_at_all():
    everything = jnp.ones(3, bool)
    assert_close(F.parabolic_average(jnp.array([0.9, 0.5, 0.5]), everything), 0.9)
    assert F.parabolic_average(jnp.array([0.95, 0.4, 0.4]), everything) > 0.8
    assert F.parabolic_average(jnp.full(3, 0.5), everything) == 0.5
    assert F.parabolic_average(jnp.ones(3), ~everything) == 0.5
    assert F.parabolic_average(jnp.zeros(0), jnp.zeros(0, bool)) == 0.5
