"""Configs of models: numbers, words and combinations that make no sense are errors."""

import dataclasses
import inspect
import itertools
import math
import re

import jax
import jaxtyping
import pytest

from tests.helpers.models import replaced
from tlite import functional as F
from tlite import models as M
from tlite.errors import UserError
from tlite.models.config import PRESETS, describe_components, resolve
from tlite.user_code import name_of

BLOCKS = [M.GeneratorConfig, M.ClassifierConfig, M.MaskedConfig, M.Seq2SeqConfig]
AT_LEAST_1, NOT_NEGATIVE = "{} must be at least 1", "{} must not be negative"
RATE = "dropout rate must be in [0, 1)"
NUMBERS = [  # a message, invalid numbers, a valid one; dataclasses and fields
    (AT_LEAST_1, [0, -1], 4, [(M.GeneratorConfig, "width"), (M.Attention, "head_dim")]),
    (AT_LEAST_1, [0], 4, [(M.Seq2SeqConfig, "num_blocks"), (M.FeedForward, "mlp_dim")]),
    (NOT_NEGATIVE, [-1], 0, [(M.ClassifierConfig, "num_classes"), (M.Wide, "bigrams")]),
    (NOT_NEGATIVE, [-1], 0, [(M.LogisticConfig, "bigrams"), (M.Learned, "offset")]),
    ("{} must be positive", [0.0, math.nan], 0.5, [(M.Norm, "epsilon"), (M.Attention, "scale")]),
    ("{} must be positive", [-1.0, math.inf], 0.5, [(M.Rotary, "base")]),
    ("{} must be positive", [-1.0, math.inf], 0.5, [(M.RotaryScaling, "factor")]),
    (RATE, [-0.1, 1.0, math.nan], 0.9, [(M.Attention, "dropout"), (M.MaskedConfig, "dropout")]),
]


@pytest.mark.parametrize(("message", "invalid", "valid", "fields"), NUMBERS)
def test_an_invalid_number_is_an_error(message, invalid, valid, fields):
    for (kind, name), number in itertools.product(fields, invalid):
        with pytest.raises(ValueError, match=re.escape(f", not {number}")) as caught:
            kind(**{name: number})
        assert message.format(name) in str(caught.value)
        kind(**{name: valid})


@dataclasses.dataclass(frozen=True)
class Scaled(M.FeedForward):
    def __call__(self, params, x):
        return x


