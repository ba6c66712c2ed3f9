"""Switches of the models: formulas in NumPy, causality, caches, padding, gradients.

Each switch is tried in the generator; in the others what differs there: masks that are not causal,
attention on a memory, and the families. What a block is made of is one code for all of them.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import reference_models as reference
from tests.helpers.arrays import assert_close, assert_same
from tests.helpers.models import (
    assert_pieces_give,
    assert_rows_reach,
    assert_slopes_reach,
    begun,
    call,
    difference,
    drawn,
    extend,
    moved,
    reach,
    slopes,
)
from tlite import functional as F
from tlite.models import (
    ClassifierConfig,
    GeneratorConfig,
    MaskedConfig,
    RotaryScaling,
    Seq2SeqConfig,
    TransformerClassifier,
    TransformerGenerator,
    TransformerMasked,
    TransformerSeq2Seq,
)
from tlite.modules import count_parameters
from tlite.training.named import parameter_names

V, T, D = 7, 5, 8
SIZES = {"context": 6, "width": D, "num_heads": 2, "num_blocks": 1, "hidden_width": 6}
SIZES |= {"vocabulary_size": V, "dropout": 0.0, "hidden_dropout": 0.0}
BASES = {
    "generator": GeneratorConfig(**SIZES, norm_first=True),
    "classifier": ClassifierConfig(**SIZES, num_classes=3, aggregation="mean"),
    "masked": MaskedConfig(**SIZES),
    "seq2seq": Seq2SeqConfig(**SIZES, source_vocabulary_size=V),
}
KINDS = {
    "generator": TransformerGenerator,
    "classifier": TransformerClassifier,
    "masked": TransformerMasked,
    "seq2seq": TransformerSeq2Seq,
}
ROTARY = {"positions": "rotary"}
TWO = {"num_blocks": 2}
LOCAL = ROTARY | TWO | {"windows": (2, 0)}

# Switches that do not interact share a model: what they are tried upon, and the switches.
SWITCHES = {
    "yarn": (
        ROTARY | {"bias": False},
        {"rotary_scaling": RotaryScaling("yarn", 4.0, 20), "activation": "squared_relu"}
        | {"rotary_base": 7.0, "norm_bias": True, "feed_forward_bias": True},
    ),
    "yarn without growth": (
        ROTARY,
        {"rotary_scaling": RotaryScaling("yarn", 4.0, 20, attention_factor=1.0)}
        | {"activation": "tanh", "feed_forward_bias": False, "qkv_bias": True, "key_heads": 1},
    ),
    "alibi": (
        TWO | {"positions": "none"},
        {"positions": "alibi", "segments": 2, "windows": (2,), "output_norms": True},
    ),
    "sinusoidal": (
        {"positions": "none", "query_key_norm": True},
        {"positions": "sinusoidal", "norm_epsilon": 0.3, "embedding_norm": True, "softcap": 0.7},
    ),
    "split_sinusoidal": (
        {"positions": "none"},
        {"positions": "split_sinusoidal", "attention_scale": 0.9, "norm": "rms"},
    ),
}
# Of one model.
OWN_SWITCHES = {
    "generator": {
        "biased tied head": ({}, {"tied_head": True, "head_bias": True, "head_softcap": 0.9}),
        "tied_head": (TWO | {"key_heads": 1}, {"tied_head": True, "value_residual": True}),
        "head_bias": ({}, {"head_bias": False, "convolution": 3}),
        "head_bias alone": (
            {"bias": False, "norm_first": False},
            {"head_bias": True, "convolution": 1},
        ),
        "convolution": (LOCAL, {"convolution": 2, "value_residual": True}),
    },
    "classifier": {
        "dense": ({}, {"aggregation": "dense", "head_bias": False}),
        "attention": (
            {"projection": "relu"},
            {"aggregation": "attention", "projection": "gelu", "projection_bias": False},
        ),
        "first": (
            {"projection": "relu"},
            {"aggregation": "first", "projection": "tanh", "projection_norm": True},
        ),
        "head_bias alone": ({"bias": False}, {"head_bias": True, "projection": "silu"}),
    },
    "masked": {
        "projection": (
            {},
            {"projection": "silu", "projection_bias": False, "head_bias": False}
            | {"projection_norm": False},
        ),
    },
    "seq2seq": {
        "shared": ({}, {"embeddings": "shared", "head_bias": False, "head_scale": 0.3}),
        "separate": ({}, {"embeddings": "separate", "decoder_blocks": 2}),
        "biased tied head": ({}, {"head_bias": True}),
    },
}
# What belongs together, in as many combinations as there are families of models.
FAMILIES = {
    "llama": (
        ROTARY,
        {"norm": "rms", "gated": True, "activation": "silu", "key_heads": 1, "bias": False}
        | {"rotary_scaling": RotaryScaling("llama3", 4.0, 20)},
    ),
    "qwen3": (
        {"norm": "rms", "positions": "none"},
        {"gated": True, "key_heads": 1, "bias": False, "head_width": 6, "query_key_norm": True}
        | ROTARY,
    ),
    "gemma2": (
        ROTARY | TWO,
        {"norm": "zero_centred_rms", "gated": True, "activation": "gelu", "key_heads": 1}
        | {"output_norms": True, "softcap": 5.0, "attention_scale": 0.4, "windows": (2, 0)}
        | {"scale_embedding": None},
    ),
    "gemma3": (
        LOCAL | {"bias": False, "norm_epsilon": 1e-6},
        {"norm": "zero_centred_rms", "gated": True, "activation": "gelu", "key_heads": 1}
        | {"query_key_norm": True, "output_norms": True, "local_rotary_base": 7.0}
        | {"rotary_scaling": RotaryScaling("linear", 8.0)},
    ),
    "t5": (
        TWO | {"positions": "none", "bias": False, "relative_buckets": 4},
        {"norm": "rms", "positions": "relative", "attention_scale": 1.0, "gated": True}
        | {"relative_buckets": 6, "relative_distance": 4, "activation": "gelu", "head_width": 3},
    ),
    "modernbert": (
        LOCAL,
        {"norm_bias": False, "first_norm": False, "gated": True, "activation": "gelu_exact"}
        | {"embedding_norm": True, "local_rotary_base": 7.0},
    ),
    "bart": (
        {"positions": "learned"},
        {"position_offset": 2, "embedding_norm": True, "qkv_bias": True}
        | {"activation": "gelu_exact"},
    ),
}


def cases(model, switches=(), families=tuple(FAMILIES), left_out=()):
    """The names of these switches, of those of the model's own, and of these families.

    Left out are those of the model's own whose parameters and caches are those of others.
    """
    own = [name for name in OWN_SWITCHES[model] if name not in left_out]
    return pytest.mark.parametrize("name", [*switches, *own, *families])


def configs(model, name):
    """The config with these switches; and that without each of them, by its name.

    A family is tried in the other order of norms.
    """
    base = BASES[model]
    upon, switches = (SWITCHES | OWN_SWITCHES[model] | FAMILIES)[name]
    order = {"norm_first": base.norm_first != (name in FAMILIES)}
    before = dataclasses.replace(base, **order | upon)
    if "scale_embedding" in switches:
        switches = switches | {"scale_embedding": not base.scale_embedding}
    config = dataclasses.replace(before, **switches)
    without = {s: dataclasses.replace(config, **{s: getattr(before, s)}) for s in switches}
    return config, without


@functools.cache
def make(model, config):
    return drawn(KINDS[model], config)


def changed(model, name):
    return make(model, configs(model, name)[0])


@functools.cache
def logits_of(model, config):
    return call(make(model, config), *INPUTS[model])


def formula_of(kind, config):
    """The logits in float64."""
    params = reference.plain(jax.tree.map(np.asarray, make(kind, config)))
    texts = zip(*map(np.asarray, INPUTS[kind]), strict=True)
    return np.stack([getattr(reference, kind)(params, *text) for text in texts])


def assert_formula_and_change(kind, name):
    """The logits are their formula's, which gives others without any one of the switches."""
    config, without = configs(kind, name)
    expected = formula_of(kind, config)
    assert_close(logits_of(kind, config), expected, 3e-5)
    for switch, other in without.items():
        assert difference(formula_of(kind, other), expected) > 1e-4, switch


