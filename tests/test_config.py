"""Configs survive JSON; what does not fit is named."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.config import from_dict, to_dict
from tlite.data import (
    BuiltinText,
    LabelledText,
    Shakespeare,
    SyntheticReviews,
    TextFile,
    TinyShakespeare,
)
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
    Block,
    ClassifierConfig,
    Embedding,
    FeedForward,
    GeneratorConfig,
    Head,
    Learned,
    LogisticConfig,
    Loop,
    NoPositions,
    Norm,
    Pool,
    Projection,
    Relative,
    Rotary,
    RotaryScaling,
    Sinusoidal,
    Wide,
)
from tlite.training import TrainingConfig

whole, small = st.integers(1, 10**9), st.integers(1, 64)
readable = st.text(st.characters(codec="utf-8"))
fractions = st.floats(0, 1)
optional_width = st.none() | small.map(lambda half: 2 * half)

sources = st.one_of(
    st.builds(BuiltinText, fractions),
    st.builds(TextFile, readable, fractions),
    st.builds(TinyShakespeare, fractions, readable),
    st.builds(Shakespeare, fractions, readable),
)
positions = st.one_of(
    st.builds(Learned, st.integers(0, 9)),
    st.builds(Sinusoidal, st.booleans()),
    st.builds(
        Rotary,
        st.floats(1, 1e9),
        scaling=st.none()
        | st.builds(RotaryScaling, st.sampled_from(["llama3", "yarn"]), st.floats(1, 100)),
    ),
    st.builds(Relative, distance=st.integers(32, 1000)),
    st.sampled_from([ALiBi(), NoPositions()]),
)
attentions = st.builds(
    Attention,
    st.sampled_from(["exact", "auto"]),
    key_heads=st.none() | st.sampled_from([1, 2, 4]),
    head_width=optional_width,
    windows=st.lists(st.integers(0, 64), max_size=3).map(tuple),
    softcap=st.none() | st.floats(1, 100),
)
feed_forwards = st.builds(
    FeedForward,
    optional_width,
    st.sampled_from(["relu", "gelu", "gelu_exact", "silu", "squared_relu", "tanh"]),
    gated=st.booleans(),
    dropout=st.floats(0, 0.99),
)
norms = st.builds(Norm, st.just("rms"), bias=st.none() | st.booleans(), offset=st.floats(0, 1))
blocks = dict(
    width=small.map(lambda pairs: 8 * pairs),
    dropout=st.floats(0, 0.99),
    embedding=st.builds(Embedding, st.none() | st.floats(0.01, 1), st.none() | st.booleans()),
    positions=positions,
    attention=attentions,
    feed_forward=feed_forwards,
    norm=norms | st.just(Norm()),
    block=st.builds(Block, st.booleans(), st.booleans(), st.booleans()),
    loop=st.builds(Loop, remat=st.booleans()),
)
generators = st.builds(GeneratorConfig, head=st.builds(Head, st.booleans()), **blocks)
vectors = st.sampled_from(["mean", "attention", "first"])
projections = st.none() | st.builds(
    Projection, st.sampled_from(["tanh", "relu"]), norm=st.booleans()
)
classifiers = st.builds(
    ClassifierConfig,
    pool=st.builds(Pool, vectors, projections) | st.just(Pool()),
    wide=st.builds(Wide, st.integers(0, 9)),
    **blocks,
)
trainings = st.builds(
    TrainingConfig,
    steps=whole,
    learning_rate=st.floats(1e-9, 1e9),
    schedule=st.sampled_from(["constant", "cosine"]),
    clip_norm=st.none() | st.floats(1e-9, 1e9),
    precision=st.sampled_from(["float32", "mixed", "auto"]),
    seed=st.integers(0, 2**30),
    seeds=small,
)
files = st.lists(readable, max_size=3).map(tuple)
labelled = st.builds(
    LabelledText,
    training=files,
    text_column=readable,
    labels=st.dictionaries(readable, readable, max_size=3),
    columns=files,
    validation_fraction=fractions,
    stream=st.booleans(),
)
named = readable.filter(lambda name: name.strip() and name.isprintable())
experiments = st.one_of(
    st.builds(
        GeneratorExperiment,
        named,
        sources,
        generators,
        trainings,
        pretraining=st.none() | st.builds(Pretrained, readable),
        prompt=readable,
    ),
    st.builds(
        ClassifierExperiment,
        named,
        labelled | st.builds(SyntheticReviews, whole, whole),
        st.builds(Words, whole, st.booleans())
        | st.builds(Subwords, st.sampled_from(["bpe", "wordpiece"]), st.integers(1, 10**6)),
        classifiers | st.builds(LogisticConfig, context=whole),
        trainings,
        st.none()
        | st.builds(Pretraining, whole, unlabelled=files)
        | st.builds(Pretrained, readable),
        st.sampled_from(["mask", "unknown"]),
        whole,
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


TRAINING, GENERATOR, ROTARY = TrainingConfig(), GeneratorConfig(), Rotary()
MISFITS = [
    (TRAINING, {"colour": 1}, "colour"),
    (TRAINING, {"steps": "many"}, "steps.*'many'"),
    (TRAINING, {"steps": 1.5}, "steps.*1.5"),
    (TRAINING, {"steps": True}, "steps.*True"),
    (TRAINING, {"steps": None}, "steps.*None"),
    (TRAINING, {"steps": 0}, "steps must be at least 1"),
    (TRAINING, {"schedule": "linear"}, "schedule: expected constant or .* not 'linear'"),
    (TRAINING, {"precision": {"kind": "function"}}, "precision: expected float32 or .*, not"),
    (TRAINING, {"learning_rates": [0.1]}, "^learning_rates: variants side by side are gone; tlite"),
    (TRAINING, {"varied": [{"beta1": 0.8}]}, "^varied: .* are gone; tlite 0.2.0 opens it$"),
    (TRAINING, {"clip_norm": "x"}, "clip_norm.*'x'"),
    (TRAINING, {"kind": "Cooking"}, "TrainingConfig.*Cooking"),
    (GeneratorExperiment("x"), {"data": {"kind": "Novel"}}, "BuiltinText or TextFile .*Novel"),
    (
        GeneratorExperiment("x"),
        {"data": {"kind": "TextFile", "colour": 1}},
        "TextFile has no field colour",
    ),
    (GeneratorExperiment("x"), {"data": "a.txt"}, "a.txt"),
    (LabelledText(), {"labels": ["1"]}, r"labels.*\['1'\]"),
    (LabelledText(), {"labels": {"1": 2}}, "labels.*2"),
    (LabelledText(), {"training": "a.csv"}, "training.*'a.csv'"),
    (
        ROTARY,
        {"scaling": {"kind": "Novel"}},
        "scaling: expected RotaryScaling or NoneType, not .*No",
    ),
    (
        ROTARY,
        {"scaling": {"kind": "RotaryScaling", "factor": "x"}},
        "scaling: factor: expected float",
    ),
    (
        GENERATOR,
        {"positions": {"kind": "Novel"}},
        "positions: expected Learned or .* function, not",
    ),
    (GENERATOR, {"positions": "absolute"}, "positions must be one of learned, .*, not 'absolute'"),
    (
        GENERATOR,
        {"attention": {"kind": "Attention", "function": "fast"}},
        "attention: function: expected exact or mixed or fused or auto or func.*, not 'fast'",
    ),
    (
        GENERATOR,
        {"block": {"kind": "Block", "pre_norm": 1}},
        "block: pre_norm: expected bool, not 1",
    ),
    (
        GENERATOR,
        {"head": {"kind": "TranslatorHead"}},
        "head: expected a Head, not 'TranslatorHead'",
    ),
    (GENERATOR, {"EARLIER": {}}, "GeneratorConfig has no field EARLIER"),
]


@pytest.mark.parametrize(("config", "change", "named"), MISFITS)
def test_what_does_not_fit_is_named(config, change, named):
    with pytest.raises(ValueError, match=named):
        through_json(config, lambda values: values.update(change))


def test_an_experiment_of_neither_kind_is_named():
    with pytest.raises(ValueError, match=r"GeneratorExperiment or ClassifierExperiment.*Cooking"):
        through_json(
            ClassifierExperiment("x"), lambda values: values.update(kind="Cooking"), Experiment
        )


def test_what_does_not_fit_in_one_kind_of_experiment_is_named_not_the_kind():
    with pytest.raises(ValueError, match=r"^sentences: expected int, not 'many'$"):
        through_json(
            ClassifierExperiment("x"), lambda values: values.update(sentences="many"), Experiment
        )


def test_a_missing_field_without_a_default_is_named():
    with pytest.raises(ValueError, match="name"):
        through_json(GeneratorExperiment("x"), lambda values: values.pop("name"))


@pytest.mark.parametrize("name", ["context", "width", "num_heads", "num_blocks"])
@pytest.mark.parametrize("value", [2**31, 10**20])
def test_sizes_that_cannot_be_counted_to_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"{name} must be at most .*, not {value}"):
        GeneratorConfig(**{name: value})


@pytest.mark.parametrize("name", ["steps", "batch_size", "accumulate", "seeds", "evaluate_every"])
@pytest.mark.parametrize("value", [0, 2**31, 10**20])
def test_counts_that_cannot_be_counted_to_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"{name} must be at (least|most) .*, not {value}"):
        TrainingConfig(**{name: value})


@pytest.mark.parametrize("followed", [[], ["wandb"]])
def test_who_followed_a_run_of_earlier_is_passed_over(followed):
    content = to_dict(TrainingConfig(steps=7)) | {"follow": followed}
    assert from_dict(TrainingConfig, content) == TrainingConfig(steps=7)
