"""Models: functions of tokens, composed of the equations of `tlite.functional`."""

from typing import TYPE_CHECKING

from tlite import import_lazily
from tlite.models.block import BlockParameters, apply_layer, apply_norm, attend, block
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
from tlite.models.init import init_block, init_layer
from tlite.models.inputs import BlockInputs
from tlite.models.parameters import count_parameters
from tlite.models.transformer import CausalLM, Transformer

if TYPE_CHECKING:
    from tlite.models.classifier import ClassifierConfig, Pool, SequenceClassifier, Wide
    from tlite.models.encoder import Encoder, MaskedLM
    from tlite.models.ensemble import Ensemble
    from tlite.models.logistic import LogisticConfig, LogisticRegression
    from tlite.models.seq2seq import Seq2Seq, Seq2SeqConfig, SpecialTokens, TranslatorHead

MODULES = {
    "tlite.models.classifier": "ClassifierConfig Pool SequenceClassifier Wide",
    "tlite.models.encoder": "Encoder MaskedLM",
    "tlite.models.ensemble": "Ensemble",
    "tlite.models.logistic": "LogisticConfig LogisticRegression",
    "tlite.models.seq2seq": "Seq2Seq Seq2SeqConfig SpecialTokens TranslatorHead",
}
"""Names by module, which is imported when a name is first used."""

MODELS = {
    "ClassifierConfig": "SequenceClassifier",
    "GeneratorConfig": "CausalLM",
    "LogisticConfig": "LogisticRegression",
    "MaskedConfig": "MaskedLM",
    "Seq2SeqConfig": "Seq2Seq",
    "TransformerConfig": "Encoder",
}
"""Name of the model class by that of its config class."""


def make_model(config, *, rng):
    """Return the model of a config, or of a subclass of one, with initial parameters."""
    base = next(kind for kind in type(config).__mro__ if kind.__module__.startswith("tlite."))
    name = MODELS[base.__name__]
    model = globals().get(name) or __getattr__(name)
    return model(config, rng=rng)


__all__ = [
    "MODELS", "ALiBi", "Attention", "Block", "BlockInputs", "BlockParameters", "CausalLM",
    "ClassifierConfig", "Embedding", "Encoder", "Ensemble", "FeedForward", "GeneratorConfig",
    "LMHead", "Learned", "LogisticConfig", "LogisticRegression", "Loop", "MaskedConfig", "MaskedLM",
    "NoPositions", "Norm", "Pool", "Positions", "Projection", "Relative", "Rotary", "RotaryScaling",
    "Seq2Seq", "Seq2SeqConfig", "SequenceClassifier", "Sinusoidal", "SpecialTokens", "Transformer",
    "TransformerConfig", "TranslatorHead", "Wide", "apply_layer", "apply_norm", "attend", "block",
    "count_parameters", "init_block", "init_layer", "make_model",
]  # fmt: skip


__getattr__ = import_lazily(__name__, MODULES)