TOKENS = jnp.array([[3, 0, 5, 1, 6], [2, 4, 6, 0, 2]])
REAL = np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], bool)
WORDS = jnp.asarray(np.where(REAL, TOKENS, -3))
SOURCE = jnp.array([[3, 1, 4, 1, 5, 2], [2, 6, 1, 0, 0, 0]])
TARGET = jnp.array([[2, 6, 5, 3, 5], [1, 2, 4, 6, 3]])
S = SOURCE.shape[1]
INPUTS = {"generator": (TOKENS,), "masked": (WORDS,), "classifier": (WORDS,)}
INPUTS["seq2seq"] = SOURCE, TARGET


# The generator


@cases("generator", SWITCHES)
def test_logits_of_a_generator_are_their_formula_and_change_with_each_switch(name):
    assert_formula_and_change("generator", name)


@cases(
    "generator",
    ["alibi"],
    ["gemma3", "t5", "modernbert", "bart"],
    ["tied_head", "head_bias"],
)
def test_gradients_of_a_generator_reach_what_is_seen_and_every_parameter(name):
    model = changed("generator", name)

    def logits(model, x):
        return model(TOKENS[0], observe=moved(x, embedding=(T,)))

    by_model, by_x = slopes(logits, model, np.zeros((T, D), np.float32))
    assert_rows_reach(by_x, reach(model.config.windows, model.config.num_blocks, T))
    assert_slopes_reach(by_model)


