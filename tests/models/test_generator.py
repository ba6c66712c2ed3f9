"""The generator: counted by hand, causal with every switch, the same batched or alone."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import (
    assert_close,
    assert_same,
    integers,
)
from tests.helpers.models import call, drawn
from tlite import functional as F
from tlite.functional import layers
from tlite.models import GeneratorConfig, TransformerGenerator
from tlite.modules import count_parameters

KEY = jax.random.key(0)
T, V = 6, 7
SMALL = GeneratorConfig(
    vocabulary_size=V, context=T, width=8, num_heads=2, num_blocks=2, dropout=0.5
)
SMALL_COUNT = 1_863
TOKENS = integers(V, 2, T)

# Each switch, and by how many parameters it changes the small model.
SWITCHES = {
    "defaults": ({}, 0),
    "norm_first": ({"norm_first": True}, 2 * 8),
    "rms": ({"norm": "rms"}, -4 * 8),
    "rms first": ({"norm": "rms", "norm_first": True}, -4 * 8 + 8),
    "gelu": ({"activation": "gelu"}, 0),
    "silu": ({"activation": "silu"}, 0),
    "sinusoidal": ({"positions": "sinusoidal"}, -T * 8),
    "rotary": ({"positions": "rotary"}, -T * 8),
    "qkv_bias": ({"qkv_bias": True}, 2 * 3 * 8),
    "bias": ({"bias": False}, -2 * (8 + 32 + 8 + 2 * 8) - V),
    "tied_head": ({"tied_head": True}, -(8 * V + V)),
    "num_heads": ({"num_heads": 4}, 0),
    "head_width": ({"head_width": 3}, -2 * 4 * 8 * (8 - 2 * 3)),
    "hidden_width": ({"hidden_width": 5}, -2 * (2 * 8 + 1) * (32 - 5)),
    "num_blocks": ({"num_blocks": 1}, -848),
    "all": (
        {
            "norm_first": True,
            "norm": "rms",
            "positions": "rotary",
            "qkv_bias": True,
            "bias": False,
            "tied_head": True,
            "head_width": 6,
        },
        -T * 8 - (8 * V + V) - 2 * (8 + 32 + 8 + 2 * 8) + 8 + 2 * 3 * 12 + 2 * 4 * 8 * (12 - 8),
    ),
}
each_switch = pytest.mark.parametrize(("switches", "change"), SWITCHES.values(), ids=SWITCHES)
some_switches = pytest.mark.parametrize("name", ["defaults", "norm_first", "rotary", "all"])


@functools.cache
def small(**switches):
    return drawn(TransformerGenerator, dataclasses.replace(SMALL, **switches))


# Counts


@pytest.mark.parametrize(
    ("config", "count", "arrays"),
    [
        (GeneratorConfig(vocabulary_size=71), 44_487, 43),
        (GeneratorConfig(vocabulary_size=65, context=16, num_blocks=2), 29_953, 30),
    ],
)
def test_models_hold_as_many_parameters_as_counted_by_hand(config, count, arrays):
    model = jax.eval_shape(lambda: TransformerGenerator(config, key=KEY))
    assert count_parameters(model) == count
    assert len(jax.tree.leaves(model)) == arrays


def test_the_shape_of_nanogpt_holds_as_many_parameters_as_counted_by_hand():
    config = GeneratorConfig(
        vocabulary_size=65,
        context=64,
        width=128,
        num_heads=4,
        num_blocks=4,
        norm_first=True,
        activation="gelu",
        bias=False,
        tied_head=True,
    )
    tables = 65 * 128 + 64 * 128
    attention, feed_forward, norms = 4 * 128 * 128, 2 * 128 * 512, 2 * 128
    model = jax.eval_shape(lambda: TransformerGenerator(config, key=KEY))
    expected = tables + 4 * (attention + feed_forward + norms) + 128
    assert count_parameters(model) == expected == 804_096


@each_switch
def test_switches_change_the_count_as_by_hand_and_give_logits(switches, change):
    config = dataclasses.replace(SMALL, **switches)
    model = jax.eval_shape(lambda: TransformerGenerator(config, key=KEY))
    assert count_parameters(model) == SMALL_COUNT + change
    assert jax.eval_shape(lambda model: model(TOKENS), model).shape == (2, T, V)


def test_the_text_of_a_model_names_the_total_and_the_count_of_every_layer():
    model = drawn(TransformerGenerator, GeneratorConfig(vocabulary_size=71))
    lines = [line.split() for line in str(model).splitlines()]
    assert lines[0] == ["TransformerGenerator", "44,487"]
    assert lines[-1] == ["total:", "44,487", "parameters", "in", "43", "arrays"]
    expected = {"embedding": 2_272, "positions": 2_048, "blocks": 37_824, "head": 2_343}
    expected |= dict.fromkeys(("0", "1", "2"), 12_608) | {"attention": 4_128, "feed_forward": 8_352}
    expected |= dict.fromkeys(("attention_norm", "feed_forward_norm"), 64)
    counts = {line[0].rstrip(":"): line[-1] for line in lines}
    assert {name: f"{count:,}" for name, count in expected.items()}.items() <= counts.items()


# Causality


@some_switches
def test_later_tokens_do_not_change_earlier_logits_by_a_bit(name):
    model = small(**SWITCHES[name][0])
    tokens, logits = np.asarray(TOKENS), np.asarray(call(model, TOKENS))
    for t in range(1, T):
        later = np.arange(T) >= t
        changed = np.asarray(call(model, np.where(later, (tokens + 1) % V, tokens)))
        assert_same(changed[:, :t], logits[:, :t])
        assert (changed[:, t] != logits[:, t]).any()


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_the_order_of_earlier_tokens_matters(positions):
    model, tokens = small(positions=positions), np.arange(T)
    swapped = np.array([1, 0, *tokens[2:]])
    plain, other = (np.asarray(call(model, each)) for each in (tokens, swapped))
    assert np.abs(other[-1] - plain[-1]).max() > 1e-4


# Documents that are packed into one sequence

END = 0
PACKED = np.array([3, 1, END, 2, 5, 4])  # two documents, the second not ended
NUMBERS = np.asarray(F.documents(jnp.asarray(PACKED), END))


@some_switches
def test_what_a_document_holds_does_not_change_another_by_a_bit(name):
    model = small(**SWITCHES[name][0])
    logits = np.asarray(call(model, PACKED, documents=NUMBERS))
    for t in range(T):
        tokens = np.where(np.arange(T) == t, (PACKED + 1) % V, PACKED)
        changed = np.asarray(call(model, tokens, documents=NUMBERS))
        others = NUMBERS[t] != NUMBERS
        assert_same(changed[others], logits[others])
        assert (changed[t] != logits[t]).any()


def test_gradients_stay_within_documents():
    model = small(positions="rotary")
    table = model.embedding.table[...]

    def logits(rows):
        changed = jax.tree.map(lambda leaf: leaf, model)
        changed.embedding.table = type(model.embedding.table)(table.at[:T].set(rows))
        return changed(jnp.arange(T), documents=jnp.asarray(NUMBERS))

    by_rows = jax.jit(jax.jacobian(lambda rows: logits(rows).sum(-1)))
    gradients = np.abs(by_rows(np.asarray(table)[:T])).sum(-1)
    t, s = np.indices((T, T))
    reached = (s <= t) & (NUMBERS[s] == NUMBERS[t])
    assert_same(gradients > 0, reached)


@pytest.mark.parametrize("positions", ["rotary", "alibi", "relative"])
def test_a_document_is_as_if_alone_where_only_distances_count(positions):
    model = small(positions=positions)
    logits = np.asarray(call(model, PACKED, documents=NUMBERS))
    assert_close(logits[:2], call(model, PACKED[:2]))
    assert_close(logits[2:], call(model, PACKED[2:]))


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
def test_a_document_is_as_if_alone_at_its_place(positions):
    """Alone: the others' tokens are there, at the same places, but of another document."""
    model = small(positions=positions)

    @jax.jit
    def second(model, tokens):
        x = model.embed(tokens, jnp.arange(2, T))
        x, _ = model.run_blocks(x, F.causal_mask(T - 2), positions=jnp.arange(2, T))
        return model.logits(x)

    logits = np.asarray(call(model, PACKED, documents=NUMBERS))
    assert_close(logits[:2], call(model, PACKED[:2]))
    assert_close(logits[2:], second(model, PACKED[2:]))


