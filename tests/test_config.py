"""Configs survive JSON; what does not fit is named."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.config import from_dict, to_dict
from tlite.data import BuiltinText, LabelledText, Shakespeare, SyntheticReviews, TextFile
from tlite.experiment import (
    ClassifierExperiment,
    Experiment,
    GeneratorExperiment,
    Pretrained,
    Pretraining,
    Subwords,
    Words,
)
from tlite.models import (
    ALiBi,
    Attention,
    ClassifierConfig,
    FeedForward,
    GeneratorConfig,
    Learned,
    LogisticConfig,
    Norm,
    Pool,
    Projection,
    Rotary,
    RotaryScaling,
    Wide,
)
from tlite.training import TrainingConfig

whole, small, fractions = st.integers(1, 10**9), st.integers(1, 64), st.floats(0, 1)
readable = st.text(st.characters(codec="utf-8"))
named = readable.filter(lambda name: name.strip() and name.isprintable())
files = st.lists(readable, max_size=3).map(tuple)
scaling = st.none() | st.builds(RotaryScaling, st.just("yarn"), st.floats(1, 100))
positions = st.builds(Learned, st.integers(0, 9)) | st.builds(
    Rotary, st.floats(1, 1e9), scaling=scaling
)
attentions = st.builds(
    Attention,
    st.sampled_from(["exact", "auto"]),
    key_heads=st.none() | st.sampled_from([1, 2, 4]),
    windows=st.lists(st.integers(0, 64), max_size=3).map(tuple),
    softcap=st.none() | st.floats(1, 100),
)
blocks = dict(
    width=small.map(lambda pairs: 8 * pairs),
    dropout=st.floats(0, 0.99),
    positions=positions | st.just(ALiBi()),
    attention=attentions,
    feed_forward=st.builds(FeedForward, small, gated=st.booleans()),
    norm=st.builds(Norm, st.just("rms"), bias=st.none() | st.booleans()),
)
pools = st.builds(Pool, st.just("first"), st.none() | st.builds(Projection, st.just("tanh")))
classifiers = st.builds(
    ClassifierConfig, pool=pools, wide=st.builds(Wide, st.integers(0, 9)), **blocks
)
trainings = st.builds(
    TrainingConfig,
    steps=whole,
    learning_rate=st.floats(1e-9, 1e9),
    schedule=st.sampled_from(["constant", "cosine"]),
    clip_norm=st.none() | st.floats(1e-9, 1e9),
    seed=st.integers(0, 2**30),
)
labelled = st.builds(
    LabelledText,
    training=files,
    text_column=readable,
    labels=st.dictionaries(readable, readable, max_size=3),
    validation_fraction=fractions,
    stream=st.booleans(),
)
experiments = st.one_of(
    st.builds(
        GeneratorExperiment,
        named,
        st.builds(BuiltinText, fractions) | st.builds(Shakespeare, fractions, readable),
        st.builds(GeneratorConfig, **blocks),
        trainings,
        pretraining=st.none() | st.builds(Pretrained, readable),
        prompt=readable,
    ),
    st.builds(
        ClassifierExperiment,
        named,
        labelled | st.builds(SyntheticReviews, whole, whole),
        st.builds(Words, whole, st.booleans()) | st.builds(Subwords, pieces=small),
        classifiers | st.builds(LogisticConfig, context=whole),
        trainings,
        st.none() | st.builds(Pretraining, whole, unlabelled=files),
        sentences=whole,
    ),
)


def through_json(config, change=lambda values: None, kind=None):
    values = json.loads(json.dumps(to_dict(config)))
    change(values)
    return from_dict(kind or type(config), values)


# beartype draws the element of a tuple that it checks
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@given(experiments)
def test_an_experiment_comes_back_from_json(experiment):
    assert through_json(experiment) == experiment
    assert through_json(experiment, kind=Experiment) == experiment


def test_labels_keep_their_order():
    config = LabelledText(labels={"b": "x", "a": "y", "c": "x"})
    assert list(through_json(config).labels) == ["b", "a", "c"]


def test_a_field_that_is_not_there_takes_its_default():
    config = TrainingConfig(steps=7, seeds=3)
    expected = dataclasses.replace(config, seeds=1)
    assert through_json(config, lambda values: values.pop("seeds")) == expected


GENERATOR, MINE = GeneratorConfig(), GeneratorExperiment("x", TextFile())
MISFITS = [
    (TrainingConfig(), {"colour": 1}, "^TrainingConfig has no field colour"),
    (TrainingConfig(), {"steps": 1.5}, "^steps: expected int, not 1.5"),
    (TrainingConfig(), {"steps": True}, "steps.*True"),
    (TrainingConfig(), {"steps": None}, "steps.*None"),
    (TrainingConfig(), {"steps": 0}, "steps must be at least 1"),
    (TrainingConfig(), {"steps": 10**20}, "steps must be at most .*, not 10"),
    (TrainingConfig(), {"schedule": "linear"}, "schedule: expected constant or .* not 'linear'"),
    (
        TrainingConfig(),
        {"schedule": {"kind": "function"}},
        "schedule: expected constant or .*, not",
    ),
    (TrainingConfig(), {"learning_rates": [0.1]}, "^learning_rates: variants .* are gone; tlite"),
    (TrainingConfig(), {"varied": [{"beta1": 0.8}]}, "^varied: .* are gone; tlite 0.2.0 opens it$"),
    (TrainingConfig(), {"clip_norm": "x"}, "clip_norm.*'x'"),
    (TrainingConfig(), {"kind": "Cooking"}, "TrainingConfig.*Cooking"),
    (MINE, {"data": {"kind": "Novel"}}, "BuiltinText or TextFile .*Novel"),
    (MINE, {"data": {"kind": "TextFile", "colour": 1}}, "^data: TextFile has no field colour"),
    (MINE, {"data": "a.txt"}, "^data: .*a.txt"),
    (LabelledText(), {"labels": ["1"]}, r"labels.*\['1'\]"),
    (LabelledText(), {"labels": {"1": 2}}, "labels.*2"),
    (LabelledText(), {"training": "a.csv"}, "training.*'a.csv'"),
    (Rotary(), {"scaling": {"kind": "Novel"}}, "scaling: expected RotaryScaling or NoneType, not"),
    (GENERATOR, {"width": 2**31}, "width must be at most .*, not 2147483648"),
    (
        GENERATOR,
        {"positions": {"kind": "Novel"}},
        "positions: expected Learned or .* function, not",
    ),
    (GENERATOR, {"positions": "absolute"}, "positions must be one of learned, .*, not 'absolute'"),
    (
        GENERATOR,
        {"block": {"kind": "Block", "pre_norm": 1}},
        "^block: pre_norm: expected bool, not",
    ),
    (GENERATOR, {"head": {"kind": "TranslatorHead"}}, "^head: expected Head, not 'Transla"),
    (GENERATOR, {"EARLIER": {}}, "GeneratorConfig has no field EARLIER"),
]


@pytest.mark.parametrize(("config", "change", "named"), MISFITS)
def test_what_does_not_fit_is_named(config, change, named):
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
def test_of_several_kinds_the_fault_of_the_one_that_is_meant_is_named(change, named):
    with pytest.raises(ValueError, match=named):
        through_json(ClassifierExperiment("x"), change, Experiment)


@pytest.mark.parametrize("followed", [[], ["wandb"]])
def test_who_followed_a_run_of_earlier_is_passed_over(followed):
    content = to_dict(TrainingConfig(steps=7)) | {"follow": followed}
    assert from_dict(TrainingConfig, content) == TrainingConfig(steps=7)