@cases("generator", ["sinusoidal", "alibi"], [name for name in FAMILIES if name != "llama"])
def test_a_generator_extended_from_ragged_starts_gives_the_logits_of_the_whole(name):
    config = configs("generator", name)[0]
    model = make("generator", config)
    extended = functools.partial(extend, model)
    last = 1 if name in OWN_SWITCHES["generator"] else 2
    whole = logits_of("generator", config)
    assert_pieces_give(whole, TOKENS, extended, model.empty_caches(2), last)


# The masked model and the classifier


@cases("masked", ["alibi", "sinusoidal"], ["gemma3", "t5", "modernbert", "bart"])
def test_logits_of_a_masked_model_are_their_formula_and_change_with_each_switch(name):
    assert_formula_and_change("masked", name)


@cases("masked", ["alibi"], ["modernbert"])
def test_gradients_of_a_masked_model_reach_what_is_real_and_every_parameter(name):
    model = changed("masked", name)

    def logits(model, x):
        return model(WORDS[0], observe=moved(x, embedding=(T,)))

    by_model, by_x = slopes(logits, model, np.zeros((T, D), np.float32))
    expected = reach(model.config.windows, model.config.num_blocks, T, causal=False, real=REAL[0])
    assert_rows_reach(by_x, expected)
    assert not expected[REAL[0]][:, ~REAL[0]].any()
    assert_slopes_reach(by_model)


@cases("classifier", families=[])
def test_logits_of_a_classifier_are_their_formula_and_change_with_each_switch(name):
    assert_formula_and_change("classifier", name)


@cases("classifier", families=[])
def test_gradients_of_a_classifier_reach_what_is_real_and_every_parameter(name):
    model = changed("classifier", name)

    def logits(model, x):
        return model(WORDS[0], observe=moved(x, embedding=(T,)))[None]

    by_model, by_x = slopes(logits, model, np.zeros((T, D), np.float32))
    assert_rows_reach(by_x, REAL[:1])
    assert_slopes_reach(by_model, (".key.bias", ".key_norm.bias", "pool.bias"))


# The encoder-decoder


@cases("seq2seq", ["alibi", "sinusoidal"], ["qwen3", "gemma2", "t5", "bart"])
def test_logits_of_an_encoder_decoder_are_their_formula_and_change_with_each_switch(name):
    assert_formula_and_change("seq2seq", name)


@cases("seq2seq", ["alibi"], ["gemma2", "t5"], ["shared"])
def test_gradients_of_an_encoder_decoder_reach_what_is_seen_and_every_parameter(name):
    model = changed("seq2seq", name)

    def logits(model, x):
        places = {"encoder.embedding": (S,), "decoder.embedding": (S, S + T)}
        return model(SOURCE[1], TARGET[1], observe=moved(x, **places))

    by_model, by_x = slopes(logits, model, np.zeros((S + T, D), np.float32))
    of_source = np.tile(SOURCE[1] != 0, (T, 1))
    of_target = reach(model.config.windows, len(model.decoder.blocks), T)
    assert_rows_reach(by_x, np.concatenate([of_source, of_target], axis=1))
    assert_slopes_reach(by_model)


