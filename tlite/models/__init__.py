"""Whole models: functions of tokens, built from blocks."""

from tlite.models.classifier import ClassifierConfig, TransformerClassifier
from tlite.models.config import BlocksConfig, RotaryScaling
from tlite.models.encoder import Decoder, Encoder
from tlite.models.ensemble import Ensemble
from tlite.models.generator import GeneratorConfig, TransformerGenerator
from tlite.models.logistic import LogisticConfig, LogisticRegression
from tlite.models.masked import MaskedConfig, TransformerMasked
from tlite.models.seq2seq import Seq2SeqConfig, TransformerSeq2Seq

MODELS = {
    BlocksConfig: Encoder,
    GeneratorConfig: TransformerGenerator,
    ClassifierConfig: TransformerClassifier,
    LogisticConfig: LogisticRegression,
    MaskedConfig: TransformerMasked,
    Seq2SeqConfig: TransformerSeq2Seq,
}


def make_model(config, *, key):
    """The model that a config is of, with new parameters."""
    return MODELS[type(config)](config, key=key)
