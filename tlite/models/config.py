"""What the models have in common: the switches of their blocks."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax

from tlite import functional as F
from tlite.config import check_size

MOST_BLOCKS = 10_000  # each is compiled by itself
ACTIVATIONS = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu}
NORMS = {"layer": F.layer_norm, "rms": F.rms_norm}


def not_negative(config: Any, *names: str) -> None:
    """Raises a ValueError if one of these fields of a config is below 0, or can't be counted to."""
    for name in names:
        if getattr(config, name) < 0:
            raise ValueError(f"{name} must not be negative, not {getattr(config, name)}")
        check_size(name, max(getattr(config, name), 1))


@dataclass(frozen=True)
class BlocksConfig:
    """The switches of a stack of blocks. The defaults are the post-norm transformer of 2017."""

    vocabulary_size: int = 0
    """Number of tokens V; 0 takes it from the tokenizer."""
    context: int = 64
    """Longest sequence T the model attends over."""
    width: int = 32
    """Model width D."""
    num_heads: int = 4
    """Attention heads H."""
    head_width: int | None = None
    """Width K of a head; D / H unless given."""
    num_blocks: int = 3
    """Transformer blocks."""
    hidden_width: int | None = None
    """Width F of the feed-forward layer; 4 D unless given."""
    dropout: float = 0.1
    """Dropout rate after the embedding, the attention and the feed-forward layer."""
    hidden_dropout: float = 0.0
    """Dropout rate between the two layers of the feed-forward."""
    norm_first: bool = False
    """Norm before each layer (pre-norm, with a final norm) instead of after it (post-norm)."""
    norm: Literal["layer", "rms"] = "layer"
    """Layer norm or RMS norm."""
    activation: Literal["relu", "gelu", "silu"] = "relu"
    """Activation of the feed-forward layer."""
    positions: Literal["learned", "sinusoidal", "rotary"] = "learned"
    """How positions enter: added to the embedding, or rotating queries and keys."""
    embedding_deviation: float = 0.02
    """Standard deviation of the embedding before training."""
    qkv_bias: bool = False
    """Biases in the query, key and value layers."""
    bias: bool = True
    """Biases in all other layers and in the layer norms."""

    def __post_init__(self):
        for name in ("context", "width", "num_heads", "head_width", "hidden_width"):
            if (value := getattr(self, name)) is not None:
                check_size(name, value)
        check_size("num_blocks", self.num_blocks, MOST_BLOCKS)
        if self.head_width is None and self.width % self.num_heads:
            raise ValueError(f"a width of {self.width} is not divisible by {self.num_heads} heads")
        if self.positions == "rotary" and (self.head_width or self.width // self.num_heads) % 2:
            raise ValueError("rotary positions pair the columns: the head width must be even")
        for rate in (self.dropout, self.hidden_dropout):
            if not 0 <= rate < 1:
                raise ValueError(f"the dropout rate must be in [0, 1), not {rate}")
        deviation = self.embedding_deviation
        if deviation is not None and not 0 < deviation < math.inf:
            raise ValueError(f"embedding_deviation must be positive, not {deviation}")
        not_negative(self, "vocabulary_size")

    @property
    def embedding_scale(self) -> float:
        """What embeddings are multiplied by before positions are added."""
        return 1.0

    @property
    def initial_deviation(self) -> float:
        """Standard deviation of the embedding before training."""
        return self.embedding_deviation