def test_one_document_is_a_text():
    model = small()
    assert_same(call(model, TOKENS, documents=np.zeros(T, int)), call(model, TOKENS))
    tokens, batched = np.asarray(TOKENS), np.asarray(F.documents(TOKENS, END))
    alone = call(model, tokens[1], documents=batched[1])
    assert_close(np.asarray(call(model, tokens, documents=batched))[1], alone)


# Batches, transformations, dropout


@pytest.mark.parametrize(
    ("switches", "dropout"), [({}, True), ({"norm_first": True, "positions": "rotary"}, False)]
)
def test_a_sample_is_the_same_alone_batched_mapped_or_compiled(switches, dropout):
    model = small(**switches)
    keys = jax.random.split(KEY, 2) if dropout else None

    def logits(tokens, key):
        return model(tokens, key=key)

    tokens, compiled = np.asarray(TOKENS), jax.jit(logits)
    batched = np.asarray(compiled(tokens, keys))
    assert_close(logits(TOKENS, keys), batched)
    assert_close(jax.jit(jax.vmap(logits))(tokens, keys), batched)
    for i in range(2):
        assert_close(compiled(tokens[i], keys[i] if dropout else None), batched[i])
    nested = compiled(tokens[:1, None], keys[:1, None] if dropout else None)
    assert_close(nested[0, 0], batched[0])


