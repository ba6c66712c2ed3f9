"""The forward pass: embedding, blocks, final norm; and the language model that predicts tokens."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.core import Tracer
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

import tlite.functional as F
from tlite.models.block import Aux, add_aux, apply_norm, block
from tlite.models.components import Learned, PositionsFunction, Sinusoidal
from tlite.models.config import GeneratorConfig, TransformerConfig, positions_name
from tlite.models.custom import bind_params, call_layer
from tlite.models.init import (
    init_block,
    init_embedding,
    init_norm,
    init_output_layer,
    init_positions,
    init_table,
)
from tlite.models.inputs import (
    BlockInputs,
    LayerCache,
    cached_inputs,
    causal_inputs,
    position_table,
    window_inputs,
)
from tlite.models.parameters import as_params, set_params


class TransformerKeys(NamedTuple):
    """One key for each component: none is used twice, or both split and folded."""

    embedding: Key[Array, ""]
    positions: Key[Array, ""]
    head: Key[Array, ""]
    blocks: Key[Array, ""]
    token_types: Key[Array, ""]
    embedding_norm: Key[Array, ""]
    final_norm: Key[Array, ""]


class Transformer(nnx.Module):
    """Parameters of an embedding, of blocks, and of the norm that follows pre-norm blocks.

    `blocks` is a list, or with `Loop(scan=True)` one tree whose arrays have a first axis of blocks.

    Subclasses create their own layers in `init_head` and define `__call__`.

    Args:
        embedding: False if another model owns the embedding table.
        cross_attention: True if the blocks also attend to the output of an encoder.
        is_causal: True if no token attends to later ones.
    """

    embedding: Any
    token_types: Any
    embedding_norm: Any
    blocks: Any

    def __init__(
        self,
        config: TransformerConfig,
        *,
        rng: Key[Array, ""],
        embedding: bool = True,
        cross_attention: bool = False,
        is_causal: bool = False,
    ):
        keys = TransformerKeys(*jax.random.split(rng, len(TransformerKeys._fields)))
        params = {"embedding": init_embedding(keys.embedding, config)} if embedding else {}
        params[positions_name(config)] = init_positions(config.positions, keys.positions, config)
        if size := config.embedding.type_vocab_size:
            params["token_types"] = init_table(keys.token_types, size, config.width)
        if config.embedding.norm:
            params["embedding_norm"] = init_norm(keys.embedding_norm, config)
        set_params(self, params)
        block_keys = jax.random.split(keys.blocks, config.num_blocks)
        init = partial(init_block, cross_attention=cross_attention)
        if config.loop.scan:
            self.blocks = as_params(jax.vmap(lambda k: init(k, config.blocks[0]))(block_keys))
        else:
            self.blocks = nnx.List(
                as_params(init(k, c, is_first=i == 0))
                for i, (k, c) in enumerate(zip(block_keys, config.blocks, strict=True))
            )
        if config.pre_norm:
            self.norm = as_params(init_norm(keys.final_norm, config))
        self.init_head(keys.head, config)
        self.config, self.is_causal = config, is_causal

    def init_head(self, rng: Key[Array, ""], config) -> None:
        """Draw the layers after the blocks."""


def list_blocks(model: Transformer) -> list[Any]:
    """Return the parameters of each block.

    Of stacked blocks these are slices: with caches or a tap XLA makes one copy of the parameters
    in each call, and compiles every block.
    """
    if isinstance(model.blocks, nnx.List):
        return list(model.blocks)
    return [jax.tree.map(itemgetter(i), model.blocks) for i in range(model.config.num_blocks)]


# The forward pass


def embed(
    model: Transformer,
    tokens: Int[Array, "*batch T"],
    positions: Int[Array, "*#batch T"] | None = None,
    *,
    table: Float[Array, "V D"] | None = None,
) -> Float[Array, "*batch T D"]:
    """Scaled embeddings (section 3.4) of tokens at positions 0, 1, ... unless others are passed.

    Raises:
        ValueError: a sequence or a position beyond the model's context.
    """
    config, encoding = model.config, model.config.positions
    params = getattr(model, positions_name(config))
    if positions is None:
        F.check_length(tokens.shape[-1], config.context, "the model's context")
    elif not isinstance(positions, Tracer):  # hypotheses may share a position
        F.check_length(int(positions.max()) + 1, config.context, "the model's context")
    x = F.embed(model.embedding.table[...] if table is None else table, tokens)
    x = x * config.width**0.5 if config.embedding.scale else x
    if isinstance(encoding, Learned | Sinusoidal):
        rows = position_table(encoding, params, config)
        x = F.add_positions(rows, x) if positions is None else x + rows[positions]
    else:
        at = jnp.arange(x.shape[-2]) if positions is None else positions
        if isinstance(encoding, PositionsFunction):
            x = x + bind_params(encoding.function, params)(at, config.width)
        else:
            x = encoding.add(params, x, at, config)
    if config.embedding.type_vocab_size:
        x = x + model.token_types.table[0]
    return apply_norm(config.norm, model.embedding_norm, x) if config.embedding.norm else x


def run_blocks(
    model: Transformer,
    x: Float[Array, "*batch T D"],
    inputs: BlockInputs,
    *,
    caches: Sequence[LayerCache] | None = None,
    rng: Key[Array, "..."] | None = None,
    tap: F.Tap = F.no_tap,
) -> tuple[Float[Array, "*batch T D"], list[LayerCache], Aux]:
    """Dropout, all blocks, and the final norm of pre-norm blocks.

    Args:
        inputs: positions, key positions and mask; those of each window are derived from them.
        caches: cache entries of each block, for x that continues a sequence at `inputs.start`.
        rng: dropout key, or one per example; None: evaluation.
        tap: called on `embedding`, `blocks.0.residual`, `final` and the values inside of blocks.

    Returns:
        x, the cache entries of each block, and the sums of the layers' scalars for the loss.
    """
    config, tap, new_caches, aux = model.config, F.scoped(tap, ""), [], {}
    x = tap("embedding", constrain_batch_sharding(x))
    x = x if rng is None else F.dropout(F.fold_in(rng, config.num_blocks), x, config.dropout)
    by_window = {window: window_inputs(model, inputs, window) for window in {*config.windows}}
    if caches is None and tap is F.no_tap and not isinstance(model.blocks, nnx.List):
        x, aux = scan_blocks(model, x, by_window[config.windows[0]], rng)
        return final_norm(model, x), [], aux
    blocks = zip(list_blocks(model), config.blocks, config.windows, strict=True)
    for i, (params, block_config, window) in enumerate(blocks):
        run = partial(block_function(block_config.block), config=block_config)
        if config.loop.remat and tap is F.no_tap:
            run = jax.checkpoint(run)
        else:
            run = partial(run, tap=F.scoped(tap, f"blocks.{i}"))
        cache = None if caches is None else caches[i]
        x, cache, block_aux = run(params, x, by_window[window], cache=cache, rng=F.fold_in(rng, i))
        x = tap(f"blocks.{i}.residual", constrain_batch_sharding(x))
        new_caches.append({} if cache is None else cache)
        aux = add_aux(aux, block_aux)
    return tap("final", final_norm(model, x)), new_caches, aux


def scan_blocks(model: Transformer, x, inputs: BlockInputs, rng):
    """Run stacked blocks as one compiled block; returns x and the sums of the layers' scalars."""
    config = model.config.blocks[0]
    run = partial(block_function(config.block), config=config)
    run = jax.checkpoint(run) if config.loop.remat else run

    def step(x, index_and_params):
        index, params = index_and_params
        x, _, aux = run(params, x, inputs, rng=F.fold_in(rng, index))
        return constrain_batch_sharding(x), aux

    x, aux = jax.lax.scan(step, x, (jnp.arange(config.num_blocks), model.blocks))
    return x, jax.tree.map(lambda a: a.sum(0), aux)


