"""Sizes and parts of the models: what makes no sense is refused, what 0.2.0 wrote is read (field
by field; of whole experiments: test_golden.py)."""

import dataclasses
import json
import math
import re

import jax
import pytest

from tests.helpers.models import replaced
from tlite.config import describe_code, from_dict, to_dict
from tlite.models import (
    ALiBi,
    Attention,
    Block,
    ClassifierConfig,
    Embedding,
    FeedForward,
    GeneratorConfig,
    Head,
    Learned,
    LogisticConfig,
    Loop,
    MaskedConfig,
    Norm,
    Pool,
    Projection,
    Relative,
    Rotary,
    RotaryScaling,
    Seq2SeqConfig,
    Sinusoidal,
    Symbols,
    TransformerGenerator,
    TranslatorHead,
    Wide,
    make_model,
)

BLOCKS = [GeneratorConfig, ClassifierConfig, MaskedConfig, Seq2SeqConfig]
SIZES = {
    **dict.fromkeys(BLOCKS, "context num_blocks width num_heads"),
    **{Attention: "head_width key_heads", FeedForward: "hidden_width"},
    **{LogisticConfig: "context", RotaryScaling: "original_context"},
}
COUNTS = {
    **dict.fromkeys(BLOCKS, "vocabulary_size"),
    **{ClassifierConfig: "num_classes", Seq2SeqConfig: "source_vocabulary_size"},
    **{LogisticConfig: "vocabulary_size num_classes bigrams", Embedding: "segments"},
    **{Wide: "bigrams word_rows character_rows", Learned: "offset", Symbols: "pad"},
}
POSITIVE = {
    **{Attention: "softcap scale", Norm: "epsilon", Embedding: "deviation", Head: "softcap"},
    **{Rotary: "base local_base", TranslatorHead: "scale"},
    RotaryScaling: "factor attention_factor low_frequency_factor beta_fast beta_slow",
}
RATES = dict.fromkeys((*BLOCKS, FeedForward), "dropout")
RULES = {  # what is said: numbers that cannot be, one that can, and the fields of each kind
    "{} must be at least 1": ([0, -1], 4, SIZES),
    "{} must not be negative": ([-1], 0, COUNTS),
    "{} must be positive": ([0.0, -1.0, math.nan, math.inf], 0.5, POSITIVE),
    "dropout rate must be in [0, 1)": ([-0.1, 1.0, math.nan, math.inf], 0.9, RATES),
    "word dropout must be in [0, 1)": ([-0.1, 1.0, math.nan], 0.9, {Embedding: "word_dropout"}),
}
FIELDS = [
    (kind, name, says, wrong, right)
    for says, (wrong, right, kinds) in RULES.items()
    for kind, names in kinds.items()
    for name in names.split()
]


@pytest.mark.parametrize(("kind", "name", "says", "wrong", "right"), FIELDS)
def test_a_number_that_cannot_be_is_refused(kind, name, says, wrong, right):
    for number in wrong:
        with pytest.raises(ValueError, match=re.escape(f"{says.format(name)}, not {number}")):
            kind(**{name: number})
    kind(**{name: right})


def own_attention(query, key, value, mask):
    return value, mask


