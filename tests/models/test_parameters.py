"""Parameters of components and models: counted by hand, and drawn as documented."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_close
from tests.helpers.models import replaced
from tlite import models as M
from tlite.models.config import PRESETS
from tlite.models.init import init_embedding, init_linear
from tlite.models.parameters import named_arrays
from tlite.models.transformer import embed

KEY = jax.random.key(0)
V, T, S, D, F, C = 7, 6, 5, 8, 32, 3
SIZES = {"vocabulary_size": V, "context": T, "width": D, "num_heads": 2}
ATTENTION, FEED_FORWARD, NORM = 4 * D * D + D, 2 * D * F + F + D, 2 * D
BLOCK = ATTENTION + FEED_FORWARD + 2 * NORM
DECODER_BLOCK = BLOCK + ATTENTION + NORM
BIASES, HEAD = D + (F + D) + 2 * D, D * V + V  # BIASES: of a block
BASES = {
    "generator": (M.GeneratorConfig(**SIZES, num_blocks=2), V * D + T * D + 2 * BLOCK + HEAD),
    "classifier": (
        M.ClassifierConfig(**SIZES, num_classes=C),
        V * D + BLOCK + (D + 1) + (T * C + C),
    ),
    "masked": (
        M.MaskedConfig(**SIZES, num_blocks=2),
        V * D + T * D + 2 * BLOCK + (D * D + D) + NORM + V,
    ),
    "seq2seq": (
        M.Seq2SeqConfig(**SIZES, source_vocabulary_size=V, num_blocks=2, decoder_blocks=1),
        V * D + 2 * BLOCK + DECODER_BLOCK,
    ),
    "logistic": (M.LogisticConfig(vocabulary_size=V, num_classes=C), V * C + C),
}
CHANGES = [
    ("generator", {"block": M.Block(True, output_norms=True)}, NORM + 2 * 2 * NORM),
    ("generator", {"feed_forward.gated": True, "feed_forward.bias": False}, 2 * (D * F - F - D)),
    ("generator", {"attention.query_key_norm": True}, 2 * 2 * 2 * 4),
    (
        "generator",
        {"attention": M.Attention(num_kv_heads=1, head_dim=5, qkv_bias=True)},
        2 * (2 * 10 * D + 2 * 5 * D + 10 + 2 * 5 - 4 * D * D),
    ),
    ("generator", {"bias": False, "norm.bias": True}, -2 * (BIASES - 2 * D) - V),
    ("classifier", {"wide": M.Wide(10, 10, 5)}, 2 * ((V + 10) * C + C) + 5 * C + C),
    (
        "seq2seq",
        {"head": M.TranslatorHead("separate"), "source_vocabulary_size": 11},
        (11 - V) * D + V * D + HEAD,
    ),
    ("seq2seq", {"decoder_blocks": None, "block.pre_norm": True}, DECODER_BLOCK + 2 * NORM),
    ("logistic", {"bigrams": 5}, 5 * C),
]


def shapes(config):
    return jax.eval_shape(lambda: M.make_model(config, rng=KEY))


@pytest.mark.parametrize(("kind", "fields", "change"), CHANGES, ids=str)
def test_parameter_counts_equal_those_by_hand(kind, fields, change):
    config, count = BASES[kind]
    assert M.count_parameters(shapes(config)) == count
    assert M.count_parameters(shapes(replaced(config, fields))) == count + change


# Initial values

CONFIG = M.GeneratorConfig(vocabulary_size=V)


def test_initial_values_have_documented_distributions():
    kernel, limit = np.asarray(init_linear(KEY, 100, 200).kernel), np.sqrt(6 / 300)
    assert 0.99 * limit < np.abs(kernel).max() <= limit
    assert_close(kernel.std(), limit / np.sqrt(3), 1e-2)
    assert not init_linear(KEY, 3, 5, zeros=True).kernel.any()
    config = dataclasses.replace(CONFIG, vocabulary_size=500, width=100, num_heads=1)
    for embedding, std in (
        (M.Embedding(), 0.02),
        (M.Embedding(scale=True), 0.1),
        (M.Embedding(0.3, scale=True), 0.3),
    ):
        table = init_embedding(KEY, dataclasses.replace(config, embedding=embedding))["table"]
        assert_close(table.std() / std, 1.0, 2e-2)
    assert not any(
        leaf.any() for leaf in jax.tree.leaves(M.make_model(BASES["logistic"][0], rng=KEY))
    )


@pytest.mark.parametrize("kind", [M.GeneratorConfig, M.ClassifierConfig, M.Seq2SeqConfig])
def test_positions_change_nothing_but_positions(kind):
    """Tokens at position 0 have the same vectors, without those of the position."""

    def embedding(positions):
        sizes = {"vocabulary_size": V, "source_vocabulary_size": V, "num_classes": C}
        names = {field.name for field in dataclasses.fields(kind)}
        sizes = {name: size for name, size in sizes.items() if name in names}
        model = M.make_model(kind(**sizes, positions=positions), rng=KEY)
        model = getattr(model, "encoder", model)
        if positions == "learned":
            model.positions.table[...] = jnp.zeros_like(model.positions.table[...])
        return embed(model, jnp.arange(1)) - (positions == "sinusoidal") * (jnp.arange(32) % 2)

    plain = embedding("none")
    for positions in ("learned", "sinusoidal", "rotary"):
        assert_close(embedding(positions), plain)


def custom(*inputs):
    """A user's function in any field, which is not called."""


