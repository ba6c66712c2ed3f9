"""What the models have in common: embedding, positions, dropout and a stack of blocks."""

from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from tlite import functional as F
from tlite.models.config import BlocksConfig
from tlite.modules import DecoderBlock, Embedding, EncoderBlock, summary
from tlite.modules.layers import make_norm, make_own

TABLES = "learned", "sinusoidal", "split_sinusoidal"  # positions that are added to the embedding


class Stack(nnx.Module):
    """Embedding, positions, dropout, blocks and, after pre-norm blocks, a norm.

    With `embedding` False the table belongs to someone else and is passed to `embed`.
    """

    block: ClassVar[type] = EncoderBlock
    causal: ClassVar[bool] = False  # whether relative positions have buckets for what comes later

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
            rows = config.context + config.position_offset
            self.positions = Embedding(rows, config.width, key=position_key)
        if config.positions == "relative":
            size = config.relative_buckets, config.num_heads
            self.relative = Embedding(*size, key=position_key)
        if own := make_own(config.positions, config, position_key):
            self.own = own
        if config.segments:
            segment_key = jax.random.fold_in(position_key, 1)
            self.segments = Embedding(config.segments, config.width, key=segment_key)
        if config.embedding_norm:
            self.embedding_norm = make_norm(config)
        self.blocks = nnx.List(
            self.block(config, key=k) for k in jax.random.split(blocks_key, config.num_blocks)
        )
        if not config.first_norm:
            self.blocks[0].attention_norm = None
        if config.norm_first:
            self.norm = make_norm(config)
        self.config = config

    def embed(
        self,
        tokens: Int[Array, "*batch T"],
        positions: Int[Array, "*#batch T"] | None = None,
        *,
        table: Float[Array, "V D"] | None = None,
    ) -> Float[Array, "*batch T D"]:
        """Scaled embeddings with their positions (0, 1, ... unless given), and their norm if any.

        Raises:
            ValueError: more tokens than the model's context.
        """
        config, length = self.config, tokens.shape[-1]
        x = F.embed(self.embedding.table[...] if table is None else table, tokens)
        x = config.embedding_scale * x if config.embedding_scale != 1 else x
        if config.positions in TABLES:
            rows = self.position_table()
            x = F.add_positions(rows, x) if positions is None else x + rows[positions]
        elif length > config.context:
            raise ValueError(
                f"a sequence of length {length} is longer than the model's context, "
                f"which has length {config.context}"
            )
        elif callable(config.positions):
            at = jnp.arange(length) if positions is None else positions
            x = x + F.bind(config.positions, self)(at, config.width)
        if config.segments:
            x = x + self.segments.table[0]
        return config.functions()["norm"](self.embedding_norm, x) if config.embedding_norm else x

    def run_blocks(
        self,
        x: Float[Array, "*batch T D"],
        mask: Bool[Array, "..."] | None,
        memories: Sequence[F.KeyValues | None] | None = None,
        memory_mask: Bool[Array, "..."] | None = None,
        *,
        positions: Int[Array, "*#batch T"] | None = None,
        key_positions: Int[Array, "*#batch S"] | None = None,
        caches: Sequence[F.Cache | None] | None = None,
        start: Int[Array, "*#batch"] | None = None,
        key: Key[Array, "..."] | None = None,
        observe: F.Observe = F.unobserved,
    ) -> tuple[Float[Array, "*batch T D"], list[F.Cache]]:
        """Dropout, every block with its memory and cache, and the final norm; and the caches.

        With caches x is what comes at `start` of a longer sequence, causal unless a mask
        (..., T, C) is given. The `positions` of x are 0, 1, ... or `start`, start + 1, ... unless
        given, those of the keys in caches 0, 1, ...
        """
        config = self.config
        x = observe("embedding", F.by_example(x))
        if key is not None:
            x = F.dropout(F.fold_in(key, config.num_blocks), x, config.dropout)
        at = positions
        if at is None:
            at = F.positions_from(start if caches else jnp.array(0), x.shape[-2])
        if key_positions is None:
            key_positions = jnp.arange(caches[0].key.shape[-2]) if caches else at
        if caches and mask is None:
            mask = F.cache_mask(at, key_positions.shape[-1])
        # What blocks that see equally far have in common.
        settings = {
            window: self.position_settings(at, key_positions, mask, window)
            for window in {config.window(index) for index in range(len(self.blocks))}
        }

        def block(index, parameters, x, memory=None, cache=None, first=None):
            shared = dict(settings[config.window(index if isinstance(index, int) else 0)])
            of_noise = None if key is None else F.fold_in(key, index)
            within = F.within(observe, f"blocks.{index}")
            inputs = parameters, x, shared.pop("mask"), memory, memory_mask
            shared |= {"cache": cache, "start": start, "key": of_noise, "observe": within}
            shared |= {"first": first}
            x, own = F.block(*inputs, **shared, **self.block_settings())
            return F.by_example(x), own

        unobserved = observe is F.unobserved  # what is inside of these two can't be looked at
        scan = config.scan and not caches and unobserved
        if config.remat and unobserved:
            block = jax.checkpoint(block, static_argnums=() if scan else 0)
        nothing = [None] * len(self.blocks)
        memories, caches = memories or nothing, caches or nothing
        if scan:
            stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *self.blocks)
            memories = jax.tree.map(lambda *arrays: jnp.stack(arrays), *memories)
            of_blocks = jnp.arange(len(self.blocks)), stacked, memories
            x, seen = jax.lax.scan(lambda x, of: block(*of[:2], x, of[2]), x, of_blocks)
            seen = [jax.tree.map(lambda a: a[index], seen) for index in range(len(self.blocks))]  # noqa: B023
        else:
            seen = []
            of_blocks = zip(self.blocks, memories, caches, strict=True)
            for index, (parameters, memory, cache) in enumerate(of_blocks):
                first = seen[0] if hasattr(parameters, "value_mix") else None
                x, own = block(index, parameters, x, memory, cache, first)
                seen.append(own)
        return observe("final", self.final_norm(x)), seen

    def position_settings(
        self,
        positions: Int[Array, "*batch T"],
        key_positions: Int[Array, "*#batch S"],
        mask: Bool[Array, "..."] | None,
        window: int,
    ) -> dict[str, Array | None]:
        """What a block with this window knows of positions: mask, rotary angles, bias of scores."""
        config, angles, bias = self.config, None, None
        if window:
            mask = F.combine_masks(mask, F.window_mask(positions, key_positions, window))
        if config.positions == "rotary":
            local = window > 0 and config.local_rotary_base is not None
            base = config.local_rotary_base if local else config.rotary_base
            frequencies = F.rotary_frequencies(config.width_of_heads, base)
            if config.rotary_scaling and not local:
                frequencies = config.rotary_scaling.frequencies(frequencies, base)
            angles = positions[..., None] * frequencies
            angles = angles[..., None, :, :] if positions.ndim > 1 else angles
        if config.positions == "alibi":
            bias = F.alibi(positions, key_positions, config.num_heads)
        if config.positions == "relative":
            distances = key_positions[..., None, :] - positions[..., :, None]
            sizes = config.relative_buckets, config.relative_distance
            buckets = F.relative_buckets(distances, *sizes, causal=self.causal)
            bias = jnp.moveaxis(F.embed(self.relative.table[...], buckets), -1, -3)
        return {"mask": mask, "angles": angles, "bias": bias}

    def empty_caches(self, *batch: int, capacity: int | None = None) -> list[F.Cache]:
        """For each block a cache of zeros with room for `capacity` tokens, or a context."""
        config = self.config
        length = config.context if capacity is None else capacity
        heads = config.key_heads or config.num_heads
        zeros = jnp.zeros((*batch, heads, length, config.width_of_heads))
        inputs = jnp.zeros((*batch, length, config.width))

        def empty(block):
            names = "attention", "feed_forward"
            convolved = {n: inputs for n in names if hasattr(block, f"{n}_convolution")}
            pair = zeros, zeros
            return F.ConvolvedKeyValues(*pair, convolved) if convolved else F.KeyValues(*pair)

        return [empty(block) for block in self.blocks]

    def position_table(self) -> Float[Array, "L D"]:
        """What is added to the embedding of each position."""
        config = self.config
        if config.positions == "learned":
            return self.positions.table[config.position_offset :]
        # Not at every step of a search; and what is computed now lies on no mesh.
        nowhere = jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))
        with nowhere, jax.ensure_compile_time_eval():
            split = config.positions == "split_sinusoidal"
            return F.sinusoidal_positions(config.context, config.width, split=split)

    def final_norm(self, x: Float[Array, "*batch T D"]) -> Float[Array, "*batch T D"]:
        """The norm after pre-norm blocks; post-norm blocks end with one."""
        return self.config.functions()["norm"](self.norm, x) if self.config.norm_first else x

    def block_settings(self) -> dict:
        """What every block is called with."""
        config = self.config
        return {
            "num_heads": config.num_heads,
            "pre_norm": config.norm_first,
            "dropout_rate": config.dropout,
            "hidden_dropout_rate": config.hidden_dropout,
        } | config.functions()

    def __str__(self) -> str:
        return summary(self)


