"""Sizes and parts of the models: what makes no sense is refused."""

import dataclasses
import math
import re

import jax
import pytest

from tests.helpers.models import replaced
from tlite.errors import UserError
from tlite.models import (
    ALiBi,
    Attention,
    CausalLM,
    ClassifierConfig,
    Embedding,
    FeedForward,
    GeneratorConfig,
    Learned,
    LMHead,
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
    SpecialTokens,
    TranslatorHead,
    Wide,
    make_model,
)

BLOCKS = [GeneratorConfig, ClassifierConfig, MaskedConfig, Seq2SeqConfig]
SIZES = {
    **dict.fromkeys(BLOCKS, "context num_blocks width num_heads"),
    **{Attention: "head_dim num_kv_heads", FeedForward: "mlp_dim"},
    **{LogisticConfig: "context", RotaryScaling: "original_context"},
}
COUNTS = {
    **dict.fromkeys(BLOCKS, "vocabulary_size"),
    **{ClassifierConfig: "num_classes", Seq2SeqConfig: "source_vocabulary_size"},
    **{LogisticConfig: "vocabulary_size num_classes bigrams", Embedding: "type_vocab_size"},
    **{
        Wide: "bigrams num_word_ngrams num_character_ngrams",
        Learned: "offset",
        SpecialTokens: "pad_id",
    },
}
POSITIVE = {
    **{Attention: "softcap scale", Norm: "epsilon", Embedding: "init_std", LMHead: "softcap"},
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
    *(({"attention.num_kv_heads": n}, f"4 heads can't share {n} heads") for n in (3, 8)),
    ({"positions": Rotary(), "attention.head_dim": 3}, "head width must be even"),
    ({"attention.windows": (4, -1)}, "a window must be at least 1, not -1"),
    ({"attention": Attention("mixed"), "attention.softcap": 5.0}, "mixed.* not support softcap"),
    *(
        ({"attention": Attention(own)} | special, f"not support {missing}")
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
    ({"positions": Relative(), "positions.num_buckets": 3}, "buckets must be at least 4"),
    ({"positions": Relative(), "positions.max_distance": 16}, "distance above half"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_parts_that_do_not_go_together_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        replaced(GeneratorConfig(), fields)


def test_other_models_refuse_what_does_not_go_together():
    with pytest.raises(ValueError, match="dense"):
        Pool(projection=Projection())
    for symbols in ({"pad_id": 3}, {"pad_id": 1, "eos_id": 1}):
        with pytest.raises(ValueError, match=str(symbols["pad_id"])):
            SpecialTokens(**symbols)
    for settings in ({}, {"head": TranslatorHead("shared")}):
        with pytest.raises(ValueError, match=r"one vocabulary, not sizes \(9, 10\)"):
            Seq2SeqConfig(9, source_vocabulary_size=10, **settings)


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_without_a_vocabulary_is_refused(tied):
    with pytest.raises(UserError, match="vocabulary_size"):
        make_model(GeneratorConfig(head=LMHead(tied=tied)), rng=jax.random.key(0))


def test_a_subclass_of_a_config_has_the_same_model():
    @dataclasses.dataclass(frozen=True)
    class Mine(GeneratorConfig):
        width: int = 8

    shapes = jax.eval_shape(lambda: make_model(Mine(vocabulary_size=5), rng=jax.random.key(0)))
    assert type(shapes) is CausalLM
    assert shapes.embedding.table.shape == (5, 8)
