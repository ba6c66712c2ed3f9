"""The decoder-only generator: predicts each next token from those before it."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from tlite import functional as F
from tlite.modules import Embedding, EncoderBlock, Linear, summary
from tlite.modules.layers import make_norm

ACTIVATIONS = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu}
NORMS = {"layer": F.layer_norm, "rms": F.rms_norm}


@dataclass(frozen=True)
class GeneratorConfig:
    """The switches of a generator. The defaults are the post-norm transformer of 2017."""

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
    norm_first: bool = False
    """Norm before each layer (pre-norm, with a final norm) instead of after it (post-norm)."""
    norm: Literal["layer", "rms"] = "layer"
    """Layer norm or RMS norm."""
    activation: Literal["relu", "gelu", "silu"] = "relu"
    """Activation of the feed-forward layer."""
    positions: Literal["learned", "sinusoidal", "rotary"] = "learned"
    """How positions enter: added to the embedding, or rotating queries and keys."""
    qkv_bias: bool = False
    """Biases in the query, key and value layers."""
    bias: bool = True
    """Biases in all other layers and in the layer norms."""
    tied_head: bool = False
    """Use the embedding as the output layer."""

    def __post_init__(self):
        sizes = "context", "width", "num_heads", "num_blocks", "head_width", "hidden_width"
        for name in sizes:
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.head_width is None and self.width % self.num_heads:
            raise ValueError(f"a width of {self.width} is not divisible by {self.num_heads} heads")
        if self.positions == "rotary" and (self.head_width or self.width // self.num_heads) % 2:
            raise ValueError("rotary positions pair the columns: the head width must be even")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"the dropout rate must be in [0, 1), not {self.dropout}")


class TransformerGenerator(nnx.Module):
    """Embedding, positions, dropout, causal blocks, head: tokens (..., T) to logits (..., T, V)."""

    def __init__(self, config: GeneratorConfig, *, key: Key[Array, ""]):
        embedding_key, position_key, head_key, blocks_key = jax.random.split(key, 4)
        self.embedding = Embedding(config.vocabulary_size, config.width, key=embedding_key)
        if config.positions == "learned":
            self.positions = Embedding(config.context, config.width, key=position_key)
        self.blocks = nnx.List(
            EncoderBlock(config, key=k) for k in jax.random.split(blocks_key, config.num_blocks)
        )
        if config.norm_first:
            self.norm = make_norm(config)
        if not config.tied_head:
            self.head = Linear(config.width, config.vocabulary_size, bias=config.bias, key=head_key)
        self.config = config

    def __call__(
        self, tokens: Int[Array, "*batch T"], *, key: Key[Array, "..."] | None = None
    ) -> Float[Array, "*batch T V"]:
        """Logits of the next token at every position. A key, or one a sample, turns dropout on.

        Raises:
            ValueError: more tokens than the model's context.
        """
        config = self.config
        x, angles = self.embedding(tokens), None
        if config.positions == "rotary":
            angles = F.rotary_angles(config.context, self.head_width)
        else:
            x = F.add_positions(self.position_table(), x)
        if key is not None:
            x = F.dropout(F.fold_in(key, config.num_blocks), x, config.dropout)
        for index, block in enumerate(self.blocks):
            x = F.encoder_block(
                block,
                x,
                F.causal_mask(tokens.shape[-1]),
                angles=angles,
                dropout_rate=config.dropout,
                key=None if key is None else F.fold_in(key, index),
                **self.block_settings(),
            )
        return self.logits(x)

    def extend(
        self,
        tokens: Int[Array, "*batch T"],
        caches: list[F.KeyValueCache],
        start: Int[Array, "*batch"],
    ) -> tuple[Float[Array, "*batch T V"], list[F.KeyValueCache]]:
        """Logits after T more tokens of a sequence whose first `start` tokens are in the caches.

        The same as the rows of a call on the whole sequence, for the price of the new tokens.
        start + T must not exceed the model's context.
        """
        config = self.config
        positions = start[..., None] + jnp.arange(tokens.shape[-1])
        x, angles = self.embedding(tokens), None
        if config.positions == "rotary":
            angles = F.rotary_angles(config.context, self.head_width)[positions][..., None, :, :]
        else:
            x = x + self.position_table()[positions]
        extended = []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, cache = F.cached_encoder_block(
                block, x, cache, start, angles=angles, **self.block_settings()
            )
            extended.append(cache)
        return self.logits(x), extended

    def empty_caches(self, *batch: int) -> list[F.KeyValueCache]:
        """For each block a cache of the model's context, of zeros."""
        zeros = jnp.zeros((*batch, self.config.num_heads, self.config.context, self.head_width))
        return [F.KeyValueCache(zeros, zeros) for _ in self.blocks]

    def position_table(self) -> Float[Array, "L D"]:
        """What is added to the embedding of each position."""
        if self.config.positions == "learned":
            return self.positions.table[...]
        return F.sinusoidal_positions(self.config.context, self.config.width)

    def logits(self, x: Float[Array, "*batch T D"]) -> Float[Array, "*batch T V"]:
        """The final norm, if there is one, and the head."""
        if self.config.norm_first:
            x = NORMS[self.config.norm](self.norm, x)
        return x @ self.embedding.table[...].T if self.config.tied_head else self.head(x)

    def block_settings(self) -> dict:
        """What every block is called with."""
        return {
            "num_heads": self.config.num_heads,
            "pre_norm": self.config.norm_first,
            "activation": ACTIVATIONS[self.config.activation],
            "norm": NORMS[self.config.norm],
        }

    @property
    def head_width(self) -> int:
        return self.config.head_width or self.config.width // self.config.num_heads

    def __str__(self) -> str:
        return summary(self)
