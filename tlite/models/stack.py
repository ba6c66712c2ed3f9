"""What the models have in common: embedding, positions, dropout and a stack of blocks."""

import dataclasses
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.core import Tracer
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

from tlite import functional as F
from tlite.models.config import TransformerConfig
from tlite.models.parameters import as_params, set_params
from tlite.models.parts import positions_of
from tlite.models.parts import table as drawn_table

BATCH_AXES = "data", "model"  # of a mesh of devices
Rows = dict[str, Any]
"""What a cache holds of a block: rows (..., C, N) by layer, `KeyValues` of its attention."""


class StackKeys(NamedTuple):
    """One key for each component: none is used twice, or both split and folded."""

    embedding: Key[Array, ""]
    positions: Key[Array, ""]
    head: Key[Array, ""]
    blocks: Key[Array, ""]
    segments: Key[Array, ""]
    embedding_norm: Key[Array, ""]
    final_norm: Key[Array, ""]


class Stack(nnx.Module):
    """Embedding, positions, dropout, blocks and, after pre-norm blocks, a norm.

    With `embedding` False the table belongs to someone else and is passed to `embed`.
    """

    config: TransformerConfig
    embedding: Any
    segments: Any
    embedding_norm: Any
    blocks: Any
    across: ClassVar[bool] = False  # whether blocks attend to an encoder's output
    causal: ClassVar[bool] = False  # whether relative positions have buckets for what comes later

    def __init__(self, config: TransformerConfig, *, embedding: bool = True, rng: Key[Array, ""]):
        keys, parts = StackKeys(*jax.random.split(rng, len(StackKeys._fields))), {}
        if embedding:
            parts["embedding"] = config.embedding.init(keys.embedding, config)
        parts[config.positions.name] = config.positions.init(keys.positions, config)
        if config.embedding.type_vocab_size:
            parts["segments"] = drawn_table(
                keys.segments, config.embedding.type_vocab_size, config.width
            )
        if config.embedding.norm:
            parts["embedding_norm"] = config.norm.init(keys.embedding_norm, config)
        set_params(self, parts)
        self.blocks = nnx.List(
            as_params(config.block.init(k, config, index, across=self.across))
            for index, k in enumerate(jax.random.split(keys.blocks, config.num_blocks))
        )
        if config.block.pre_norm:
            self.norm = as_params(config.norm.init(keys.final_norm, config))
        self.init_head(keys.head, config)
        self.config = config

    def init_head(self, rng: Key[Array, ""], config) -> None:
        """Draw the layers after the blocks, where a subclass has any."""

    def embed(
        self,
        tokens: Int[Array, "*batch T"],
        positions: Int[Array, "*#batch T"] | None = None,
        *,
        table: Float[Array, "V D"] | None = None,
    ) -> Float[Array, "*batch T D"]:
        """Scaled embeddings with their positions (0, 1, ... unless given), and their norm if any.

        Raises:
            ValueError: more tokens than the model's context, or a position after it.
        """
        config = self.config
        if positions is not None and not isinstance(positions, Tracer):
            F.check_length(int(positions.max()) + 1, config.context, "the model's context")
        x = F.embed(self.embedding.table[...] if table is None else table, tokens)
        factor = config.embedding.factor(config)
        x = factor * x if factor != 1 else x
        x = config.positions.add(self.learned_positions, x, positions, config)
        if config.embedding.type_vocab_size:
            x = x + self.segments.table[0]
        return config.norm(self.embedding_norm, x) if config.embedding.norm else x

    def run_blocks(
        self,
        x: Float[Array, "*batch T D"],
        mask: Bool[Array, "..."] | None = None,
        *,
        memories: Sequence[Any] | None = None,
        caches: Sequence[Rows] | None = None,
        **given,
    ) -> tuple[Float[Array, "*batch T D"], list[Rows]]:
        """Dropout, every block with its memory and cache, and the final norm; and the caches.

        `given` are more fields of `functional.Look`. With caches x is what comes at `start` of a
        longer sequence. Without a mask, (..., T, C) then, a causal stack's is causal. The
        `positions` of x are 0, 1, ... or `start`, start + 1, ... unless given, the `key_positions`
        in caches 0, 1, ...
        """
        look = self.look(x.shape[-2], caches, mask=mask, **given)
        x = look.tap("embedding", constrain_batch_sharding(x))
        rate = 0.0 if look.deterministic else self.config.dropout
        x = F.dropout(F.fold_in(look.rng, len(self.blocks)), x, rate)
        watched = look.tap is not F.no_tap  # what is inside of a scan can't be
        if self.config.loop.scan and not (caches or watched):
            x, rows = self.scanned(x, look, memories)
        else:
            x, rows = self.unrolled(x, look, memories, caches)
        return look.tap("final", self.final_norm(x)), rows

    def look(self, length: int, caches: Sequence[Rows] | None = None, **given) -> F.Look:
        """What all blocks look at: the places of so many tokens and of their keys, and a mask."""
        given["deterministic"] = given.get("rng") is None
        given["tap"] = F.scoped(given.get("tap", F.no_tap), "")
        look = F.Look(self.config.num_heads, norm=self.config.norm, **given)
        if caches and look.start is not None and not isinstance(look.start, Tracer):
            end = int(look.start.max()) + length
            F.check_length(end, room(caches, self.config.context), "the caches")
        positions, keys, mask = look.positions, look.key_positions, look.mask
        if positions is None:
            start = jnp.array(0) if look.start is None or not caches else look.start
            positions = F.positions_from(start, length)
        if keys is None:
            keys = jnp.arange(room(caches, self.config.context)) if caches else positions
        causal = self.causal and mask is None
        if causal:
            mask = F.cache_mask(positions, keys.shape[-1]) if caches else F.causal_mask(length)
        fields = {"mask": mask, "causal": causal and not caches}
        return dataclasses.replace(look, positions=positions, key_positions=keys, **fields)

    def look_at(self, look: F.Look, window: int) -> F.Look:
        """The same for blocks with this window: their mask, rotary angles, bias of scores."""
        config, mask = self.config, look.mask
        if window:
            mask = F.combine_masks(mask, F.window_mask(*positions_of(look), window))
        look = dataclasses.replace(look, mask=mask, window=window)
        params, causal = self.learned_positions, self.causal
        scores = config.positions.attention_inputs(params, look, config, causal=causal)
        return dataclasses.replace(look, **scores)

    def unrolled(self, x, look: F.Look, memories, caches):
        """One block after the other."""
        looks, rows = {w: self.look_at(look, w) for w in {*self.config.windows}}, []
        for index, (params, window) in enumerate(
            zip(self.blocks, self.config.windows, strict=True)
        ):
            inside = {
                "memory": memories and memories[index],
                "cache": caches and caches[index],
                "rng": F.fold_in(look.rng, index),
                "tap": F.scoped(look.tap, f"blocks.{index}"),
            }
            x, of_block = self.block(params, x, dataclasses.replace(looks[window], **inside))
            rows.append(of_block)
        return x, rows

    def scanned(self, x, look: F.Look, memories):
        """One block after the other, in one program for all, which are alike."""
        look = self.look_at(look, self.config.windows[0])

        def step(x, inputs):
            index, params, memory = inputs
            inside = {"memory": memory, "rng": F.fold_in(look.rng, index)}
            return self.block(params, x, dataclasses.replace(look, **inside))

        stack = partial(jax.tree.map, lambda *arrays: jnp.stack(arrays))
        inputs = jnp.arange(len(self.blocks)), stack(*self.blocks), memories and stack(*memories)
        x, rows = jax.lax.scan(step, x, inputs)
        return x, [jax.tree.map(lambda a, i=i: a[i], rows) for i in range(len(self.blocks))]

    def block(self, params, x, look: F.Look):
        """A block of the config's, over all devices; with `remat` again in the backward pass."""
        config = self.config
        remat = config.loop.remat and look.tap is F.no_tap
        block = jax.checkpoint(config.block, static_argnums=3) if remat else config.block
        x, rows = block(params, x, look, config)
        return look.tap("residual", constrain_batch_sharding(x)), rows

    def empty_caches(self, *batch: int, capacity: int | None = None) -> list[Rows]:
        """For each block a cache of zeros with room for `capacity` tokens, or a context."""
        length = self.config.context if capacity is None else capacity
        empty = lambda row: jnp.zeros((*batch, *row.shape[:-2], length, row.shape[-1]), row.dtype)  # noqa: E731
        return jax.tree.map(empty, cache_shapes(self.across, self.config))

    @property
    def learned_positions(self):
        """The parameters of positions, or None."""
        return getattr(self, self.config.positions.name)

    def final_norm(self, x: Float[Array, "*batch T D"]) -> Float[Array, "*batch T D"]:
        """The norm after pre-norm blocks; post-norm blocks end with one."""
        return self.config.norm(self.norm, x) if self.config.block.pre_norm else x