LOCAL, PRE = {"attention.windows": (4, 0)}, {"block.first_norm": False}
REFUSED = [  # of a generator's parts
    ({"num_heads": 5}, "32 is not divisible by 5 heads"),
    *(({"attention.key_heads": n}, f"4 heads can't share {n} heads") for n in (3, 8)),
    ({"positions": Rotary(), "attention.head_width": 3}, "head width must be even"),
    ({"attention.windows": (4, -1)}, "a window must be at least 1, not -1"),
    ({"attention": Attention("mixed"), "attention.softcap": 5.0}, "mixed .* no softcap"),
    *(
        ({"attention": Attention(own)} | special, f"no {missing}")
        for own in ("mixed", "fused", own_attention)
        for special, missing in (
            ({"attention.scale": 0.1}, "scale"),
            ({"positions": Relative()}, "bias"),
            ({"positions": ALiBi()}, "bias"),
        )
    ),
    *(
        (fields | {"loop": Loop(True)}, "scan needs blocks that are alike")
        for fields in (LOCAL, PRE)
    ),
    ({"norm.offset": 1.0}, "layer norm has no offset"),
    ({"positions": "rotery"}, "positions must be one of .* not 'rotery'"),
    ({"positions": Relative(), "positions.buckets": 3}, "buckets must be at least 4"),
    ({"positions": Relative(), "positions.distance": 16}, "distance above half"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_parts_that_do_not_go_together_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        replaced(GeneratorConfig(), fields)


def test_other_models_refuse_what_does_not_go_together():
    with pytest.raises(ValueError, match="not the dense pool"):
        Pool(projection=Projection())
    for settings in ({}, {"head": TranslatorHead("shared")}):
        with pytest.raises(ValueError, match=r"one vocabulary, not sizes \(9, 10\)"):
            Seq2SeqConfig(9, source_vocabulary_size=10, **settings)


def test_a_subclass_of_a_config_has_the_same_model():
    @dataclasses.dataclass(frozen=True)
    class Mine(GeneratorConfig):
        width: int = 8

    shapes = jax.eval_shape(lambda: make_model(Mine(vocabulary_size=5), rng=jax.random.key(0)))
    assert type(shapes) is TransformerGenerator
    assert shapes.embedding.table.shape == (5, 8)


# What version 0.2.0 wrote


def function(*inputs):
    """In the place of any part of a user's."""


def read(kind, **values):
    return from_dict(kind, json.loads(json.dumps({"kind": kind.__name__} | values)))


OLD = {"norm_first": False}  # a field that only version 0.2.0 has
EARLIER = {
    "words of parts": (
        GeneratorConfig,
        {"attention": "mixed", "norm": "zero_centred_rms", "positions": "rotary"}
        | {"norm_epsilon": 0.5, "rotary_base": 7.0, "position_offset": 2, "zero_output": True}
        | {"key_heads": 2, "norm_first": True}
        | {"rotary_scaling": {"kind": "RotaryScaling", "method": "yarn", "factor": 4.0}},
        {
            "attention": Attention("mixed", key_heads=2, zero_output=True),
            "feed_forward": FeedForward(zero_output=True),
            "block": Block(pre_norm=True),
            "norm": Norm("rms", epsilon=0.5, offset=1.0),
            "positions": Rotary(7.0, scaling=RotaryScaling("yarn", 4.0)),
        },
    ),
    "numbers of positions that there are not": (
        GeneratorConfig,
        {"positions": "learned", "position_offset": 2, "rotary_base": 7.0, "relative_buckets": 8}
        | {"rotary_scaling": {"kind": "RotaryScaling", "method": "yarn", "factor": 4.0}},
        {"positions": Learned(offset=2)},
    ),
    "nothing of what is gone": (GeneratorConfig, {"convolution": 0, "value_residual": False}, {}),
    "a translator's embeddings": (
        Seq2SeqConfig,
        {"width": 64, "embedding_deviation": None, "pad_id": 4, "positions": "sinusoidal"},
        {
            "width": 64,
            "embedding": Embedding(deviation=0.125),
            "symbols": Symbols(pad=4),
            "positions": Sinusoidal(),
        },
    ),
    "a classifier's pool": (
        ClassifierConfig,
        {"aggregation": "first", "projection": "tanh", "projection_norm": False, "pairs": 60},
        {"pool": Pool("first", Projection("tanh", norm=False)), "wide": Wide(bigrams=60)},
    ),
    "a classifier without a projection": (
        ClassifierConfig,
        {"aggregation": "mean", "projection": None, "projection_bias": True},
        {"pool": Pool("mean")},
    ),
    "a masked model's projection": (
        MaskedConfig,
        {"projection": "silu", "projection_norm": False},
        {"projection": Projection("silu", norm=False)},
    ),
}


@pytest.mark.parametrize(("kind", "written", "parts"), EARLIER.values(), ids=EARLIER)
def test_fields_of_version_0_2_0_are_read_into_parts(kind, written, parts):
    assert read(kind, **OLD | written) == dataclasses.replace(kind(), **parts)


@pytest.mark.parametrize("slot", ["attention", "feed_forward", "norm", "positions"])
def test_a_function_of_ones_own_is_read_whatever_numbers_stand_beside_it(slot):
    numbers = {"hidden_width": 7, "norm_epsilon": 0.5, "rotary_base": 7.0, "positions": "learned"}
    config = read(GeneratorConfig, **numbers | {slot: describe_code(function)})
    expected = GeneratorConfig(feed_forward=FeedForward(7), norm=Norm(epsilon=0.5))
    assert config == dataclasses.replace(expected, **{slot: function})
    assert getattr(config, slot).function is function


@pytest.mark.parametrize("gone", [{"convolution": 3}, {"value_residual": True}], ids=str)
def test_what_is_gone_is_told(gone):
    (name,) = gone
    with pytest.raises(ValueError, match=f"^{name} is no part .*: tlite 0.2.0 opens this run$"):
        read(GeneratorConfig, **OLD | gone)


def test_what_is_written_today_is_read_as_it_is():
    values = to_dict(GeneratorConfig(positions=Rotary(), attention=Attention(function)))
    assert GeneratorConfig.read_earlier(values) == values