def test_shorter_texts_get_the_logits_of_their_prefix():
    whole = np.asarray(call(small(), TOKENS))
    assert_close(call(small(), np.asarray(TOKENS)[:, :4]), whole[:, :4])


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_too_many_tokens_are_refused_with_both_lengths(positions):
    with pytest.raises(ValueError, match=r"length 7 .* length 6"):
        call(small(positions=positions), np.zeros(T + 1, int))


def test_dropout_repeats_with_its_key_and_differs_without():
    model, (first, second) = small(), jax.random.split(KEY)
    of_first, plain = np.asarray(call(model, TOKENS, key=first)), call(model, TOKENS)
    assert_same(call(model, TOKENS, key=first), of_first)
    assert np.abs(of_first - call(model, TOKENS, key=second)).max() > 1e-3
    assert np.abs(of_first - plain).max() > 1e-3
    assert_same(call(small(dropout=0.0), TOKENS, key=first), plain)


def test_every_dropout_of_a_call_has_a_key_of_its_own(monkeypatch):
    keys = []

    def random_bits(key, shape):
        keys.append(jax.random.key_data(key))
        return F.random_bits(key, shape)

    monkeypatch.setattr(layers, "random_bits", random_bits)

    @jax.jit
    def found():
        small()(TOKENS, key=KEY)
        return keys

    assert len(np.unique(found(), axis=0)) == len(keys) == 1 + 2 * SMALL.num_blocks


def test_members_of_a_mapped_initialisation_are_those_built_alone():
    config = dataclasses.replace(SMALL, num_blocks=1)
    keys, make = jax.random.split(KEY, 3), functools.partial(TransformerGenerator, config)
    members = jax.jit(jax.vmap(lambda key: make(key=key)))(keys)
    alone = jax.jit(lambda key: make(key=key))
    for i in range(3):
        member = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], members)
        assert_close(member, alone(keys[i]), 1e-6)
    logits = np.asarray(jax.jit(jax.vmap(lambda model: model(TOKENS)))(members))
    assert np.abs(logits[0] - logits[1]).max() > 1e-3
    assert_close(logits[2], call(alone(keys[2]), TOKENS))