@cases("seq2seq", ["alibi"], ["gemma2", "t5", "bart"], ["shared"])
def test_a_target_extended_from_ragged_starts_gives_the_logits_of_the_whole(name):
    config = configs("seq2seq", name)[0]
    model = make("seq2seq", config)
    memories, mask = remembered(model)

    def extended(piece, caches, start):
        return extend(model, piece, caches, memories, mask, start)

    assert_pieces_give(logits_of("seq2seq", config), TARGET, extended, model.empty_caches(2))


@jax.jit
def remembered(model):
    memory, mask = model.encode(SOURCE)
    return model.memory_caches(memory), mask


# What a switch is the same as


def generator(**switches):
    return make("generator", dataclasses.replace(BASES["generator"], **switches))


def with_arrays(model, arrays):
    """The model with its own arrays, or those that are called the same here."""
    names, (leaves, structure) = parameter_names(model), jax.tree.flatten(model)
    leaves = [arrays.get(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
    return jax.tree.unflatten(structure, leaves)


def arrays_of(model):
    leaves = map(np.asarray, jax.tree.leaves(model))
    return dict(zip(parameter_names(model), leaves, strict=True))


SAME = {
    "a window as long as the text, as many heads of keys, high soft caps": (
        {"windows": (T,), "key_heads": 2, "softcap": 1e4, "head_softcap": 1e4},
        {},
    ),
    "windows of nothing, widths and scales of heads, a base without rotation, biases as all": (
        {"windows": (0, 0), "attention_scale": 0.5, "head_width": 4, "rotary_base": 7.0}
        | {"norm_bias": True, "feed_forward_bias": True, "head_bias": True},
        {},
    ),
    "scaling by one, a local base without windows": (
        ROTARY | {"rotary_scaling": RotaryScaling("linear", 1.0), "local_rotary_base": 7.0},
        ROTARY,
    ),
    "scaling by YaRN by one": (ROTARY | {"rotary_scaling": RotaryScaling("yarn", 1.0)}, ROTARY),
    "a local base that is the other one": (LOCAL | {"local_rotary_base": 1e4}, LOCAL),
    "an offset of sines": (
        {"positions": "sinusoidal", "position_offset": 2},
        {"positions": "sinusoidal"},
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_switches_that_say_what_is_so_anyway_change_nothing(name):
    one, other = (generator(**switches) for switches in SAME[name])
    assert parameter_names(one) == parameter_names(other)
    assert_close(call(one, TOKENS), call(other, TOKENS), 1e-5)


def test_a_position_offset_leaves_out_the_first_rows_of_the_table():
    plain, offset = (generator(positions="learned", position_offset=n) for n in (0, 2))
    assert offset.positions.table.shape == (SIZES["context"] + 2, D)
    rows = arrays_of(offset)["positions.table"][2:]
    assert_same(call(offset, TOKENS), call(with_arrays(plain, {"positions.table": rows}), TOKENS))


def test_a_segment_is_a_part_of_the_embedding():
    plain, segmented = generator(), generator(segments=2)
    table = arrays_of(plain)["embedding.table"] + arrays_of(segmented)["segments.table"][0]
    other = with_arrays(plain, {"embedding.table": table})
    assert_close(call(segmented, TOKENS), call(other, TOKENS))


def test_a_zero_centred_scale_is_one_less():
    norms = "rms", "zero_centred_rms"
    plain, centred = (generator(norm=norm, output_norms=True) for norm in norms)
    scales = {name: a + 1 for name, a in arrays_of(centred).items() if name.endswith("norm.scale")}
    assert len(scales) == 4 + 1
    assert_close(call(centred, TOKENS), call(with_arrays(plain, scales), TOKENS))


def test_shared_keys_are_heads_with_equal_kernels():
    shared, plain, repeats = generator(key_heads=1, qkv_bias=True), generator(qkv_bias=True), {}
    for name, array in arrays_of(shared).items():
        repeats[name] = np.tile(array, 2) if ".key." in name or ".value." in name else array
    assert_close(call(shared, TOKENS), call(with_arrays(plain, repeats), TOKENS))


def test_linear_scaling_by_two_sees_two_tokens_as_one_step():
    """At even places a text of a model that is scaled is the text of one that is not."""
    plain = generator(**ROTARY)
    scaled = generator(**ROTARY, rotary_scaling=RotaryScaling("linear", 2.0))

    @jax.jit
    def run(model, positions=None):
        x = model.embed(TOKENS[:, :3])
        return model.run_blocks(x, F.causal_mask(3), positions=positions)[0]

    assert_close(run(scaled, np.array([0, 2, 4])), run(plain))


def test_zero_outputs_change_only_the_arrays_that_are_0():
    """A block adds nothing yet: the logits are the head's of the embedding."""
    config = dataclasses.replace(BASES["generator"], gated=True)
    plain, zero = (
        begun(TransformerGenerator, dataclasses.replace(config, zero_output=z))
        for z in (False, True)
    )
    arrays, others = arrays_of(plain), arrays_of(zero)
    changed = {name for name, array in arrays.items() if (array != others[name]).any()}
    assert changed == {name for name in arrays if name.endswith("output.kernel")}
    assert not any(others[name].any() for name in changed)

    @jax.jit
    def head_alone(model):
        return model.logits(model.final_norm(model.embed(TOKENS)))

    assert_close(call(zero, TOKENS), head_alone(zero))


def test_a_convolution_and_mixed_values_begin_as_nothing_and_as_the_mean():
    switches = TWO | {"convolution": 2, "value_residual": True}
    model = begun(TransformerGenerator, dataclasses.replace(BASES["generator"], **switches))
    arrays = arrays_of(model)
    taps = {name: array for name, array in arrays.items() if name.endswith("_convolution")}
    assert [array.shape for array in taps.values()] == 4 * [(2, D)]
    assert not any(array.any() for array in taps.values())
    assert [name for name in arrays if name.endswith("value_mix")] == ["blocks.1.value_mix"]
    assert_same(arrays["blocks.1.value_mix"], [0.5, 0.5])


def test_a_convolution_does_not_look_into_another_document():
    with pytest.raises(ValueError, match="from one document into the one before"):
        generator(convolution=2)(TOKENS, documents=jnp.zeros_like(TOKENS))


# Defaults


def block_names(place, *, decoder=False):
    layers = ["attention", "cross_attention"] if decoder else ["attention"]
    for layer in layers:
        yield from (f"{place}.{layer}.{name}.kernel" for name in ("query", "key", "value"))
        yield from (f"{place}.{layer}.output.{name}" for name in ("kernel", "bias"))
        yield from (f"{place}.{layer}_norm.{name}" for name in ("scale", "bias"))
    for name in ("kernel", "bias"):
        yield from (f"{place}.feed_forward.{layer}.{name}" for layer in ("hidden", "output"))
    yield from (f"{place}.feed_forward_norm.{name}" for name in ("scale", "bias"))


HEAD = ["head.kernel", "head.bias"]
DEFAULTS = {
    "generator": (
        GeneratorConfig(vocabulary_size=71),
        44_487,
        ["embedding.table", "positions.table", *HEAD]
        + [name for i in range(3) for name in block_names(f"blocks.{i}")],
    ),
    "classifier": (
        ClassifierConfig(vocabulary_size=7455, num_classes=5),
        251_456,
        ["embedding.table", "pool.kernel", "pool.bias", *HEAD, *block_names("blocks.0")],
    ),
    "seq2seq": (
        Seq2SeqConfig(vocabulary_size=71, source_vocabulary_size=71),
        90_496,
        ["encoder.embedding.table"]
        + [name for i in range(3) for name in block_names(f"encoder.blocks.{i}")]
        + [name for i in range(3) for name in block_names(f"decoder.blocks.{i}", decoder=True)],
    ),
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults_have_the_parameters_that_they_had_before_there_were_options(kind):
    config, count, names = DEFAULTS[kind]
    model = jax.eval_shape(lambda: KINDS[kind](config, key=jax.random.key(0)))
    assert sorted(parameter_names(model)) == sorted(names)
    assert count_parameters(model) == count
