"""Flax modules: they make and hold the parameters that `tlite.functional` computes with."""

from tlite.modules.layers import (
    DecoderBlock,
    Embedding,
    EncoderBlock,
    FeedForward,
    GeneratorBlock,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    RMSNorm,
    ZeroCentredRMSNorm,
)
from tlite.modules.summary import count_parameters, summary
