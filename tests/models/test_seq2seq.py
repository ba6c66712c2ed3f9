"""The encoder-decoder: counted by hand, PyTorch's, causal; test_options.py has its formula."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import (
    assert_all_finite,
    assert_close,
    assert_same,
    own_places,
)
from tests.helpers.models import call, extend
from tests.helpers.seq2seq import (
    SMALL,
    SOURCE,
    TARGET,
    D,
    S,
    T,
    V,
    small,
)
from tlite import functional as F
from tlite.functional import layers
from tlite.models import Seq2SeqConfig, TransformerSeq2Seq
from tlite.modules import count_parameters

KEY = jax.random.key(0)
ENCODER_BLOCK = 4 * D * D + D + 2 * 2 * D + (2 * 4 * D * D + 5 * D)
DECODER_BLOCK = ENCODER_BLOCK + 4 * D * D + D + 2 * D
SMALL_COUNT = V * D + 2 * ENCODER_BLOCK + DECODER_BLOCK

# Sources and targets of different lengths, filled up with 0.

# Each switch, and by how many parameters it changes the small model.
SWITCHES = {
    "defaults": ({}, 0),
    "shared": ({"embeddings": "shared"}, D * V + V),
    "separate": (
        {"embeddings": "separate", "source_vocabulary_size": 11},
        (11 - V) * D + V * D + D * V + V,
    ),
    "norm_first": ({"norm_first": True}, 2 * 2 * D),
    "rms": ({"norm": "rms"}, -(2 * 2 + 3) * D),
    "gelu": ({"activation": "gelu"}, 0),
    "learned": ({"positions": "learned"}, 2 * S * D),
    "rotary": ({"positions": "rotary"}, 0),
    "qkv_bias": ({"qkv_bias": True}, (2 + 2) * 3 * D),
    "bias": ({"bias": False}, -2 * (D + 5 * D + 2 * D) - (2 * D + 5 * D + 3 * D)),
    "num_heads": ({"num_heads": 4}, 0),
    "head_width": ({"head_width": 6}, 4 * 4 * D * (2 * 6 - D)),
    "hidden_width": ({"hidden_width": 5}, -3 * (2 * D + 1) * (4 * D - 5)),
    "num_blocks": ({"num_blocks": 1}, -ENCODER_BLOCK),
    "decoder_blocks": ({"decoder_blocks": None}, DECODER_BLOCK),
    "all": (
        {
            "embeddings": "shared",
            "norm_first": True,
            "norm": "rms",
            "positions": "rotary",
            "bias": False,
        },
        D * V - 2 * 8 * D - 10 * D + 2 * D,
    ),
}
each_switch = pytest.mark.parametrize(("switches", "change"), SWITCHES.values(), ids=SWITCHES)


# Counts


@each_switch
def test_switches_change_the_count_as_by_hand_and_give_logits(switches, change):
    model = jax.eval_shape(
        lambda: TransformerSeq2Seq(dataclasses.replace(SMALL, **switches), key=KEY)
    )
    assert count_parameters(model) == SMALL_COUNT + change
    sides = jnp.zeros((3, 2, S), int), jnp.zeros((3, 2, T), int)
    logits = jax.eval_shape(lambda model: model(*sides), model)
    assert logits.shape == (3, 2, T, V)


def test_the_base_model_of_2017_holds_as_many_parameters_as_counted_by_hand():
    config = Seq2SeqConfig(
        vocabulary_size=37_000,
        source_vocabulary_size=37_000,
        width=512,
        num_heads=8,
        num_blocks=6,
        qkv_bias=True,
    )
    attention, norm = 4 * (512 * 512 + 512), 2 * 512
    feed_forward = 512 * 2048 + 2048 + 2048 * 512 + 512
    expected = 37_000 * 512 + 6 * (3 * attention + 2 * feed_forward + 5 * norm)
    model = jax.eval_shape(lambda: TransformerSeq2Seq(config, key=KEY))
    assert count_parameters(model) == expected == 63_082_496


@pytest.mark.parametrize("width", [16, 256])
def test_scaled_embeddings_begin_with_the_deviation_of_positions(width):
    config = dataclasses.replace(
        SMALL, vocabulary_size=500, source_vocabulary_size=500, width=width
    )

    def table(config):
        return jax.jit(lambda: TransformerSeq2Seq(config, key=KEY).encoder.embedding.table[...])()

    assert float(table(config).std() * config.embedding_scale) == pytest.approx(1, abs=0.05)
    given = dataclasses.replace(config, embedding_deviation=0.02)
    assert float(table(given).std()) == pytest.approx(0.02, abs=0.001)


# Causality and padding


@pytest.mark.parametrize("name", ["defaults", "all"])
def test_later_tokens_do_not_change_earlier_logits_by_a_bit(name):
    model = small(**SWITCHES[name][0])
    target, logits = np.asarray(TARGET), np.asarray(call(model, SOURCE, TARGET))
    for t in range(1, T):
        other = np.where(np.arange(T) >= t, (target + 1) % V, target)
        changed = np.asarray(call(model, SOURCE, other))
        assert_same(changed[:, :t], logits[:, :t])
        assert (changed[:, t] != logits[:, t]).any()


@pytest.mark.parametrize("name", ["defaults", "all"])
def test_padding_of_either_side_does_not_change_what_is_written(name):
    model = small(**SWITCHES[name][0])
    logits = np.asarray(call(model, SOURCE, TARGET))
    alone = call(model, np.asarray(SOURCE)[1, :4], np.asarray(TARGET)[1, :3])
    assert_close(logits[1, :3], alone)


def test_a_source_of_nothing_but_padding_has_finite_logits_and_gradients():
    def total(model):
        return (model(jnp.zeros_like(SOURCE), TARGET) ** 2).sum()

    assert_all_finite(jax.jit(jax.value_and_grad(total))(small()))


# Caches


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_targets_of_one_source_share_its_memory_and_caches(positions):
    model, beams = small(positions=positions), 3

    @jax.jit
    def remembered(model):
        memory, mask = model.encode(SOURCE)
        return model.memory_caches(memory), mask

    memories, memory_mask = remembered(model)
    caches = model.empty_caches(2, capacity=beams * T)
    targets = (np.asarray(TARGET)[:, None] + np.arange(beams)[:, None]) % V
    expected = np.asarray(call(model, np.repeat(SOURCE[:, None], beams, axis=1), targets))
    for t in range(T):
        places = {"positions": np.full((1, beams), t), "mask": own_places(beams, T, t)}
        inputs = targets[..., t], caches, memories, memory_mask, beams * t
        logits, caches = extend(model, *inputs, **places)
        assert_close(logits, expected[..., t, :])


def test_caches_are_as_long_as_asked_for_or_as_the_context():
    model = small(decoder_blocks=2)
    for capacity in (None, 3):
        caches = model.empty_caches(4, 2, capacity=capacity)
        assert {cache.key.shape for cache in caches} == {(4, 2, 2, capacity or S, D // 2)}
        assert len(caches) == 2


# Batches, transformations, dropout


def test_a_pair_is_the_same_alone_as_in_a_batch():
    model, keys = small(norm_first=True), jax.random.split(KEY, 2)
    batched = np.asarray(call(model, SOURCE, TARGET, key=keys))
    assert_close(call(model, SOURCE[1], TARGET[1], key=keys[1]), batched[1])


def test_dropout_repeats_with_its_key_and_differs_without():
    model, keys = small(), jax.random.split(KEY)
    first, second = (np.asarray(call(model, SOURCE, TARGET, key=key)) for key in keys)
    assert_same(call(model, SOURCE, TARGET, key=keys[0]), first)
    for other in (second, call(model, SOURCE, TARGET)):
        assert np.abs(first - other).max() > 1e-3


def test_every_dropout_of_a_call_has_a_key_of_its_own(monkeypatch):
    keys = []

    def random_bits(key, shape):
        keys.append(jax.random.key_data(key))
        return F.random_bits(key, shape)

    monkeypatch.setattr(layers, "random_bits", random_bits)

    @jax.jit
    def found():
        small()(SOURCE, TARGET, key=KEY)
        return keys

    assert len(np.unique(found(), axis=0)) == len(keys) == (1 + 2 * 3) + (1 + 4)


@pytest.mark.parametrize("side", ["source", "target"])
def test_too_many_tokens_are_refused_with_both_lengths(side):
    sides = {"source": SOURCE[0], "target": TARGET[0]} | {side: np.ones(S + 1, int)}
    with pytest.raises(ValueError, match=r"length 8 .* length 7"):
        call(small(), **sides)


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"decoder_blocks": 0}, "decoder_blocks must be at least 1, not 0"),
        ({"source_vocabulary_size": V + 1}, r"one vocabulary, not sizes \(9, 10\)"),
        ({"embeddings": "shared", "vocabulary_size": 5}, r"one vocabulary, not sizes \(5, 9\)"),
    ],
)
def test_configs_that_cannot_be_are_refused(switches, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **switches)
