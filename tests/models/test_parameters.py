"""Parameters of parts and models: counted by hand, and drawn as documented."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.helpers.arrays import assert_close, assert_same
from tests.helpers.models import replaced
from tlite.models import (
    Attention,
    Block,
    ClassifierConfig,
    Embedding,
    FeedForward,
    GeneratorConfig,
    Head,
    LogisticConfig,
    MaskedConfig,
    Pool,
    Seq2SeqConfig,
    TranslatorHead,
    Wide,
    count_parameters,
    make_model,
)
from tlite.models.parts import linear

KEY = jax.random.key(0)
V, T, S, D, F, C = 7, 6, 5, 8, 32, 3
SIZES = {"vocabulary_size": V, "context": T, "width": D, "num_heads": 2}
ATTENTION, FED, NORM = 4 * D * D + D, 2 * D * F + F + D, 2 * D
BLOCK = ATTENTION + FED + 2 * NORM
DECODER_BLOCK = BLOCK + ATTENTION + NORM
BIASES, HEAD = D + (F + D) + 2 * D, D * V + V  # of a block
OF_VECTOR = D * C + C  # a head on a vector
BASES = {
    "generator": (GeneratorConfig(**SIZES, num_blocks=2), V * D + T * D + 2 * BLOCK + HEAD),
    "classifier": (
        ClassifierConfig(**SIZES, num_classes=C),
        V * D + BLOCK + (D + 1) + (T * C + C),
    ),
    "masked": (
        MaskedConfig(**SIZES, num_blocks=2),
        V * D + T * D + 2 * BLOCK + (D * D + D) + NORM + V,
    ),
    "seq2seq": (
        Seq2SeqConfig(**SIZES, source_vocabulary_size=V, num_blocks=2, decoder_blocks=1),
        V * D + 2 * BLOCK + DECODER_BLOCK,
    ),
    "logistic": (LogisticConfig(vocabulary_size=V, num_classes=C), V * C + C),
}
OF_DENSE = (D + 1) + (T * C + C)
CHANGES = [
    ("generator", {"block": Block(True, output_norms=True)}, NORM + 2 * 2 * NORM),
    ("generator", {"block.first_norm": False}, -NORM),
    ("generator", {"norm.method": "rms"}, -4 * D),
    ("generator", {"feed_forward.gated": True, "feed_forward.bias": False}, 2 * (D * F - F - D)),
    ("generator", {"positions": "relative"}, -T * D + 32 * 2),
    ("generator", {"attention.query_key_norm": True}, 2 * 2 * 2 * 4),
    (
        "generator",
        {"attention": Attention(key_heads=1, head_width=5, input_bias=True)},
        2 * (2 * 10 * D + 2 * 5 * D + 10 + 2 * 5 - 4 * D * D),
    ),
    ("generator", {"bias": False, "norm.bias": True}, -2 * (BIASES - 2 * D) - V),
    ("generator", {"head": Head(tied=True, bias=True)}, -D * V),
    ("generator", {"embedding": Embedding(norm=True, segments=2)}, NORM + 2 * D),
    ("classifier", {"pool": Pool("attention")}, OF_VECTOR + (D + 1) - OF_DENSE),
    ("classifier", {"wide": Wide(10, 10, 5)}, 2 * ((V + 10) * C + C) + 5 * C + C),
    ("masked", {"head_bias": False, "projection.norm": False}, -V - NORM),
    ("seq2seq", {"head": TranslatorHead("shared")}, HEAD),
    (
        "seq2seq",
        {"head": TranslatorHead("separate"), "source_vocabulary_size": 11},
        (11 - V) * D + V * D + HEAD,
    ),
    ("seq2seq", {"decoder_blocks": None, "block.pre_norm": True}, DECODER_BLOCK + 2 * NORM),
    ("logistic", {"bigrams": 5}, 5 * C),
]


def shapes(config):
    return jax.eval_shape(lambda: make_model(config, rng=KEY))


@pytest.mark.parametrize(("kind", "parts", "change"), CHANGES, ids=str)
def test_parts_change_the_count_as_by_hand(kind, parts, change):
    config, count = BASES[kind]
    assert count_parameters(shapes(config)) == count
    assert count_parameters(shapes(replaced(config, parts))) == count + change


# How they are drawn

CONFIG = GeneratorConfig(vocabulary_size=V)


def test_parameters_are_drawn_as_documented():
    kernel, limit = np.asarray(linear(KEY, 100, 200).kernel), np.sqrt(6 / 300)
    assert 0.99 * limit < np.abs(kernel).max() <= limit
    assert_close(kernel.std(), limit / np.sqrt(3), 1e-2)
    assert not linear(KEY, 3, 5, zeros=True).kernel.any()
    config = dataclasses.replace(CONFIG, vocabulary_size=500, width=100, num_heads=1)
    for part, positions, deviation in (
        (Embedding(), "learned", 0.02),
        (Embedding(), "sinusoidal", 0.1),
        (Embedding(scale=False), "sinusoidal", 0.02),
        (Embedding(scale=True), "learned", 0.1),
        (Embedding(deviation=0.3), "sinusoidal", 0.3),
    ):
        config = dataclasses.replace(config, positions=positions)
        assert_close(part.init(KEY, config)["table"].std() / deviation, 1.0, 2e-2)
    assert not any(
        leaf.any() for leaf in jax.tree.leaves(make_model(BASES["logistic"][0], rng=KEY))
    )


def test_a_gate_leaves_the_other_layers_as_they_are_drawn_without():
    gated, plain = (FeedForward(6, gated=gated).init(KEY, CONFIG) for gated in (True, False))
    assert_same((gated.hidden, gated.output), (plain.hidden, plain.output))
    assert np.abs(gated.gate.kernel - gated.hidden.kernel).max() > 1e-2


def test_the_layers_of_a_block_are_drawn_independently():
    leaves = jax.tree.leaves(Block().init(KEY, CONFIG, 0, across=True))
    kernels = [leaf for leaf in leaves if leaf.ndim == 2]
    assert len({float(kernel[0, 0]) for kernel in kernels}) == len(kernels) == 10
