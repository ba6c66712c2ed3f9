"""Pooling: equal to its formulas, blind to padding, 0 and finite without a word."""

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
    exact,
    linear_parameters,
    normal,
    over_batch,
    some_mask,
)
from tlite import functional as F

T, D = 5, 4
PARAMS = linear_parameters(D, 1)
dense_pool, mean_pool, attention_pool, parabolic_average = map(
    jax.jit, (F.dense_pool, F.mean_pool, F.attention_pool, F.parabolic_average)
)
POOLS = {
    "dense": (dense_pool, reference.dense_pool),
    "mean": (
        lambda params, x, mask: mean_pool(x, mask),
        lambda params, x, mask: reference.mean_pool(x, mask),
    ),
    "attention": (attention_pool, reference.attention_pool),
}
each_pool = pytest.mark.parametrize(("pool", "formula"), POOLS.values(), ids=POOLS)
masks = arrays(bool, (T,))


@functools.cache
def value_and_gradients_of(pool):
    """Of what is pooled, weighted: by the parameters and by the vectors."""

    @jax.jit
    def results(x, mask):
        pooled, pull_back = jax.vjp(lambda params, x: pool(params, x, mask), PARAMS, x)
        return pooled, *pull_back(normal(*pooled.shape))

    return results


@pytest.mark.parametrize(("batch", "bias"), [((), True), ((2, 3), True), ((), False)])
@each_pool
def test_pools_are_their_formulas(pool, formula, batch, bias):
    params, x, mask = linear_parameters(D, 1, bias), normal(*batch, T, D), some_mask(*batch, T)
    expected = over_batch(batch, formula, x, mask, params=params)
    assert_close(pool(params, x, mask), expected)


@each_pool
@given(masks, st.sampled_from([0.0, 1.0, -100.0, 1e30]))
def test_padding_cannot_change_the_result_by_a_bit_and_has_no_gradient(pool, formula, mask, size):
    x, results = np.asarray(normal(T, D)), value_and_gradients_of(pool)
    noise = np.float32(size) * np.asarray(normal(T, D, seed=1))
    pooled, *plain = results(x, mask)
    of_changed, by_params, by_x = results(np.where(mask[:, None], x, noise), mask)
    assert_same(of_changed, pooled)
    assert_all_finite((by_params, by_x))
    assert_close(by_params, plain[0], 1e-6)
    assert_same(np.asarray(by_x)[~mask], np.zeros_like(x)[~mask])


@jax.jit
def pooled_in_each_way(x, mask):
    return [
        F.mean_pool(x, mask),
        F.attention_pool(PARAMS, x, mask),
        F.dense_pool(PARAMS, x, mask),
    ]


@given(masks)
def test_a_text_with_padding_pools_as_its_words_alone(mask):
    x = np.asarray(normal(T, D))
    *pooled, dense = pooled_in_each_way(x, mask)
    *of_words, dense_of_words = pooled_in_each_way(x[mask], np.ones(mask.sum(), bool))
    assert_close(pooled, of_words)
    assert_close(np.asarray(dense)[mask], dense_of_words)
    assert_same(np.asarray(dense)[~mask], np.zeros(T)[~mask])


@pytest.mark.parametrize("words", [T, 0], ids=["only padding", "not even padding"])
@each_pool
def test_no_words_pool_to_zeros_with_finite_gradients(pool, formula, words):
    x, mask = np.asarray(normal(T, D))[:words], np.zeros(words, bool)
    for result in jax.tree.leaves(value_and_gradients_of(pool)(x, mask)):
        assert_same(result, np.zeros(result.shape))


@given(masks, st.permutations(range(T)).map(np.array))
def test_the_order_of_words_is_kept_by_the_dense_pool_alone(mask, order):
    x = np.asarray(normal(T, D))
    *pooled, dense = pooled_in_each_way(x, mask)
    *of_ordered, dense_of_ordered = pooled_in_each_way(x[order], mask[order])
    assert_close(of_ordered, pooled)
    assert_close(dense_of_ordered, np.asarray(dense)[order])


def test_attention_with_equal_scores_is_the_mean_and_with_one_large_score_that_word():
    x, mask = normal(T, D), some_mask(T)
    indifferent = F.LinearParameters(jnp.zeros((D, 1)), jnp.array([3.0]))
    assert_close(attention_pool(indifferent, x, mask), mean_pool(x, mask))
    kernel, x = np.asarray(PARAMS.kernel), np.asarray(x)
    decided = F.LinearParameters(1e4 * kernel, PARAMS.bias)
    scores = np.where(mask, (x @ kernel)[:, 0], -np.inf)
    assert_close(attention_pool(decided, x, mask), x[scores.argmax()])


@each_pool
def test_pools_under_jit_and_vmap_are_those_of_each_text(pool, formula):
    x, mask = normal(3, T, D), some_mask(3, T)
    mapped = jax.jit(jax.vmap(pool, in_axes=(None, 0, 0)))(PARAMS, x, mask)
    assert_close(mapped, pool(PARAMS, x, mask))


# Sentences

probabilities = arrays(np.float32, (T,), elements=st.floats(0, 1, width=32))


@given(probabilities, masks)
def test_the_parabolic_average_is_its_formula(p, mask):
    average = parabolic_average(p, mask)
    assert_close(average, reference.parabolic_average(*exact((p, mask))))


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_the_parabolic_average_of_a_batch_is_its_formula_for_each_text(batch):
    p, mask = jax.jit(jax.nn.sigmoid)(normal(*batch, T)), some_mask(*batch, T)
    expected = over_batch(batch, reference.parabolic_average, p, mask)
    assert_close(parabolic_average(p, mask), expected)


@given(probabilities, masks)
def test_the_parabolic_average_has_finite_gradients_and_none_where_no_sentence_is(p, mask):
    gradient = gradient_of_the_parabolic_average(p, mask)
    assert_all_finite(gradient)
    assert_same(np.asarray(gradient)[~mask], np.zeros(T)[~mask])


gradient_of_the_parabolic_average = jax.jit(jax.grad(F.parabolic_average))


@given(probabilities, probabilities, masks)
def test_what_stands_in_place_of_no_sentence_does_not_count(p, other, mask):
    changed = np.where(mask, p, other)
    assert_same(parabolic_average(changed, mask), parabolic_average(p, mask))


@given(probabilities)
def test_the_parabolic_average_is_an_average_and_treats_both_classes_alike(p):
    everything = np.ones(T, bool)
    average = parabolic_average(p, everything)
    leaning = p[p != 0.5]
    if len(leaning):
        assert leaning.min() - 1e-6 <= average <= leaning.max() + 1e-6
    assert_close(parabolic_average(1 - p, everything), 1 - np.asarray(average))


def test_the_parabolic_average_of_nothing_or_of_undecided_sentences_is_a_half():
    assert parabolic_average(np.full(3, 0.5), np.ones(3, bool)) == 0.5
    assert parabolic_average(np.ones(3), np.zeros(3, bool)) == 0.5
    assert parabolic_average(np.zeros(0), np.zeros(0, bool)) == 0.5
