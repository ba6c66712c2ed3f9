"""The classifier: counted by hand, blind to padding, the same batched; formula: test_options.py."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import (
    assert_all_finite,
    assert_close,
    assert_same,
    integers,
    normal,
    some_mask,
)
from tests.helpers.models import call, drawn
from tlite import functional as F
from tlite.functional import layers
from tlite.models import ClassifierConfig, TransformerClassifier
from tlite.modules import count_parameters

KEY = jax.random.key(0)
T, V, C = 6, 7, 3
SMALL = ClassifierConfig(
    vocabulary_size=V,
    num_classes=C,
    context=T,
    width=8,
    num_heads=2,
    dropout=0.5,
    embedding_deviation=1.0,
)
BLOCK = (4 * 8 * 8 + 8) + (2 * 8 * 32 + 32 + 8) + 2 * 2 * 8
SMALL_COUNT = 7 * 8 + BLOCK + 9 + 6 * 3 + 3
LENGTHS = range(T + 1)
TOKENS = np.asarray(integers(V, T + 1, T))
PREFIXES = np.where(np.arange(T) < np.array(LENGTHS)[:, None], TOKENS, -1)
HOLES = np.where(some_mask(T + 1, T), TOKENS, -1)
KEYS = jax.random.split(KEY, T + 1)

# Each switch, and by how many parameters it changes the small model.
SWITCHES = {
    "dense": ({}, 0),
    "mean": ({"aggregation": "mean"}, -9 - 6 * 3 + 8 * 3),
    "attention": ({"aggregation": "attention"}, -6 * 3 + 8 * 3),
    "two blocks": ({"num_blocks": 2}, BLOCK),
    "norm first, mean": ({"norm_first": True, "aggregation": "mean"}, 16 - 9 - 6 * 3 + 8 * 3),
    "rms, learned": ({"norm": "rms", "positions": "learned"}, -2 * 8 + T * 8),
    "rotary, qkv_bias": ({"positions": "rotary", "qkv_bias": True}, 3 * 8),
    "no bias": ({"bias": False}, -(8 + 32 + 8 + 2 * 8) - 1 - 3),
    "head_width": ({"head_width": 6, "aggregation": "mean"}, 4 * 8 * 4 - 9 - 6 * 3 + 8 * 3),
}
each_switch = pytest.mark.parametrize(("switches", "change"), SWITCHES.values(), ids=SWITCHES)
each_aggregation = pytest.mark.parametrize("aggregation", ["dense", "mean", "attention"])
some_switches = pytest.mark.parametrize("name", ["dense", "mean", "attention", "no bias"])


@functools.cache
def small(**switches):
    return drawn(TransformerClassifier, dataclasses.replace(SMALL, **switches))


@functools.cache
def prefix_logits(**switches):
    return np.asarray(call(small(**switches), PREFIXES))


@jax.jit
def gradient(model, tokens, key=None):
    """Of the loss of the first class, each text weighted by its place."""

    def loss(model):
        labels, weights = jnp.zeros(len(tokens), int), 1.0 + jnp.arange(len(tokens))
        return F.cross_entropy(model(tokens, key=key), labels, weights)[0]

    return jax.grad(loss)(model)


# Counts


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (ClassifierConfig(vocabulary_size=7455, num_classes=5), 251_456),
        (ClassifierConfig(vocabulary_size=7455, num_classes=5, qkv_bias=True), 251_552),
        (
            ClassifierConfig(vocabulary_size=1000, num_classes=3, num_blocks=2, context=10),
            57_282,
        ),
    ],
)
def test_models_hold_as_many_parameters_as_counted_by_hand(config, count):
    explicit = {"width": 32, "aggregation": "dense"}
    assert dataclasses.replace(config, **explicit) == config
    model = jax.eval_shape(lambda: TransformerClassifier(config, key=KEY))
    assert count_parameters(model) == count


def test_the_parts_of_a_model_hold_as_many_parameters_as_counted_by_hand():
    config = ClassifierConfig(vocabulary_size=7455, num_classes=5)
    model = jax.eval_shape(lambda: TransformerClassifier(config, key=KEY))
    table, attention, feed_forward = 7455 * 32, 4 * 32 * 32 + 32, 2 * 32 * 128 + 128 + 32
    parts = {model.embedding: table, model.blocks[0]: attention + feed_forward + 4 * 32}
    parts |= {model.pool: 32 + 1, model.head: 50 * 5 + 5}
    for part, count in parts.items():
        assert count_parameters(part) == count
    assert sum(parts.values()) == count_parameters(model)


@each_switch
def test_switches_change_the_count_as_by_hand_and_give_logits(switches, change):
    config = dataclasses.replace(SMALL, **switches)
    model = jax.eval_shape(lambda: TransformerClassifier(config, key=KEY))
    assert count_parameters(model) == SMALL_COUNT + change
    assert jax.eval_shape(call, model, PREFIXES).shape == (T + 1, C)


def test_words_and_pairs_of_words_have_a_weight_for_each_class():
    assert count_parameters(small(bigrams=10)) == SMALL_COUNT + (V + 10) * C + C


def test_words_and_ngrams_have_a_weight_for_each_class():
    words, characters = (V + 10) * C + C, 5 * C + C
    rows = {"word_ngram_rows": 10, "character_ngram_rows": 5}
    assert count_parameters(small(word_ngram_rows=10)) == SMALL_COUNT + words
    assert count_parameters(small(**rows)) == SMALL_COUNT + words + characters


def test_features_after_the_context_reach_the_linear_model_alone():
    config = dataclasses.replace(SMALL, word_ngram_rows=10, character_ngram_rows=5)
    model = drawn(TransformerClassifier, config)
    model.word_ngrams.weights[...] = words = normal(V + 10, C)
    model.character_ngrams.weights[...] = characters = normal(5, C)
    features = np.array([[0, V + 9, -1, V + 10 + 4, V + 10, V + 10 + 2]] * len(TOKENS))
    both = np.concatenate([TOKENS, features], axis=-1)
    none = np.concatenate([TOKENS, np.full((len(TOKENS), 1), -1)], axis=-1)
    words, characters = np.asarray(words), np.asarray(characters)
    added = (words[0] + words[V + 9]) / 2**0.5 + characters[[0, 2, 4]].sum(0) / 3**0.5
    assert_close(call(model, both), np.asarray(call(model, none)) + added)
    assert_same(call(model, both, key=KEYS), call(model, TOKENS, key=KEYS))
    with pytest.raises(ValueError, match="features are missing"):
        call(model, TOKENS)


def test_the_text_of_a_model_names_the_total():
    assert str(small()).splitlines()[-1].startswith(f"total: {SMALL_COUNT:,} parameters")


# Padding


@some_switches
def test_any_number_below_0_is_padding_wherever_it_stands(name):
    switches, _ = SWITCHES[name]
    model = small(**switches)
    logits = np.asarray(call(model, HOLES))
    assert_same(call(model, np.where(HOLES < 0, -1 - TOKENS, HOLES)), logits)
    assert np.abs(logits - call(model, TOKENS))[(HOLES < 0).any(-1)].max(-1).min() > 1e-4


@some_switches
def test_a_shorter_array_gives_the_logits_of_one_filled_up_to_the_context(name):
    switches, _ = SWITCHES[name]
    assert_close(call(small(**switches), PREFIXES[:5, :4]), prefix_logits(**switches)[:5])
    nothing = call(small(**switches), np.zeros((1, 0), int))
    assert_close(nothing, prefix_logits(**switches)[:1])


@each_aggregation
def test_padding_does_not_change_the_noise(aggregation):
    model = small(aggregation=aggregation, word_dropout=0.3)
    filled = call(model, PREFIXES[:5], key=KEYS[:5])
    assert_same(call(model, np.where(PREFIXES < 0, -9, PREFIXES)[:5], key=KEYS[:5]), filled)
    assert_close(call(model, PREFIXES[:5, :4], key=KEYS[:5]), filled)


@pytest.mark.parametrize("name", ["dense", "mean", "attention", "rms, learned"])
def test_padding_passes_nothing_back(name):
    """Padding is looked up as token 0, which is not in these texts."""
    switches, _ = SWITCHES[name]
    tokens = np.where(HOLES < 0, -1, 1 + HOLES % 3)
    tokens[:, -1] = -1
    by_model = gradient(small(**switches), tokens)
    assert_same(np.asarray(by_model.embedding.table).any(-1), [0 < token < 4 for token in range(V)])
    if switches.get("positions") == "learned":
        assert_same(np.asarray(by_model.positions.table).any(-1), np.arange(T) < T - 1)


@some_switches
def test_texts_without_words_have_finite_logits_and_gradients(name):
    switches, _ = SWITCHES[name]
    model, tokens = small(**switches), np.full_like(TOKENS, -1)
    bias = model.head.bias
    assert_same(call(model, tokens), np.tile(np.zeros(C) if bias is None else bias, (T + 1, 1)))
    assert_gradients_reach_the_head_alone(gradient(model, tokens))


@each_aggregation
def test_texts_without_words_have_finite_logits_and_gradients_with_noise_too(aggregation):
    model, tokens = small(aggregation=aggregation, word_dropout=0.5), np.full_like(TOKENS, -1)
    assert_all_finite(call(model, tokens, key=KEYS))
    assert_gradients_reach_the_head_alone(gradient(model, tokens, KEYS))


def assert_gradients_reach_the_head_alone(by_model):
    assert_all_finite(by_model)
    for path, leaf in jax.tree.leaves_with_path(by_model):
        assert ".head" in jax.tree_util.keystr(path) or not leaf.any()


# Order


def with_position_table(model, table):
    leaves, structure = jax.tree.flatten(model)
    (place,) = (i for i, leaf in enumerate(leaves) if leaf is jax.tree.leaves(model.positions)[0])
    leaves[place] = table
    return jax.tree.unflatten(structure, leaves)


# The same words in T + 1 orders, the first two alike.
WORDS = np.array([3, 0, 5, 1, 6, -1])
ORDERS = np.array([np.random.default_rng(seed).permutation(WORDS) for seed in range(T + 1)])
ORDERS[0] = ORDERS[1]


@each_aggregation
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_the_order_of_words_matters_with_positions(aggregation, positions):
    model = small(aggregation=aggregation, positions=positions)
    if positions == "learned":  # a table as large as the embedding
        model = with_position_table(model, 50 * np.asarray(model.positions.table))
    logits = np.asarray(call(model, ORDERS))
    assert_same(logits[0], logits[1])
    assert np.abs(logits[2:] - logits[1]).max(-1).min() > 1e-3


@each_aggregation
def test_the_order_of_words_is_seen_by_a_dense_head_alone_if_all_positions_are_0(aggregation):
    model = with_position_table(
        small(aggregation=aggregation, positions="learned"), np.zeros((T, SMALL.width), np.float32)
    )
    logits = np.asarray(call(model, ORDERS))
    if aggregation == "dense":
        assert np.abs(logits[2:] - logits[1]).max(-1).min() > 1e-3
    else:
        assert_close(logits, np.tile(logits[0], (T + 1, 1)))


# Batches and transformations


@pytest.mark.parametrize(
    ("name", "dropout"),
    [("dense", True), ("mean", True), ("attention", True), ("rotary, qkv_bias", False)],
)
def test_a_text_is_the_same_alone_batched_mapped_or_compiled(name, dropout):
    model = small(**SWITCHES[name][0], word_dropout=0.3)
    keys = KEYS if dropout else None

    def logits(tokens, key):
        return call(model, tokens, key=key)

    batched = np.asarray(logits(PREFIXES, keys))
    assert_close(model(jnp.asarray(PREFIXES), key=keys), batched)
    assert_close(jax.jit(jax.vmap(logits))(PREFIXES, keys), batched)
    for i in (0, 3, T):
        assert_close(logits(PREFIXES[i], keys[i] if dropout else None), batched[i])
    nested = logits(PREFIXES[:, None], keys[:, None] if dropout else None)
    assert_close(nested, batched[:, None])


@each_aggregation
def test_the_noise_of_a_text_does_not_depend_on_its_batch(aggregation):
    model = small(aggregation=aggregation, word_dropout=0.3)
    batched = np.asarray(call(model, TOKENS, key=KEYS))
    assert_close(call(model, TOKENS[::-1], key=KEYS[::-1]), batched[::-1])
    others = np.where(np.arange(T + 1)[:, None] == 2, TOKENS, PREFIXES)
    assert_close(np.asarray(call(model, others, key=KEYS))[2], batched[2])
    assert np.abs(call(model, TOKENS, key=KEYS[::-1]) - batched)[[0, -1]].max(-1).min() > 1e-3


# Noise


@each_aggregation
@pytest.mark.parametrize("rates", [(0.5, 0.0), (0.0, 0.5)], ids=["dropout", "word dropout"])
def test_noise_needs_a_key_repeats_with_it_and_differs_without(aggregation, rates):
    plain = small(aggregation=aggregation, dropout=0.0)
    model = small(aggregation=aggregation, dropout=rates[0], word_dropout=rates[1])
    first, second = KEYS[:2]
    without, of_first = call(plain, TOKENS), np.asarray(call(model, TOKENS, key=first))
    assert_same(call(model, TOKENS), without)
    assert_same(call(plain, TOKENS, key=first), without)
    assert_same(call(model, TOKENS, key=first), of_first)
    for other in (call(model, TOKENS, key=second), without):
        assert np.abs(of_first - other).max() > 1e-3


@pytest.mark.parametrize(
    ("aggregation", "rate"), [("dense", 0.2), ("mean", 0.5), ("attention", 0.7)]
)
def test_word_dropout_makes_padding_of_each_word_with_its_rate(aggregation, rate):
    model, tokens = small(aggregation=aggregation, dropout=0.0, word_dropout=rate), TOKENS[0]
    kept = np.array(list(itertools.product([False, True], repeat=T)))
    possible = np.asarray(call(model, np.where(kept, tokens, -1)))
    number = 2000
    draw = jax.jit(jax.vmap(lambda key: call(model, tokens, key=key)))
    found = np.asarray(draw(jax.random.split(KEY, number)))
    distances = np.abs(found[:, None] - possible).max(-1)
    nearest, second = np.sort(distances, axis=-1)[:, :2].T
    assert nearest.max() < 1e-4 < second.min()  # so it is known which words were kept
    hidden = ~kept[distances.argmin(-1)]
    variance = rate * (1 - rate)
    assert (np.abs(hidden.mean(0) - rate) < 5 * np.sqrt(variance / number)).all()
    together = np.cov(hidden.T)[np.triu_indices(T, 1)]
    assert (np.abs(together) < 5 * variance / np.sqrt(number)).all()


def test_every_noise_of_a_call_has_a_key_of_its_own(monkeypatch):
    keys, random_bits = [], F.random_bits

    def recorded(key, shape):
        keys.append(jax.random.key_data(key))
        return random_bits(key, shape)

    monkeypatch.setattr(layers, "random_bits", recorded)
    monkeypatch.setattr(F, "random_bits", recorded)

    @jax.jit
    def found():
        small(word_dropout=0.5, num_blocks=2)(jnp.asarray(TOKENS), key=KEY)
        return keys

    assert len(np.unique(found(), axis=0)) == len(keys) == 3 + 2 * 2


# Refusals


@each_aggregation
def test_too_many_tokens_are_refused_with_both_lengths(aggregation):
    with pytest.raises(ValueError, match=r"length 7 .* length 6"):
        call(small(aggregation=aggregation), np.zeros((2, T + 1), int))


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"word_dropout": 1.0}, r"word dropout must be in \[0, 1\), not 1.0"),
        ({"word_dropout": -0.1}, "word dropout .* not -0.1"),
        ({"word_dropout": float("nan")}, "word dropout .* not nan"),
    ],
)
def test_configs_that_cannot_be_are_refused(switches, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **switches)
