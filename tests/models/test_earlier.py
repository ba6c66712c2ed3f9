"""What version 0.2.0 wrote of a model, field by field; of whole experiments: test_golden.py."""

import dataclasses
import json

import pytest

from tlite.config import describe_code, from_dict, to_dict
from tlite.models import (
    Attention,
    Block,
    ClassifierConfig,
    Embedding,
    FeedForward,
    GeneratorConfig,
    Learned,
    MaskedConfig,
    Norm,
    Pool,
    Projection,
    Rotary,
    RotaryScaling,
    Seq2SeqConfig,
    Sinusoidal,
    Symbols,
    Wide,
)


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
