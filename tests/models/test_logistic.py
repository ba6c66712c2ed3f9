"""Logistic regression on words: the function of its parameters, and it learns which words count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_close, assert_same, integers, normal
from tests.helpers.models import call
from tlite import functional as F
from tlite.models import LogisticConfig, LogisticRegression
from tlite.modules import count_parameters

V, C, T = 7, 3, 5
CONFIG = LogisticConfig(vocabulary_size=V, num_classes=C, context=T)
TOKENS = np.asarray(integers(V + 2, 4, T)) - 2


def drawn():
    """A model with other parameters than the zeros it starts with."""
    leaves, structure = jax.tree.flatten(LogisticRegression(CONFIG))
    return jax.tree.unflatten(structure, [normal(*leaf.shape) for leaf in leaves])


def test_a_model_holds_a_weight_for_each_word_and_class_and_a_bias():
    assert count_parameters(LogisticRegression(CONFIG)) == V * C + C
    large = LogisticConfig(vocabulary_size=7455, num_classes=5)
    assert count_parameters(LogisticRegression(large)) == 7455 * 5 + 5 == 37_280
    assert str(LogisticRegression(large)).splitlines()[-1].startswith("total: 37,280 parameters")


def test_a_new_model_finds_all_classes_alike_whatever_its_key():
    for model in (LogisticRegression(CONFIG), LogisticRegression(CONFIG, key=jax.random.key(1))):
        assert_same(call(model, TOKENS), np.zeros((4, C)))


def test_logits_are_the_function_of_the_parameters():
    model = drawn()
    expected = jax.jit(F.bag_of_words)(model.weights[...], model.bias[...], TOKENS)
    assert_same(call(model, TOKENS), expected)
    assert np.abs(expected).max() > 0.1


def test_a_text_is_the_same_alone_batched_mapped_or_compiled():
    model = drawn()
    batched = np.asarray(call(model, TOKENS))
    assert_close(model(jnp.asarray(TOKENS)), batched)
    assert_close(call(model, TOKENS.reshape(2, 2, T)), batched.reshape(2, 2, C))
    assert_close(jax.jit(jax.vmap(model))(TOKENS), batched)
    for tokens, logits in zip(TOKENS, batched, strict=True):
        assert_close(call(model, tokens), logits)


def test_padding_does_not_change_logits_wherever_it_stands():
    model, rows = drawn(), np.full((4, 3), -1)
    for parts in ((TOKENS, rows), (rows, TOKENS), (rows[:, :1], TOKENS, rows[:, :2])):
        assert_close(call(model, np.concatenate(parts, axis=-1)), call(model, TOKENS))
    assert_same(call(model, np.full_like(TOKENS, -1)), np.tile(model.bias[...], (4, 1)))


def test_a_key_changes_nothing():
    model, keys = drawn(), jax.random.split(jax.random.key(0), 4)
    for key in (keys, keys[0]):
        assert_same(call(model, TOKENS, key=key), call(model, TOKENS))


def test_gradients_reach_the_words_of_the_text_alone():
    tokens, label = jnp.array([2, 5, -1]), jnp.array(0)
    model = LogisticRegression(CONFIG)
    gradient = jax.jit(jax.grad(lambda model: F.cross_entropy(model(tokens), label)[0]))(model)
    assert_same(gradient.weights[...].any(-1), [token in (2, 5) for token in range(V)])
    assert gradient.bias[...].all()


def test_the_word_that_decides_is_learned():
    tokens = integers(V, 200, T)
    labels = jnp.asarray((np.asarray(tokens) == 3).any(-1).astype(int))

    def loss(model):
        total, count = F.cross_entropy(model(tokens), labels)
        return total / count

    start = LogisticRegression(LogisticConfig(vocabulary_size=V, num_classes=2))
    model, losses = jax.jit(lambda model: F.gradient_descent(loss, model, 2.0, 300))(start)
    assert_close(losses[0], np.log(2))
    assert (np.diff(losses) < 0).all()
    fresh = np.asarray(integers(V, 300, T))
    assert (np.asarray(call(model, fresh)).argmax(-1) == (fresh == 3).any(-1)).all()
    weights = np.asarray(model.weights[...])
    assert (weights[:, 1] - weights[:, 0]).argmax() == 3


@pytest.mark.parametrize("context", [0, -1])
def test_a_context_below_1_is_refused(context):
    with pytest.raises(ValueError, match=f"context must be at least 1, not {context}"):
        LogisticConfig(context=context)