def constrain_batch_sharding(x: Float[Array, "B *rest"]) -> Float[Array, "B *rest"]:
    """x, of which each device has other examples: so that a sharded model's parameters go to the
    examples, and not these to them.

    Only a hint to the compiler, on a mesh (`jax.set_mesh`) with these axes; the numbers are x's.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = [a for a in BATCH_AXES if mesh.shape.get(a, 1) > 1]
    if not axes or any(mesh.axis_types[mesh.axis_names.index(a)] != AxisType.Auto for a in axes):
        return x
    spec = PartitionSpec(tuple(axes), *[None] * (x.ndim - 1))
    return jax.lax.with_sharding_constraint(x, spec)


def room(caches: Sequence[Rows], default: int) -> int:
    """Number of tokens that caches can hold; `default` if no layer caches anything."""
    arrays = jax.tree.leaves(caches)
    return arrays[0].shape[-2] if arrays else default


@lru_cache(maxsize=64)
def cache_shapes(across: bool, config: TransformerConfig) -> list[Rows]:
    """Shapes of what a cache holds of one token, (..., 1, N), for each block."""

    def run():
        stack = (Decoder if across else Encoder)(config, embedding=False, rng=jax.random.key(0))
        x = jnp.zeros((1, config.width))
        memories = stack.key_values(x) if isinstance(stack, Decoder) else None
        return stack.run_blocks(x, memories=memories)[1]

    return jax.eval_shape(run)


class Encoder(Stack):
    """Tokens (..., T) to vectors (..., T, D). With a causal mask it is the body of a generator."""

    def __call__(self, tokens: Int[Array, "*batch T"], **look) -> Float[Array, "*batch T D"]:
        """The last block's vectors, after the final norm, of tokens that see each other.

        One below 0 is padding, seen by none. `rng` is the key of dropout, or one a sample; without
        it every dropout rate counts as 0. It and `tap` are fields of `functional.Look`.

        Raises:
            ValueError: more tokens than the model's context.
        """
        x, mask = self.embed(jnp.maximum(tokens, 0)), (tokens >= 0)[..., None, None, :]
        return self.run_blocks(x, mask, **look)[0]


class Decoder(Stack):
    """The blocks of a target, each position of which sees itself, those before it, and a memory."""

    across = True
    causal = True

    def key_values(self, memory: Float[Array, "*batch S D"], tap: F.Tap = F.no_tap) -> list[Any]:
        """For each block what its attention reads of an encoder's output: keys and values."""
        config, keys = self.config, []
        for index, block in enumerate(self.blocks):
            inside = F.scoped(tap, f"blocks.{index}.cross_attention")
            look = F.Look(config.num_heads, norm=config.norm, tap=inside)
            keys.append(config.attention.key_values(block.cross_attention, memory, look))
        return keys
