"""The switches of the models: numbers that make no sense are refused."""

import math

import pytest

from tlite.functional import scaled_dot_product_attention
from tlite.models import (
    ClassifierConfig,
    GeneratorConfig,
    LogisticConfig,
    MaskedConfig,
    RotaryScaling,
    Seq2SeqConfig,
)

BLOCKS = [GeneratorConfig, ClassifierConfig, MaskedConfig, Seq2SeqConfig]


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("deviation", [-1.0, 0.0, math.nan, math.inf])
def test_a_deviation_that_cannot_be_is_refused(kind, deviation):
    with pytest.raises(ValueError, match="embedding_deviation must be positive"):
        kind(embedding_deviation=deviation)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("name", ["dropout", "hidden_dropout"])
@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan, math.inf])
def test_a_rate_that_cannot_be_is_refused(kind, name, rate):
    with pytest.raises(ValueError, match=r"the dropout rate must be in \[0, 1\)"):
        kind(**{name: rate})


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, "vocabulary_size") for kind in (*BLOCKS, LogisticConfig)),
        *((kind, "segments") for kind in BLOCKS),
        *((kind, "position_offset") for kind in BLOCKS),
        (Seq2SeqConfig, "source_vocabulary_size"),
        (Seq2SeqConfig, "pad_id"),
        (ClassifierConfig, "num_classes"),
        (ClassifierConfig, "bigrams"),
        (LogisticConfig, "num_classes"),
        (LogisticConfig, "bigrams"),
    ],
)
def test_a_size_below_nothing_is_refused(kind, name):
    with pytest.raises(ValueError, match=f"{name} must not be negative, not -1"):
        kind(**{name: -1})
    assert getattr(kind(), name) >= 0


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, "softcap") for kind in BLOCKS),
        (GeneratorConfig, "attention_scale"),
        (GeneratorConfig, "norm_epsilon"),
        (GeneratorConfig, "rotary_base"),
        (GeneratorConfig, "local_rotary_base"),
        (GeneratorConfig, "head_softcap"),
        (Seq2SeqConfig, "head_scale"),
        (RotaryScaling, "factor"),
        (RotaryScaling, "low_frequency_factor"),
        (RotaryScaling, "high_frequency_factor"),
        (RotaryScaling, "beta_fast"),
        (RotaryScaling, "beta_slow"),
        (RotaryScaling, "attention_factor"),
    ],
)
@pytest.mark.parametrize("number", [0.0, -1.0, math.nan, math.inf])
def test_a_number_that_must_be_positive_is_refused_if_it_is_not(kind, name, number):
    with pytest.raises(ValueError, match=f"{name} must be positive, not {number}"):
        kind(**{name: number})
    kind(**{name: 0.5})


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize(
    "name",
    ["context", "width", "num_heads", "head_width", "hidden_width", "key_heads", "num_blocks"],
)
def test_a_size_of_nothing_is_refused(kind, name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        kind(**{name: 0})


def test_a_context_of_training_of_nothing_is_refused():
    with pytest.raises(ValueError, match="original_context must be at least 1, not 0"):
        RotaryScaling(original_context=0)


def own_attention(query, key, value, mask):
    return value, mask


YARN = {"positions": "rotary", "rotary_scaling": RotaryScaling("yarn", 4.0)}


@pytest.mark.parametrize(
    ("kind", "switches", "message"),
    [
        (GeneratorConfig, {"num_heads": 5}, "32 is not divisible by 5 heads"),
        (GeneratorConfig, {"key_heads": 3}, "4 heads can't share 3 heads of keys"),
        (GeneratorConfig, {"key_heads": 8}, "4 heads can't share 8 heads of keys"),
        (GeneratorConfig, {"positions": "rotary", "head_width": 3}, "head width must be even"),
        (GeneratorConfig, {"windows": (4, -1)}, "a window must be at least 1, not -1"),
        (GeneratorConfig, {"relative_buckets": 0}, "relative_buckets must be at least 1, not 0"),
        (GeneratorConfig, {"relative_buckets": 3}, "relative_buckets must be at least 4"),
        (GeneratorConfig, {"relative_distance": 0}, "relative_distance must be at least 1"),
        (GeneratorConfig, {"relative_distance": 16}, "relative_distance above half"),
        (
            GeneratorConfig,
            {"attention": "mixed", "softcap": 5.0},
            "mixed attention takes no softcap",
        ),
        (GeneratorConfig, {"attention": "mixed"} | YARN, "mixed attention takes no scale"),
        *(
            (GeneratorConfig, {"attention": own} | special, f"takes no {missing}")
            for own in ("mixed", own_attention)
            for special, missing in (
                ({"attention_scale": 0.1}, "scale"),
                ({"positions": "relative"}, "bias"),
                ({"positions": "alibi"}, "bias"),
            )
        ),
        (GeneratorConfig, YARN | {"local_rotary_base": 7.0}, "can't go with a local_rotary_base"),
        (Seq2SeqConfig, YARN, "has no rotation"),
        (GeneratorConfig, {"scan": True, "windows": (4, 0)}, "scan needs blocks that are alike"),
        (GeneratorConfig, {"scan": True, "first_norm": False}, "scan needs blocks that are alike"),
        (GeneratorConfig, {"scan": True, "value_residual": True}, "scan needs blocks that are"),
        (GeneratorConfig, {"convolution": -1}, "convolution must not be negative, not -1"),
        (GeneratorConfig, {"convolution": 65}, "convolution must be at most 64, not 65"),
        (ClassifierConfig, {"projection": "tanh"}, "not the dense aggregation"),
    ],
)
def test_switches_that_do_not_go_together_are_refused(kind, switches, message):
    with pytest.raises(ValueError, match=message):
        kind(**switches)


def test_a_norm_with_parameters_of_its_own_is_not_that_of_heads():
    def norm(own, x):
        return x

    norm.parameters = lambda config, key: {}
    with pytest.raises(ValueError, match="can't norm queries and keys"):
        GeneratorConfig(norm=norm, query_key_norm=True)


@pytest.mark.parametrize(
    "switches",
    [
        {"key_heads": 1},
        {"attention": "mixed", "rotary_scaling": RotaryScaling("llama3", 8.0)},
        {"attention": "exact"} | YARN,
        {"attention": "auto"} | YARN,
        {"attention": "auto", "softcap": 5.0, "positions": "alibi"},
        {"attention": scaled_dot_product_attention, "softcap": 5.0},
        {"scan": True, "windows": (4, 4)},
        {"windows": (0,)},
    ],
)
def test_switches_that_go_together_are_taken(switches):
    GeneratorConfig(**switches)


def test_windows_are_those_of_the_blocks_one_after_the_other_and_again():
    config = GeneratorConfig(windows=(4, 0, 2))
    assert [config.window(block) for block in range(5)] == [4, 0, 2, 4, 0]
    assert GeneratorConfig().window(3) == 0


@pytest.mark.parametrize(
    ("scaling", "magnitude"),
    [
        (RotaryScaling("linear", 4.0), 1.0),
        (RotaryScaling("llama3", 4.0), 1.0),
        (RotaryScaling("yarn", 4.0), 0.1 * math.log(4) + 1),
        (RotaryScaling("yarn", 1.0), 1.0),
        (RotaryScaling("yarn", 4.0, attention_factor=1.5), 1.5),
    ],
)
def test_only_yarn_multiplies_queries_and_keys(scaling, magnitude):
    assert scaling.magnitude == pytest.approx(magnitude)
    config = GeneratorConfig(positions="rotary", rotary_scaling=scaling, head_width=16)
    expected = None if magnitude == 1 else magnitude**2 / 4
    assert config.score_scale == (None if expected is None else pytest.approx(expected))
    given = GeneratorConfig(positions="rotary", rotary_scaling=scaling, attention_scale=0.3)
    assert given.score_scale == pytest.approx(0.3 * magnitude**2)
