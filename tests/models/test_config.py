"""Sizes and parts of the models: numbers that make no sense are refused."""

import dataclasses
import math
import re

import jax
import pytest

from tests.helpers.models import replaced
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
    Symbols,
    TransformerGenerator,
    TranslatorHead,
    Wide,
    make_model,
)

BLOCKS = [GeneratorConfig, ClassifierConfig, MaskedConfig, Seq2SeqConfig]
RATES = "the dropout rate must be in [0, 1)", [-0.1, 1.0, math.nan, math.inf], [0.0, 0.9]
WORDS = "word dropout must be in [0, 1)", [-0.1, 1.0, math.nan], [0.0, 0.9]
NOT_NEGATIVE = "{} must not be negative", [-1], [0]
POSITIVE = "{} must be positive", [0.0, -1.0, math.nan, math.inf], [0.5]
AT_LEAST_1 = "{} must be at least 1", [0, -1], []
FIELDS = [
    *((kind, "dropout", RATES) for kind in (*BLOCKS, FeedForward)),
    (Embedding, "word_dropout", WORDS),
    *((kind, "vocabulary_size", NOT_NEGATIVE) for kind in (*BLOCKS, LogisticConfig)),
    (Seq2SeqConfig, "source_vocabulary_size", NOT_NEGATIVE),
    *((kind, "num_classes", NOT_NEGATIVE) for kind in (ClassifierConfig, LogisticConfig)),
    *((Wide, name, NOT_NEGATIVE) for name in ("bigrams", "word_rows", "character_rows")),
    (LogisticConfig, "bigrams", NOT_NEGATIVE),
    *((Embedding, "segments", NOT_NEGATIVE), (Learned, "offset", NOT_NEGATIVE)),
    (Symbols, "pad", NOT_NEGATIVE),
    *((Attention, "softcap", POSITIVE), (Attention, "scale", POSITIVE)),
    *((Norm, "epsilon", POSITIVE), (Embedding, "deviation", POSITIVE)),
    *((Rotary, "base", POSITIVE), (Rotary, "local_base", POSITIVE)),
    *((Head, "softcap", POSITIVE), (TranslatorHead, "scale", POSITIVE)),
    *((RotaryScaling, f"{each}_frequency_factor", POSITIVE) for each in ("low", "high")),
    *((RotaryScaling, f"beta_{each}", POSITIVE) for each in ("fast", "slow")),
    *((RotaryScaling, name, POSITIVE) for name in ("factor", "attention_factor")),
    *((kind, name, AT_LEAST_1) for kind in BLOCKS for name in ("context", "width", "num_heads")),
    *((kind, "num_blocks", AT_LEAST_1) for kind in BLOCKS),
    *((Seq2SeqConfig, "decoder_blocks", AT_LEAST_1), (LogisticConfig, "context", AT_LEAST_1)),
    *((Attention, name, AT_LEAST_1) for name in ("head_width", "key_heads")),
    (FeedForward, "hidden_width", AT_LEAST_1),
    *((Relative, "buckets", AT_LEAST_1), (Relative, "distance", AT_LEAST_1)),
    (RotaryScaling, "original_context", AT_LEAST_1),
]


@pytest.mark.parametrize(("kind", "name", "rule"), FIELDS)
def test_a_number_that_cannot_be_is_refused(kind, name, rule):
    says, wrong, right = rule
    for number in wrong:
        with pytest.raises(ValueError, match=re.escape(f"{says.format(name)}, not {number}")):
            kind(**{name: number})
    for number in right:
        kind(**{name: number})


def own_attention(query, key, value, mask):
    return value, mask


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GeneratorConfig(num_heads=5), "32 is not divisible by 5 heads"),
        (lambda: GeneratorConfig(attention=Attention(key_heads=3)), "4 heads can't share 3 heads"),
        (lambda: GeneratorConfig(attention=Attention(key_heads=8)), "4 heads can't share 8 heads"),
        (
            lambda: GeneratorConfig(positions=Rotary(), attention=Attention(head_width=3)),
            "head width must be even",
        ),
        (lambda: Attention(windows=(4, -1)), "a window must be at least 1, not -1"),
        (lambda: Relative(3), "buckets must be at least 4"),
        (lambda: Relative(distance=16), "distance above half"),
        (
            lambda: GeneratorConfig(attention=Attention("mixed", softcap=5.0)),
            "mixed attention takes no softcap",
        ),
        *(
            (lambda a=own, s=special: replaced(GeneratorConfig(attention=a), s), f"no {missing}")
            for own in ("mixed", "fused", own_attention)
            for special, missing in (
                ({"attention.scale": 0.1}, "scale"),
                ({"positions": Relative()}, "bias"),
                ({"positions": ALiBi()}, "bias"),
            )
        ),
        (
            lambda: GeneratorConfig(loop=Loop(scan=True), attention=Attention(windows=(4, 0))),
            "scan needs blocks that are alike",
        ),
        (
            lambda: GeneratorConfig(loop=Loop(scan=True), block=Block(first_norm=False)),
            "scan needs blocks that are alike",
        ),
        (lambda: Pool(projection=Projection()), "not the dense pool"),
        (lambda: Norm(offset=1.0), "layer norm has no offset"),
        (lambda: GeneratorConfig(positions="rotery"), "positions must be one of .* not 'rotery'"),
        (
            lambda: Seq2SeqConfig(vocabulary_size=9, source_vocabulary_size=10),
            r"one vocabulary, not sizes \(9, 10\)",
        ),
        (
            lambda: Seq2SeqConfig(5, source_vocabulary_size=9, head=TranslatorHead("shared")),
            r"one vocabulary, not sizes \(5, 9\)",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_subclass_of_a_config_has_the_same_model():
    @dataclasses.dataclass(frozen=True)
    class Mine(GeneratorConfig):
        width: int = 8

    shapes = jax.eval_shape(lambda: make_model(Mine(vocabulary_size=5), rng=jax.random.key(0)))
    assert type(shapes) is TransformerGenerator
    assert shapes.embedding.table.shape == (5, 8)