WRONG_TOGETHER = [
    ({"block": M.Block(attention=M.Attention(num_kv_heads=3))}, "multiple of num_kv_heads"),
    (
        {"positions": "rotary", "block": (M.Block(attention=M.Attention(head_dim=16)),)},
        "one head_dim in all blocks",
    ),
    ({"feed_forward": Scaled(mlp_dim=6)}, "Scaled needs init"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG_TOGETHER)
def test_fields_that_would_have_no_effect_are_errors(fields, message):
    with pytest.raises(ValueError, match=message):
        M.GeneratorConfig(**fields)


@pytest.mark.parametrize(("kind", "name"), itertools.product(BLOCKS, PRESETS))
def test_every_unknown_word_is_an_error(kind, name, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it
    with pytest.raises(ValueError, match=rf"^{name}(:| must be) .* not 'rotery'$"):
        kind(**{name: "rotery"})


PRE, POST = M.Block(pre_norm=True), M.Block()
CONFLICTS = [  # fields of a generator's config
    ({"num_heads": 5}, r"width \(32\) .* num_heads \(5\)"),
    *(({"attention.num_kv_heads": n}, rf"num_heads \(4\) .* num_kv_heads \({n}\)") for n in (3, 8)),
    ({"positions": M.Rotary(), "attention.head_dim": 3}, "even head_dim, not 3"),
    ({"positions": M.Rotary(), "width": 12}, "even head_dim, not 3"),
    ({"attention.windows": (4, -1)}, "a window must be at least 1, not -1"),
    ({"attention": M.Attention("mixed"), "attention.softcap": 5.0}, "mixed.* not support softcap"),
    *(
        ({"attention": M.Attention(function)} | special, f"not support {missing}")
        for function in ("mixed", "fused", lambda query, key, value, mask: (value, mask))
        for special, missing in (
            ({"attention.scale": 0.1}, "scale"),
            ({"positions": M.Relative()}, "bias"),
            ({"positions": M.ALiBi()}, "bias"),
        )
    ),
    *(
        (fields | {"loop": M.Loop(scan=True)}, "scan needs identical blocks")
        for fields in (
            {"attention.windows": (4, 0)},
            {"block.first_norm": False},
            {"block": (POST, M.Block(attention=M.Attention(num_kv_heads=1)))},
        )
    ),
    ({"block": (PRE, POST)}, "same pre_norm"),
    (
        {"block": (POST, M.Block(attention=M.Attention(head_dim=2))), "positions": M.Rotary()},
        "one head_dim in all blocks",
    ),
    ({"block": (POST, M.Block(attention=M.Attention(num_kv_heads=3)))}, r"num_kv_heads \(3\)"),
    (
        {"attention": M.Attention("exact", query_chunk_size=4), "attention.dropout": 0.1},
        "without chunks",
    ),
    *(
        ({"attention": M.Attention(name), "attention.dropout": 0.1}, "dropout .* needs .*'exact'")
        for name in ("mixed", "fused")
    ),
    ({"norm.offset": 1.0}, "layer norm has no offset"),
    ({"positions": M.Relative(), "positions.num_buckets": 3}, r"num_buckets \(3\)"),
    ({"positions": M.Relative(), "positions.max_distance": 16}, r"num_buckets \(32\)"),
]


@pytest.mark.parametrize(("fields", "message"), CONFLICTS)
def test_components_that_do_not_fit_are_an_error(fields, message):
    with pytest.raises(ValueError, match=message):
        replaced(M.GeneratorConfig(), fields)


def test_conflicting_fields_of_other_models_are_an_error():
    with pytest.raises(ValueError, match="dense"):
        M.Pool(projection=M.Projection())
    for symbols in ({"pad_id": 3}, {"pad_id": 1, "eos_id": 1}):
        with pytest.raises(ValueError, match=str(symbols["pad_id"])):
            M.SpecialTokens(**symbols)
    for settings in ({}, {"head": M.TranslatorHead("shared")}):
        with pytest.raises(ValueError, match=r"one vocabulary, not sizes \(9, 10\)"):
            M.Seq2SeqConfig(9, source_vocabulary_size=10, **settings)


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_without_a_vocabulary_is_an_error(tied):
    with pytest.raises(UserError, match="vocabulary_size"):
        M.make_model(M.GeneratorConfig(head=M.LMHead(tied=tied)), rng=jax.random.key(0))


SCALING = {"low": "low_frequency_factor", "high": "high_frequency_factor"}
SCALING |= {"fast": "beta_fast", "slow": "beta_slow"}
NORM = {"eps": "epsilon", "offset": "offset"}


@pytest.mark.parametrize(
    ("function", "component", "names"),
    [(F.llama3_frequencies, M.RotaryScaling(), SCALING)]
    + [(F.yarn_frequencies, M.RotaryScaling(), SCALING)]
    + [(norm, M.Norm(), NORM) for norm in (F.layer_norm, F.rms_norm)],
)
def test_components_have_the_defaults_of_their_functions(function, component, names):
    for argument in inspect.signature(function).parameters.values():
        if argument.name in names:
            assert getattr(component, names[argument.name]) == argument.default


def test_a_subclass_of_a_config_has_the_same_model():
    @dataclasses.dataclass(frozen=True)
    class Mine(M.GeneratorConfig):
        width: int = 8

    shapes = jax.eval_shape(lambda: M.make_model(Mine(vocabulary_size=5), rng=jax.random.key(0)))
    assert type(shapes) is M.CausalLM
    assert shapes.embedding.table.shape == (5, 8)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attention", M.FeedForward()),
        ("feed_forward", M.Attention()),
        ("norm", M.FeedForward()),
        ("norm", M.Norm),
        ("attention", M.Attention),
    ],
)
def test_component_of_another_field_is_an_error(field, value):
    with pytest.raises(ValueError, match=f"{field} must be a word, a function"):
        resolve(field, value)


def test_components_are_described_by_their_fields():
    def mine(x):
        return x

    pattern = M.Block(), M.Block(attention=M.Attention("mixed"))
    fields = {"attention": M.Attention("exact", query_chunk_size=4), "norm": mine}
    fields |= {"feed_forward.activation": mine, "block": pattern}
    described = dict(describe_components(replaced(M.GeneratorConfig(), fields)))
    mine_described = dict.fromkeys(["activation", "norm"], name_of(mine))
    expected = {"attention": "exact in chunks of 4", "block": "attention mixed"}
    assert described == expected | mine_described