custom.init_params = lambda rng, config, width=16: {"drawn": jax.random.uniform(rng, (2, width))}


CUSTOM = {"attention": M.Attention(custom, query_key_norm=True), "norm": custom}
VARIANTS = {
    "gated, output norms": {
        "feed_forward": M.FeedForward(gated=True),
        "block": M.Block(True, output_norms=True),
    },
    "embedding": {"embedding": M.Embedding(norm=True, type_vocab_size=2), **CUSTOM},
    "custom": {**CUSTOM, "feed_forward": custom, "positions": custom, "block": "pre_norm"},
    "custom activation": {**CUSTOM, "feed_forward": M.FeedForward(activation=custom)},
}
CHOICES = {field: [*PRESETS[field]] for field in ("norm", "positions", "block")}
OTHERS = {
    M.GeneratorConfig: {},
    M.MaskedConfig: {"projection": M.Projection(custom)},
    M.ClassifierConfig: {"num_classes": 3, "pool": M.Pool("attention", M.Projection(custom))},
    M.Seq2SeqConfig: {"source_vocabulary_size": 32, "head": M.TranslatorHead("separate")},
}


PRESET_VARIANTS = [
    (M.GeneratorConfig, {field: words[i % len(words)] for field, words in CHOICES.items()})
    for i in range(max(map(len, CHOICES.values())))
]


@pytest.mark.parametrize(
    ("kind", "fields"), [*PRESET_VARIANTS, *itertools.product(OTHERS, VARIANTS.values())]
)
def test_no_two_drawn_arrays_are_correlated(kind, fields):
    sizes = {"vocabulary_size": 32, "context": 16, "width": 16, "num_heads": 1, "num_blocks": 2}
    config = kind(**sizes, **OTHERS[kind], **fields)
    arrays = named_arrays(M.make_model(config, rng=KEY))
    arrays = {n: np.ravel(a) for n, a in arrays.items() if np.ptp(a) > 0 and np.size(a) >= 16}
    assert len(arrays) > 12
    for (one, x), (other, y) in itertools.combinations(arrays.items(), 2):
        size = min(len(x), len(y))
        assert abs(np.corrcoef(x[:size], y[:size])[0, 1]) < 0.9, (one, other)


def test_norm_of_heads_has_their_width():
    def powers(params, x):
        return x * params.power

    powers.init_params = lambda rng, config, *, width: {"power": jnp.ones(width)}
    config = M.GeneratorConfig(**SIZES, norm=powers, attention=M.Attention(query_key_norm=True))
    block = shapes(config).blocks[0]
    assert block.attention.query_norm.power.shape == (4,)
    assert block.attention_norm.power.shape == (D,)
    powers.init_params = lambda rng, config: {"power": jnp.ones(config.width)}
    with pytest.raises(ValueError, match="'width'"):
        shapes(config)
