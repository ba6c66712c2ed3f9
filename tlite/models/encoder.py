"""What the models have in common: embedding, positions, dropout and a stack of blocks."""

from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from tlite import functional as F
from tlite.models.config import ACTIVATIONS, NORMS, BlocksConfig
from tlite.modules import DecoderBlock, Embedding, EncoderBlock, summary
from tlite.modules.layers import make_norm


class Stack(nnx.Module):
    """Embedding, positions, dropout, blocks and, after pre-norm blocks, a norm.

    With `embedding` False the table belongs to someone else and is passed to `embed`.
    """

    block: ClassVar[type] = EncoderBlock

    def __init__(self, config: BlocksConfig, *, embedding: bool = True, key: Key[Array, ""]):
        embedding_key, position_key, _, blocks_key = jax.random.split(
            key, 4
        )  # the third: for a head
        if embedding:
            self.embedding = Embedding(
                config.vocabulary_size,
                config.width,
                deviation=config.initial_deviation,
                key=embedding_key,
            )
        if config.positions == "learned":
            self.positions = Embedding(config.context, config.width, key=position_key)
        self.blocks = nnx.List(
            self.block(config, key=k) for k in jax.random.split(blocks_key, config.num_blocks)
        )
        if config.norm_first:
            self.norm = make_norm(config)
        self.config = config

    def embed(
        self,
        tokens: Int[Array, "*batch T"],
        positions: Int[Array, "*#batch T"] | None = None,
        *,
        table: Float[Array, "V D"] | None = None,
    ) -> tuple[Float[Array, "*batch T D"], Float[Array, "..."] | None]:
        """Scaled embeddings with their positions (0, 1, ... unless given), rotary angles if any.

        Raises:
            ValueError: more tokens than the model's context.
        """
        config = self.config
        x = F.embed(self.embedding.table[...] if table is None else table, tokens)
        x = config.embedding_scale * x if config.embedding_scale != 1 else x
        if config.positions == "rotary":
            angles = F.rotary_angles(config.context, self.head_width)
            return x, angles if positions is None else angles[positions][..., None, :, :]
        if positions is None:
            return F.add_positions(self.position_table(), x), None
        return x + self.position_table()[positions], None

    def run_blocks(
        self,
        x: Float[Array, "*batch T D"],
        mask: Bool[Array, "..."] | None,
        memories: Sequence[F.KeyValues | None] | None = None,
        memory_mask: Bool[Array, "..."] | None = None,
        *,
        angles: Float[Array, "..."] | None,
        caches: Sequence[F.KeyValues | None] | None = None,
        start: Int[Array, "*#batch"] | None = None,
        key: Key[Array, "..."] | None = None,
        observe: F.Observe = F.unobserved,
    ) -> tuple[Float[Array, "*batch T D"], list[F.KeyValues]]:
        """Dropout, every block with its memory and cache, and the final norm; and the caches."""
        config = self.config
        nothing = [None] * len(self.blocks)
        x = observe("embedding", x)
        if key is not None:
            x = F.dropout(F.fold_in(key, config.num_blocks), x, config.dropout)
        seen = []
        of_blocks = zip(self.blocks, memories or nothing, caches or nothing, strict=True)
        for index, (parameters, memory, cache) in enumerate(of_blocks):
            x, own = F.block(
                parameters,
                x,
                mask,
                memory,
                memory_mask,
                cache=cache,
                start=start,
                dropout_rate=config.dropout,
                hidden_dropout_rate=config.hidden_dropout,
                key=None if key is None else F.fold_in(key, index),
                observe=F.within(observe, f"blocks.{index}"),
                angles=angles,
                **self.block_settings(),
            )
            seen.append(own)
        return observe("final", self.final_norm(x)), seen

    def extend_blocks(
        self,
        x: Float[Array, "*batch T D"],
        caches: Sequence[F.KeyValues],
        start: Int[Array, "*#batch"],
        *memory,
        mask: Bool[Array, "..."] | None = None,
        **settings,
    ) -> tuple[Float[Array, "*batch T D"], list[F.KeyValues]]:
        """`run_blocks` on what comes at `start`, causal unless a mask (..., T, C) is given."""
        if mask is None:
            positions = F.positions_from(start, x.shape[-2])
            mask = F.cache_mask(positions, caches[0].key.shape[-2])
        return self.run_blocks(x, mask, *memory, caches=caches, start=start, **settings)

    def empty_caches(self, *batch: int, capacity: int | None = None) -> list[F.KeyValues]:
        """For each block a cache of zeros with room for `capacity` tokens, or a context."""
        length = self.config.context if capacity is None else capacity
        zeros = jnp.zeros((*batch, self.config.num_heads, length, self.head_width))
        return [F.KeyValues(zeros, zeros) for _ in self.blocks]

    def position_table(self) -> Float[Array, "L D"]:
        """What is added to the embedding of each position."""
        if self.config.positions == "learned":
            return self.positions.table[...]
        with jax.ensure_compile_time_eval():  # not at every step of a search
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


class Encoder(Stack):
    """Tokens (..., T) to vectors (..., T, D). With a causal mask it is the body of a generator."""

    def encode(
        self,
        tokens: Int[Array, "*batch T"],
        mask: Bool[Array, "..."] | None,
        *,
        key: Key[Array, "..."] | None = None,
        observe: F.Observe = F.unobserved,
    ) -> Float[Array, "*batch T D"]:
        """The last block's vectors, after the final norm. A key, or one a sample: dropout is on.

        Raises:
            ValueError: more tokens than the model's context.
        """
        x, angles = self.embed(tokens)
        return self.run_blocks(x, mask, angles=angles, key=key, observe=observe)[0]


class Decoder(Stack):
    """Target tokens and an encoder's output to vectors (..., T, D)."""

    block = DecoderBlock

    def decode(
        self,
        tokens: Int[Array, "*batch T"],
        memory: Float[Array, "*batch S D"],
        memory_mask: Bool[Array, "..."] | None,
        *,
        table: Float[Array, "V D"] | None = None,
        key: Key[Array, "..."] | None = None,
        observe: F.Observe = F.unobserved,
    ) -> Float[Array, "*batch T D"]:
        """The last block's vectors; each position sees itself, those before it, and the memory."""
        x, angles = self.embed(tokens, table=table)
        memories = self.key_values(memory, observe)
        inputs = x, F.causal_mask(tokens.shape[-1]), memories, memory_mask
        return self.run_blocks(*inputs, angles=angles, key=key, observe=observe)[0]

    def key_values(
        self, memory: Float[Array, "*batch S D"], observe: F.Observe = F.unobserved
    ) -> list[F.KeyValues]:
        """For each block the keys and values of an encoder's output."""
        return [
            F.key_values(
                block.cross_attention,
                memory,
                num_heads=self.config.num_heads,
                observe=F.within(observe, f"blocks.{index}.cross_attention"),
            )
            for index, block in enumerate(self.blocks)
        ]
