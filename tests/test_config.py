"""Configs are read back from JSON; errors name the field that does not fit."""

import copy
import dataclasses
import json
import re
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tlite import models as M
from tlite.config import Config, from_dict, override, to_dict
from tlite.data import LabelledText, TextFile
from tlite.experiment import BPE, ClassifierExperiment, Experiment, GeneratorExperiment, Pretrained
from tlite.models.components import FeedForwardFunction, NormFunction, PositionsFunction
from tlite.training import TrainingConfig

PLAIN = {
    int: st.sampled_from([4, 8, 300]),
    float: st.sampled_from([0.1, 0.5, 1e-300 / 3 + 0.25]),
    bool: st.booleans(),
    str: st.just("Grüße 1") | st.text(st.characters(codec="utf-8")),
    NoneType: st.none(),
}

FUNCTIONS = NormFunction, FeedForwardFunction, PositionsFunction  # a user's, from a file


def values(kind: Any) -> st.SearchStrategy:
    """Return a strategy for values of this type, with all fields of the components of a model."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    if origin in (Union, UnionType):
        kinds = [kind for kind in args if kind is not Callable]
        if any(map(dataclasses.is_dataclass, kinds)):  # components, without the words for them
            kinds = [k for k in kinds if k is NoneType or dataclasses.is_dataclass(k)]
        return st.one_of([values(k) for k in kinds if k not in FUNCTIONS])
    return configs(kind) if dataclasses.is_dataclass(kind) else PLAIN[kind]


@st.composite
def configs(draw, kind: type):
    """Draw a config with any of its fields; reject contradictory ones."""
    fields, hints = dataclasses.fields(kind), get_type_hints(kind)
    optional = {f.name: values(hints[f.name]) for f in fields}
    needed = {f.name: optional.pop(f.name) for f in fields if f.default is f.default_factory}
    try:
        return kind(**draw(st.fixed_dictionaries(needed, optional=optional)))
    except ValueError:
        reject()


def literals(kind):
    """Yield (class, field, words) of each `Literal` in a type and the dataclasses of its fields."""
    if dataclasses.is_dataclass(kind):
        for name, hint in get_type_hints(kind).items():
            if get_origin(hint) is not ClassVar:
                words = [k for k in (hint, *get_args(hint)) if get_origin(k) is Literal]
                yield from [(kind, name, get_args(words[0]))] if words else literals(hint)
    for each in get_args(kind):
        yield from literals(each)


WORDS = dict.fromkeys(literals(Experiment | M.MaskedConfig))


@pytest.mark.parametrize(("kind", "field", "words"), WORDS, ids=str)
def test_an_unknown_word_is_an_error_in_python(kind, field, words):
    """The fields are set past the type checker of the tests, which Python does not have."""
    config = kind(
        **{f.name: "x" for f in dataclasses.fields(kind) if f.default is f.default_factory}
    )
    for wrong in ("layer_norm", None, 3):
        object.__setattr__(config, field, wrong)
        with pytest.raises(ValueError, match=f"^{field}: ") as caught:
            config.__post_init__()
        assert all(word in str(caught.value) for word in (*words, repr(wrong)))


OTHER_TYPES = [
    (TrainingConfig(), "steps", 56.25),
    (TrainingConfig(), "gradient_accumulation_steps", 2.0),
    (TrainingConfig(), "low_rank", "*.query.*"),
    (TrainingConfig(), "trainable", ["head.*"]),
    (TrainingConfig(), "groups", "*.bias"),
    (M.GeneratorConfig(), "width", "64"),
    (LabelledText("a.csv"), "training", "b.csv"),
]


@pytest.mark.parametrize(("config", "field", "wrong"), OTHER_TYPES)
def test_a_value_of_another_type_is_an_error_in_python(config, field, wrong):
    """The fields are set past the type checker of the tests, which Python does not have."""
    config = copy.copy(config)
    object.__setattr__(config, field, wrong)
    message = f"{field}: expected (int|str|tuple|LowRank).*, not {re.escape(repr(wrong))}"
    with pytest.raises(ValueError, match=message):
        config.__post_init__()


@pytest.mark.parametrize(
    ("config", "field", "value", "expected"),
    [
        (TrainingConfig(), "steps", np.int64(5), 5),
        (LabelledText("a.csv"), "training", ["b.csv"], ("b.csv",)),
        (M.Attention(), "windows", [3], (3,)),
    ],
)
def test_numpy_integers_and_lists_are_converted(config, field, value, expected):
    config = copy.copy(config)
    object.__setattr__(config, field, value)
    config.__post_init__()
    assert getattr(config, field) == expected
    assert type(getattr(config, field)) is type(expected)


def test_fields_annotated_by_strings_are_checked():
    @dataclasses.dataclass(frozen=True)
    class Stage(Config):
        steps: "int" = 1  # as all are under `from __future__ import annotations`

    with pytest.raises(ValueError, match=r"^steps: expected int, not 1.5$"):
        Stage(steps=1.5)

    @dataclasses.dataclass(frozen=True)
    class Typed(Config):
        value: "TypeForCheckersOnly" = 1  # noqa: F821

    assert Typed(2).value == 2


def through_json(config, change=lambda values: None, kind=None):
    values = json.loads(json.dumps(to_dict(config)))
    change(values)
    return from_dict(kind or type(config), values)


# beartype draws the element of a tuple that it checks
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@given(values(Experiment))
def test_an_experiment_survives_json(experiment):
    assert through_json(experiment) == experiment
    assert through_json(experiment, kind=Experiment) == experiment


def test_labels_keep_their_order():
    config = LabelledText(labels={"b": "x", "a": "y", "c": "x"})
    assert list(through_json(config).labels) == ["b", "a", "c"]


def test_the_largest_seeds_are_valid():
    assert TrainingConfig(seed=2**31 - 2, seeds=2).seed_range[-1] == 2**31 - 1


def test_a_field_missing_in_json_takes_its_default():
    config = TrainingConfig(steps=7, seeds=3)
    expected = dataclasses.replace(config, seeds=1)
    assert through_json(config, lambda values: values.pop("seeds")) == expected


TRAINING, GENERATOR = TrainingConfig(), M.GeneratorConfig()
MINE, TABLE = GeneratorExperiment("x", TextFile()), LabelledText()
NOVEL = {"kind": "Novel"}
MISFITS = [
    (TRAINING, {"colour": 1}, "^TrainingConfig has no field colour"),
    (TRAINING, {"steps": 1.5}, "^steps: expected int, not 1.5"),
    (TRAINING, {"steps": 0}, "steps must be at least 1"),
    (TRAINING, {"schedule": "sawtooth"}, "schedule must be .*constant, .* not 'sawtooth'"),
    (TRAINING, {"schedule": {"kind": "function"}}, "schedule: expected str or function, not"),
    (TRAINING, {"kind": "Cooking"}, "TrainingConfig.*Cooking"),
    (TRAINING, {"groups": [{"pattern": "*.bias"}]}, "groups: expected ParameterGroup, not {"),
    (MINE, {"data": NOVEL}, "BuiltinText or TextFile .*Novel"),
    (MINE, {"data": {"kind": "TextFile", "colour": 1}}, "^data: TextFile has no field colour"),
    (TABLE, {"labels": {"1": 2}}, "labels.*2"),
    (TABLE, {"training": "a.csv"}, "training.*'a.csv'"),
    (M.Rotary(), {"scaling": NOVEL}, "scaling: expected RotaryScaling or None, not"),
    (TRAINING, {"seed": 2**31 - 2, "seeds": 3}, "2147483646 to 2147483648"),
    (GENERATOR, {"width": 2**31}, "width must be at most .*, not 2147483648"),
    (GENERATOR, {"block": {"kind": "Block", "pre_norm": 1}}, "^block: pre_norm: expected bool"),
    (GENERATOR, {"head": {"kind": "TranslatorHead"}}, "^head: expected LMHead, not 'Transla"),
]


@pytest.mark.parametrize(("config", "change", "named"), MISFITS)
def test_a_field_that_does_not_fit_is_named(config, change, named):
    with pytest.raises(ValueError, match=named):
        through_json(config, lambda values: values.update(change))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda v: v.update(kind="Cooking"), "GeneratorExperiment or ClassifierEx.*Cooking"),
        (lambda v: v.update(sentences="many"), "^sentences: expected int, not 'many'$"),
        (lambda v: v.pop("name"), "^ClassifierExperiment lacks name$"),
    ],
)
def test_errors_of_a_union_are_those_of_the_kind_in_json(change, named):
    with pytest.raises(ValueError, match=named):
        through_json(ClassifierExperiment("x"), change, Experiment)


# Changes by dotted name

ROTARY = GeneratorExperiment("x", model=M.GeneratorConfig(positions=M.Rotary(5.0)))
GROUPED = M.Attention(num_kv_heads=2, softcap=1.0)
CHANGES = [
    ({"width": 60, "num_heads": 6}, {"width": 60, "num_heads": 6}),
    ({"width": 36, "positions": "learned"}, {"width": 36, "positions": M.Learned()}),
    ({"positions.base": 7}, {"positions": M.Rotary(7.0)}),
    ({"positions.local_base": 7.0, "positions": "rotary"}, {"positions": M.Rotary(local_base=7.0)}),
    (
        {"positions.scaling.factor": 8},
        {"positions": M.Rotary(5.0, None, M.RotaryScaling(factor=8.0))},
    ),
    ({"attention": GROUPED, "attention.softcap": None}, {"attention": M.Attention(num_kv_heads=2)}),
    ({"feed_forward.activation": jnp.tanh}, {"feed_forward": M.FeedForward(activation=jnp.tanh)}),
    ({"num_blocks": np.int64(5)}, {"num_blocks": 5}),
]
NO_CHANGES = {
    "model.widht": (1, "no field 'model.widht': did you mean 'model.width'?"),
    "width": (1, "no field 'width': did you mean 'model.width'?"),
    "modle.width": (1, "no field 'modle.width': did you mean 'model.width'?"),
    "model.base": (1.0, "no field 'model.base': did you mean 'model.positions.base'?"),
    "model.positions.beta": (1, "no field 'model.positions.beta': Rotary has base, local_base"),
    "model.width.x": (1, "no field 'model.width.x': model.width is 32"),
    "model.block.0": ("pre_norm", "no field 'model.block.0': Block has pre_norm"),
    "model.width": ("64", "model.width: expected int, not '64'"),
    "training.learning_rate": (None, "training.learning_rate: expected float, not None"),
    "training.schedule": ("sawtooth", "training.schedule: schedule must be .*, not 'sawtooth'"),
    "model.positions": ("rotry", "model.positions: positions must be one of learned, .*'rotry'"),
    "model.positions.base": (-1.0, "model.positions: base must be positive, not -1.0"),
    "model.num_heads": (5, r"model: width \(32\) must be a multiple of num_heads \(5\)"),
    "training": (M.Rotary(), "training: expected TrainingConfig, not Rotary"),
}


@pytest.mark.parametrize(("changes", "fields"), CHANGES)
def test_override_changes_fields_by_dotted_name(changes, fields):
    model = dataclasses.replace(ROTARY.model, **fields)
    changes = {f"model.{name}": value for name, value in changes.items()}
    assert override(ROTARY, changes) == dataclasses.replace(ROTARY, model=model)


@pytest.mark.parametrize("path", sorted(NO_CHANGES))
def test_override_names_field_value_and_type(path):
    value, message = NO_CHANGES[path]
    with pytest.raises(ValueError, match=f"^{message.replace('?', chr(92) + '?')}"):
        override(ROTARY, {path: value})


def test_override_creates_components_that_are_none():
    changed = override(ROTARY, {"init_from.folder": "gpt2", "tokenizer": "bpe:300"})
    assert (changed.init_from, changed.tokenizer) == (Pretrained("gpt2"), BPE(300))
    assert override(ROTARY, {"init_from": "gpt2"}).init_from == Pretrained("gpt2")
    with pytest.raises(ValueError, match="init_from: Pretrained lacks folder"):
        override(ROTARY, {"init_from.sha256": "x"})
