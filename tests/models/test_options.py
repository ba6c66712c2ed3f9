"""Components of the models: their formulas in NumPy, and cached decoding.

Each field of a component is tried in the generator; in the other models only what differs: masks
that are not causal, cross-attention, and the families. The code of a block is the same for all.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import reference_models as reference
from tests.helpers.arrays import assert_close
from tests.helpers.models import (
    assert_chunks_give,
    call,
    difference,
    drawn,
    extend,
    get_field,
    initial_model,
    replaced,
)
from tlite import models as M
from tlite.models.parameters import named_arrays
from tlite.models.transformer import embed, final_norm

V, T, D = 7, 5, 8
SIZES = {"context": 6, "width": D, "num_heads": 2, "num_blocks": 1, "vocabulary_size": V}
SIZES |= {"dropout": 0.0, "feed_forward": M.FeedForward(mlp_dim=6)}
BASES = {
    "generator": M.GeneratorConfig(**SIZES, block=M.Block(pre_norm=True)),
    "classifier": M.ClassifierConfig(**SIZES, num_classes=3, pool=M.Pool("mean")),
    "masked": M.MaskedConfig(**SIZES),
    "seq2seq": M.Seq2SeqConfig(**SIZES, source_vocabulary_size=V),
}
ROTARY, NONE = {"positions": M.Rotary()}, {"positions": M.NoPositions()}
TWO = {"num_blocks": 2}
LOCAL = ROTARY | TWO | {"attention.windows": (2, 0)}
GATED = {"feed_forward.gated": True}
YARN = M.RotaryScaling("yarn", 4.0, 20)
RELU = {"pool.projection": M.Projection("relu", norm=False)}

# Tested together are fields that do not interact: fields of the base model, the tested fields.
FIELDS = {
    "yarn": (
        ROTARY | {"bias": False},
        {"positions.scaling": YARN, "feed_forward.activation": "squared_relu"}
        | {"positions.base": 7.0, "norm.bias": True, "feed_forward.bias": True},
    ),
    "yarn without growth": (
        ROTARY,
        {"positions.scaling": dataclasses.replace(YARN, attention_factor=1.0)}
        | {"feed_forward.activation": "tanh", "feed_forward.bias": False}
        | {"attention.qkv_bias": True, "attention.bias": False, "attention.num_kv_heads": 1},
    ),
    "alibi": (
        TWO | NONE,
        {"positions": M.ALiBi(), "embedding.type_vocab_size": 2, "attention.windows": (2,)}
        | {"block.output_norms": True},
    ),
    "sinusoidal": (
        NONE | {"attention.query_key_norm": True},
        {"positions": M.Sinusoidal(), "norm.epsilon": 0.3, "embedding.norm": True}
        | {"attention.softcap": 0.7},
    ),
    "split_sinusoidal": (
        {"positions": M.Sinusoidal(), "embedding.scale": False},
        {"positions.split": True, "attention.scale": 0.9, "norm.method": "rms"},
    ),
}
# Fields of one model.
MODEL_FIELDS = {
    "generator": {
        "biased tied head": (
            {"attention.num_kv_heads": 1},
            {"head.tied": True, "head.bias": True, "head.softcap": 0.9},
        ),
        "head bias": ({}, {"head.bias": False}),
        "head bias alone": ({"bias": False, "block.pre_norm": False}, {"head.bias": True}),
    },
    "classifier": {
        "dense": ({}, {"pool.method": "dense", "head_bias": False}),
        "attention": (
            RELU,
            {"pool.method": "attention", "pool.projection.activation": "gelu"}
            | {"pool.projection.bias": False},
        ),
        "first": (
            RELU,
            {"pool.method": "first", "pool.projection.activation": "tanh"}
            | {"pool.projection.norm": True},
        ),
        "head bias alone": (
            {"bias": False},
            {"head_bias": True, "pool.projection": M.Projection("silu", norm=False)},
        ),
    },
    "masked": {
        "projection": (
            {},
            {"projection.activation": "silu", "projection.bias": False, "head_bias": False}
            | {"projection.norm": False},
        ),
    },
    "seq2seq": {
        "shared": ({}, {"head.embeddings": "shared", "head.bias": False, "head.scale": 0.3}),
        "separate": ({}, {"head.embeddings": "separate", "decoder_blocks": 2}),
        "biased tied head": ({}, {"head.bias": True}),
    },
}
GEMMA = {"norm": M.Norm("rms", offset=1.0), "feed_forward.activation": "gelu"} | GATED
GEMMA |= {"attention.num_kv_heads": 1, "block.output_norms": True}
# Combinations of fields, as in families of models.
FAMILIES = {
    "llama": (
        ROTARY,
        {"norm.method": "rms", "feed_forward.activation": "silu", "attention.num_kv_heads": 1}
        | {"bias": False, "positions.scaling": M.RotaryScaling("llama3", 4.0, 20)}
        | {"attention.query_key_norm": True, "attention.head_dim": 6}
        | GATED,
    ),
    "gemma": (
        LOCAL | {"bias": False, "norm.epsilon": 1e-6},
        {"attention.query_key_norm": True, "positions.local_base": 7.0, "attention.softcap": 5.0}
        | {"positions.scaling": M.RotaryScaling("linear", 8.0), "attention.scale": 0.4}
        | {"embedding.scale": True}
        | GEMMA,
    ),
    "t5": (
        TWO | {"positions": M.Relative(4), "bias": False},
        {"norm.method": "rms", "attention.scale": 1.0, "attention.head_dim": 3}
        | {"positions": M.Relative(6, 4), "feed_forward.activation": "gelu"}
        | GATED,
    ),
    "modernbert": (
        LOCAL,
        {"norm.bias": False, "block.first_norm": False, "positions.local_base": 7.0}
        | {"embedding.norm": True, "feed_forward.activation": "gelu_exact"}
        | GATED,
    ),
    "bart": (
        {"positions": M.Learned()},
        {"positions.offset": 2, "embedding.norm": True, "attention.qkv_bias": True}
        | {"feed_forward.activation": "gelu_exact"},
    ),
}


def cases(model, fields=(), families=tuple(FAMILIES), exclude=()):
    """Return (model, name) for these fields, for the model's own fields and for the families.

    Excluded are own fields whose parameters and caches are those of other fields.
    """
    names = [name for name in MODEL_FIELDS[model] if name not in exclude]
    return [(model, name) for name in [*fields, *names, *families]]


def each(*cases):
    return pytest.mark.parametrize(("kind", "name"), [case for some in cases for case in some])


def configs(model, name):
    """Return the config with these fields, and by field the config without it.

    A family is tried with the other `pre_norm`.
    """
    base = BASES[model]
    fields_before, fields = (FIELDS | MODEL_FIELDS[model] | FAMILIES)[name]
    order = {"block.pre_norm": base.block.pre_norm != (name in FAMILIES)}
    before = replaced(base, order | fields_before)
    if "embedding.scale" in fields:
        fields = fields | {"embedding.scale": not base.embedding.scale}
    config = replaced(before, fields)
    return config, {f: replaced(config, {f: get_field(before, f)}) for f in fields}


@functools.cache
def make(model, config):
    return drawn(M.make_model, config)


@functools.cache
def model_logits(model, config):
    return call(make(model, config), *INPUTS[model])


def reference_logits(kind, config):
    """Return the logits in float64."""
    params = reference.plain(jax.tree.map(np.asarray, make(kind, config)))
    texts = zip(*map(np.asarray, INPUTS[kind]), strict=True)
    return np.stack([getattr(reference, kind)(params, *text) for text in texts])


TOKENS = jnp.array([[3, 0, 5, 1, 6], [2, 4, 6, 0, 2]])
REAL = np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], bool)
WORDS = jnp.asarray(np.where(REAL, TOKENS, -3))
SOURCE = jnp.array([[3, 1, 4, 1, 5, 2], [2, 6, 1, 0, 0, 0]])
TARGET = jnp.array([[2, 6, 5, 3, 5], [1, 2, 4, 6, 3]])
S = SOURCE.shape[1]
INPUTS = {"generator": (TOKENS,), "masked": (WORDS,), "classifier": (WORDS,)}
INPUTS["seq2seq"] = SOURCE, TARGET


@each(
    cases("generator", FIELDS),
    cases("masked", ["alibi", "sinusoidal"], ["gemma", "t5", "modernbert", "bart"]),
    cases("classifier", families=[]),
    cases("seq2seq", ["alibi", "sinusoidal", "yarn"], ["llama", "gemma", "t5", "bart"]),
)
def test_logits_equal_a_formula_that_needs_each_field(kind, name):
    config, without = configs(kind, name)
    expected = reference_logits(kind, config)
    assert_close(model_logits(kind, config), expected, 3e-5)
    for field, other in without.items():
        assert difference(reference_logits(kind, other), expected) > 1e-4, field


@each(cases("generator", ["sinusoidal", "alibi"], FAMILIES))
def test_a_generator_extended_in_chunks_gives_the_full_logits(kind, name):
    config = configs(kind, name)[0]
    model = make(kind, config)
    extended = functools.partial(extend, model)
    assert_chunks_give(model_logits(kind, config), TOKENS, extended, model.empty_caches(2))


@each(cases("seq2seq", ["alibi"], ["gemma", "t5", "bart"], ["shared"]))
def test_a_target_extended_in_chunks_gives_the_full_logits(kind, name):
    config = configs(kind, name)[0]
    model = make(kind, config)
    memories = jax.jit(lambda model: model.memories(SOURCE))(model)

    def extended(chunk, caches, start):
        return extend(model, chunk, caches, memories, start)

    assert_chunks_give(model_logits(kind, config), TARGET, extended, model.empty_caches(2))


def test_blocks_with_zero_outputs_add_nothing():
    """The logits are those of the embedded tokens, and no other kernel is 0."""
    zeros = {"attention.zero_output": True, "feed_forward.zero_output": True}
    zero = initial_model(M.make_model, replaced(BASES["generator"], GATED | zeros))
    for name, array in named_arrays(zero).items():
        assert not name.endswith("kernel") or array.any() != name.endswith("output.kernel")

    @jax.jit
    def head_logits(model):
        return model.logits(final_norm(model, embed(model, TOKENS)))

    assert_close(call(zero, TOKENS), head_logits(zero))