def block_function(component):
    """Return the library's block, or the call of a user's."""
    return partial(call_layer, component) if callable(component) else block


def final_norm(model: Transformer, x: Float[Array, "*batch T D"]) -> Float[Array, "*batch T D"]:
    """The norm after pre-norm blocks; post-norm blocks end with one."""
    return apply_norm(model.config.norm, model.norm, x) if model.config.pre_norm else x


# Caches


def empty_caches(
    model: Transformer, *batch: int, capacity: int | None = None, cross_attention: bool = False
) -> list[LayerCache]:
    """Return for each block cache entries of zeros with `capacity` positions, or the context's."""
    config, length = model.config, model.config.context if capacity is None else capacity

    def shapes():
        x = jnp.zeros((1, config.width))
        inputs = replace(causal_inputs(1), memory=x if cross_attention else None)
        caches = run_blocks(model, x, inputs, tap=lambda _, value: value)[1]  # a tap: no scan
        return [{k: v for k, v in c.items() if k != "cross_attention"} for c in caches]

    def empty(entry):
        if isinstance(entry, F.State):
            return jax.tree.map(lambda a: jnp.zeros((*batch, *a.shape), a.dtype), entry)
        return jnp.zeros((*batch, *entry.shape[:-2], length, entry.shape[-1]), entry.dtype)

    return jax.tree.map(empty, jax.eval_shape(shapes), is_leaf=lambda a: isinstance(a, F.State))


