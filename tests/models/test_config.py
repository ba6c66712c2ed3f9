"""The switches of the models: numbers that make no sense are refused."""

import math

import pytest

from tlite.models import ClassifierConfig, GeneratorConfig, LogisticConfig, Seq2SeqConfig

BLOCKS = [GeneratorConfig, ClassifierConfig, Seq2SeqConfig]


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
        (Seq2SeqConfig, "source_vocabulary_size"),
        (Seq2SeqConfig, "pad_id"),
        (ClassifierConfig, "num_classes"),
        (ClassifierConfig, "pairs"),
        (LogisticConfig, "num_classes"),
        (LogisticConfig, "pairs"),
    ],
)
def test_a_size_below_nothing_is_refused(kind, name):
    with pytest.raises(ValueError, match=f"{name} must not be negative, not -1"):
        kind(**{name: -1})
    assert getattr(kind(), name) >= 0
