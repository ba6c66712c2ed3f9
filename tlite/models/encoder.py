"""What the models have in common: embedding, positions, dropout and a stack of blocks."""

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from tlite import functional as F
from tlite.models.config import ACTIVATIONS, NORMS, BlocksConfig
from tlite.modules import Embedding, EncoderBlock, summary
from tlite.modules.layers import make_norm


class Encoder(nnx.Module):
    """Tokens (..., T) to vectors (..., T, D). With a causal mask it is the body of a generator."""

    def __init__(self, config: BlocksConfig, *, key: Key[Array, ""]):
        embedding_key, position_key, _, blocks_key = jax.random.split(
            key, 4
        )  # the third: for a head
        self.embedding = Embedding(
            config.vocabulary_size,
            config.width,
            deviation=config.embedding_deviation,
            key=embedding_key,
        )
        if config.positions == "learned":
            self.positions = Embedding(config.context, config.width, key=position_key)
        self.blocks = nnx.List(
            EncoderBlock(config, key=k) for k in jax.random.split(blocks_key, config.num_blocks)
        )
        if config.norm_first:
            self.norm = make_norm(config)
        self.config = config

    def encode(
        self,
        tokens: Int[Array, "*batch T"],
        mask: Bool[Array, "..."] | None,
        *,
        key: Key[Array, "..."] | None = None,
    ) -> Float[Array, "*batch T D"]:
        """The last block's vectors, after the final norm. A key, or one a sample: dropout is on.

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
                mask,
                angles=angles,
                dropout_rate=config.dropout,
                key=None if key is None else F.fold_in(key, index),
                **self.block_settings(),
            )
        return self.final_norm(x)

    def position_table(self) -> Float[Array, "L D"]:
        """What is added to the embedding of each position."""
        if self.config.positions == "learned":
            return self.positions.table[...]
        return F.sinusoidal_positions(self.config.context, self.config.width)

    def final_norm(self, x: Float[Array, "*batch T D"]) -> Float[Array, "*batch T D"]:
        """The norm after pre-norm blocks; post-norm blocks end with one."""
        return NORMS[self.config.norm](self.norm, x) if self.config.norm_first else x

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