# The decoder-only language model


class CausalLM(Transformer):
    """Decoder-only language model: tokens (..., T) to logits (..., T, V) of the next tokens."""

    config: GeneratorConfig

    def __init__(self, config: GeneratorConfig, *, rng: Key[Array, ""]):
        super().__init__(config, rng=rng, is_causal=True)

    def init_head(self, rng: Key[Array, ""], config: GeneratorConfig) -> None:
        set_params(self, init_output_layer(rng, config, tied=config.head.tied))

    def __call__(
        self,
        tokens: Int[Array, "*batch T"],
        *,
        segment_ids: Int[Array, "*#batch T"] | None = None,
        rng: Key[Array, "..."] | None = None,
        tap: F.Tap = F.no_tap,
    ) -> Float[Array, "*batch T V"]:
        """Logits of the next token at every position.

        Args:
            segment_ids: number of each token's document; tokens attend within documents only.
                Positions are not reset between documents.
            rng: dropout key, or one per example; None: evaluation.
            tap: called as x = tap(name, x) on the values inside.

        Raises:
            ValueError: more tokens than the model's context.
        """
        inputs = causal_inputs(tokens.shape[-1], segment_ids)
        x, _, _ = run_blocks(self, embed(self, tokens), inputs, rng=rng, tap=tap)
        return self.logits(x, tap)

    def logits_and_aux(self, tokens, *, segment_ids=None, rng=None, tap=F.no_tap):
        """Logits, and the sums over blocks of the scalars that layers add for the loss."""
        inputs = causal_inputs(tokens.shape[-1], segment_ids)
        x, _, aux = run_blocks(self, embed(self, tokens), inputs, rng=rng, tap=tap)
        return self.logits(x, tap), aux

    def extend(
        self,
        tokens: Int[Array, "*batch T"],
        caches: list[LayerCache],
        start: Int[Array, "*#batch"],
        *,
        valid: Bool[Array, "*#batch T"] | None = None,
        tap: F.Tap = F.no_tap,
    ) -> tuple[Float[Array, "*batch T V"], list[LayerCache]]:
        """Logits of T more tokens of a sequence with `start` tokens in the caches; new caches.

        Equal to the last rows of a call on the whole sequence, at the cost of the new tokens.

        Args:
            start: at most the capacity of the caches minus T.
            valid: False where a token is padding, which recurrent layers skip.
        """
        inputs = cached_inputs(tokens.shape[-1], caches, start, self.config.context, valid)
        x = embed(self, tokens, inputs.positions)
        x, caches, _ = run_blocks(self, x, inputs, caches=caches, tap=tap)
        return self.logits(x, tap), caches

    def empty_caches(self, *batch: int, capacity: int | None = None) -> list[LayerCache]:
        """Return for each block cache entries of zeros with `capacity` positions."""
        return empty_caches(self, *batch, capacity=capacity)

    def logits(
        self, x: Float[Array, "*batch D"], tap: F.Tap = F.no_tap
    ) -> Float[Array, "*batch V"]:
        """The output layer: a linear layer, or products with the embedding."""
        head = self.config.head
        logits = token_logits(self, self.embedding, x, tied=head.tied)
        logits = logits if head.softcap is None else F.soft_cap(logits, head.softcap)
        return F.scoped(tap, "")("logits", logits)


def token_logits(model, embedding, x: Float[Array, "*batch D"], *, tied: bool):
    """Logits (..., V) by the layer `head`, or by products with the embedding table."""
    if not tied:
        return F.linear(model.head, x)
    head, table = model.config.head, embedding.table[...]
    table = table.astype(jnp.bfloat16) if head.product == "mixed" else table
    return F.unembed(table, x, model.head_bias[...] if head.bias else None)


def constrain_batch_sharding(x: Float[Array, "B *R"]) -> Float[Array, "B *R"]:
    """Constrain the batch axis to be sharded, so that XLA gathers parameters and not activations.

    Only on a mesh (`jax.set_mesh`) with an axis "data"; the numbers are those of x.
    """
    mesh = jax.sharding.get_abstract_mesh()
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if mesh.shape.get("data", 1) == 1 or types["data"] != AxisType.Auto:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec("data", *[None] * (x.ndim - 1)))
