"""Models: functions of tokens, composed of the equations of `tlite.functional`."""

from tlite.baselines.logistic import LogisticConfig, LogisticRegression
from tlite.models.block import BlockParameters, apply_layer, apply_norm, attend, block
from tlite.models.classifier import ClassifierConfig, Pool, SequenceClassifier, Wide
from tlite.models.components import (
    ALiBi,
    Attention,
    Block,
    Embedding,
    FeedForward,
    Learned,
    LMHead,
    Loop,
    NoPositions,
    Norm,
    Positions,
    Projection,
    Relative,
    Rotary,
    RotaryScaling,
    Sinusoidal,
)
from tlite.models.config import GeneratorConfig, MaskedConfig, TransformerConfig
from tlite.models.encoder import Encoder, MaskedLM
from tlite.models.ensemble import Ensemble
from tlite.models.init import init_block, init_layer
from tlite.models.inputs import BlockInputs
from tlite.models.parameters import count_parameters
from tlite.models.seq2seq import Seq2Seq, Seq2SeqConfig, SpecialTokens, TranslatorHead
from tlite.models.transformer import CausalLM, Transformer

MODELS = {
    TransformerConfig: Encoder,
    GeneratorConfig: CausalLM,
    ClassifierConfig: SequenceClassifier,
    LogisticConfig: LogisticRegression,
    MaskedConfig: MaskedLM,
    Seq2SeqConfig: Seq2Seq,
}


def make_model(config, *, rng):
    """Return the model of a config, or of a subclass of one, with initial parameters."""
    kind = next(kind for kind in type(config).__mro__ if kind in MODELS)
    return MODELS[kind](config, rng=rng)


__all__ = [name for name in globals() if name[0] != "_"]  # public names, for type checkers too