class Encoder(Stack):
    """Tokens (..., T) to vectors (..., T, D). With a causal mask it is the body of a generator."""

    def __call__(
        self,
        tokens: Int[Array, "*batch T"],
        *,
        key: Key[Array, "..."] | None = None,
        observe: F.Observe = F.unobserved,
    ) -> Float[Array, "*batch T D"]:
        """The vectors of tokens that see each other; one below 0 is padding, seen by none."""
        mask = (tokens >= 0)[..., None, None, :]
        return Encoder.encode(self, jnp.maximum(tokens, 0), mask, key=key, observe=observe)

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
        return self.run_blocks(self.embed(tokens), mask, key=key, observe=observe)[0]


class Decoder(Stack):
    """Target tokens and an encoder's output to vectors (..., T, D)."""

    block = DecoderBlock
    causal = True

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
        x = self.embed(tokens, table=table)
        memories = self.key_values(memory, observe)
        inputs = x, F.causal_mask(tokens.shape[-1]), memories, memory_mask
        return self.run_blocks(*inputs, key=key, observe=observe)[0]

    def key_values(
        self, memory: Float[Array, "*batch S D"], observe: F.Observe = F.unobserved
    ) -> list[F.KeyValues]:
        """For each block the keys and values of an encoder's output."""
        return [
            F.key_values(
                block.cross_attention,
                memory,
                num_heads=self.config.num_heads,
                norm=self.config.functions()["norm"],
                observe=F.within(observe, f"blocks.{index}.cross_attention"),
            )
            for index, block in enumerate(self.blocks)
        ]
