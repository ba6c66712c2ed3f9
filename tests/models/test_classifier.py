"""What the classifier alone has: features of n-grams, word dropout; the rest: test_calls.py."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_close, integers, normal
from tests.helpers.models import call, drawn, replaced
from tlite.models import ClassifierConfig, Embedding, TransformerClassifier, Wide

T, V, C = 6, 7, 3
SMALL = ClassifierConfig(
    vocabulary_size=V,
    num_classes=C,
    context=T,
    width=8,
    num_heads=2,
    dropout=0.5,
    embedding=Embedding(deviation=1.0, scale=False),
)
TOKENS = np.asarray(integers(V, T + 1, T))
KEYS = jax.random.split(jax.random.key(0), T + 1)


def test_features_after_the_context_reach_the_linear_model_alone():
    config = dataclasses.replace(SMALL, wide=Wide(word_rows=10, character_rows=5))
    model = drawn(TransformerClassifier, config)
    model.word_ngrams.weights[...] = words = normal(V + 10, C)
    model.character_ngrams.weights[...] = characters = normal(5, C)
    features = np.array([[0, V + 9, -1, V + 10 + 4, V + 10, V + 10 + 2]] * len(TOKENS))
    both = np.concatenate([TOKENS, features], axis=-1)
    words, characters = np.asarray(words), np.asarray(characters)
    added = (words[0] + words[V + 9]) / 2**0.5 + characters[[0, 2, 4]].sum(0) / 3**0.5
    added += np.asarray(model.word_ngrams.bias) + np.asarray(model.character_ngrams.bias)
    read = jax.jit(lambda model, **noise: model.read(jnp.asarray(TOKENS), **noise))
    assert_close(call(model, both), np.asarray(read(model)) + added)
    assert_close(call(model, both, rng=KEYS), np.asarray(read(model, rng=KEYS)) + added)
    with pytest.raises(ValueError, match="features are missing"):
        call(model, TOKENS)


@pytest.mark.parametrize(("pool", "rate"), [("dense", 0.2), ("mean", 0.5), ("attention", 0.7)])
def test_word_dropout_makes_padding_of_each_word_with_its_rate(pool, rate):
    fields = {"pool.method": pool, "dropout": 0.0, "embedding.word_dropout": rate}
    model, tokens = drawn(TransformerClassifier, replaced(SMALL, fields)), TOKENS[0]
    kept = np.array(list(itertools.product([False, True], repeat=T)))
    possible = np.asarray(call(model, np.where(kept, tokens, -1)))
    number = 2000
    draw = jax.jit(jax.vmap(lambda rng: call(model, tokens, rng=rng)))
    found = np.asarray(draw(jax.random.split(KEYS[0], number)))
    distances = np.abs(found[:, None] - possible).max(-1)
    nearest, second = np.sort(distances, axis=-1)[:, :2].T
    assert nearest.max() < 1e-4 < second.min()  # so it is known which words were kept
    hidden = ~kept[distances.argmin(-1)]
    variance = rate * (1 - rate)
    assert (np.abs(hidden.mean(0) - rate) < 5 * np.sqrt(variance / number)).all()
    together = np.cov(hidden.T)[np.triu_indices(T, 1)]
    assert (np.abs(together) < 5 * variance / np.sqrt(number)).all()
