"""Whole models: functions of tokens, built from parts."""

from tlite.baselines.logistic import LogisticConfig, LogisticRegression
from tlite.models.classifier import ClassifierConfig, Pool, SequenceClassifier, Wide
from tlite.models.config import Loop, TransformerConfig
from tlite.models.ensemble import Ensemble
from tlite.models.generator import (
    CausalLM,
    GeneratorConfig,
    LMHead,
    MaskedConfig,
    MaskedLM,
)
from tlite.models.parameters import count_parameters
from tlite.models.parts import (
    ALiBi,
    Attention,
    Block,
    Embedding,
    FeedForward,
    Layer,
    Learned,
    NoPositions,
    Norm,
    Positions,
    Projection,
    Relative,
    Rotary,
    RotaryScaling,
    Sinusoidal,
)
from tlite.models.seq2seq import Seq2Seq, Seq2SeqConfig, SpecialTokens, TranslatorHead
from tlite.models.stack import Decoder, Encoder, Stack

MODELS = {
    TransformerConfig: Encoder,
    GeneratorConfig: CausalLM,
    ClassifierConfig: SequenceClassifier,
    LogisticConfig: LogisticRegression,
    MaskedConfig: MaskedLM,
    Seq2SeqConfig: Seq2Seq,
}


def make_model(config, *, rng):
    """The model that a config is of, with new parameters; a subclass of a config is one too."""
    kind = next(kind for kind in type(config).__mro__ if kind in MODELS)
    return MODELS[kind](config, rng=rng)


__all__ = [name for name in globals() if name[0] != "_"]  # offered, to type checkers too
