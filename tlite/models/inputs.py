"""Inputs of blocks other than parameters and x: masks, positions, rotary angles, biases."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

import tlite.functional as F
from tlite.models.components import ALiBi, Learned, Relative, Rotary
from tlite.models.config import positions_name

LayerCache = dict[str, Any]
"""Cache entries of a block by layer: "attention", "feed_forward", in a decoder "cross_attention".

An entry is None, a tree of arrays (..., C, N) with one row per position, as the keys and values
(..., G, C, K) of `attend`, or a `functional.State` of fixed size.
"""
STATIC = {"static": True}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BlockInputs:
    """Arrays that all blocks with one window share; made once per forward pass.

    x has T tokens, which attend to S keys: the tokens themselves, or all positions of a cache.
    """

    mask: Bool[Array, "..."] | None = None
    """Broadcastable to (..., H, T, S), True = may attend; None: no limit."""
    bias: Float[Array, "..."] | None = None
    """(..., H, T, S), added to the scores."""
    angles: Float[Array, "... L half_K"] | None = None
    """Rotary angles of queries and keys."""
    attention_factor: Float[Array, ""] | None = None
    """Factor of rotated queries and keys (YaRN)."""
    positions: Int[Array, "*#batch T"] | None = None
    """Positions of x in its sequence; None in cross-attention."""
    key_positions: Int[Array, "*#batch S"] | None = None
    """Positions of the keys."""
    start: Int[Array, "*#batch"] | None = None
    """Cache index of the first token of x; None without a cache, and in cross-attention."""
    valid: Bool[Array, "*#batch T"] | None = None
    """False where x is padding: a recurrent layer leaves its state unchanged there."""
    segment_ids: Int[Array, "*#batch T"] | None = None
    """Index of the document of each token; `mask` already prevents attention between documents."""
    memory: Float[Array, "*#batch M D"] | None = None
    """Output of an encoder, for cross-attention."""
    memory_mask: Bool[Array, "..."] | None = None
    """Broadcastable to (..., H, T, M): the part of the memory that may be attended to."""
    is_causal: bool = field(default=False, metadata=STATIC)
    """`mask` is exactly the causal mask within `window`; a kernel may then ignore it."""
    window: int = field(default=0, metadata=STATIC)
    """Sliding window of these blocks; 0: no limit."""


def causal_inputs(length: int, segment_ids: Int[Array, "*batch T"] | None = None) -> BlockInputs:
    """Return positions 0, 1, ... and the causal mask of `length` tokens, within segments if any."""
    positions = jnp.arange(length)
    inputs = BlockInputs(positions=positions, key_positions=positions)
    if segment_ids is None:
        return replace(inputs, mask=F.causal_mask(length), is_causal=True)
    if segment_ids.shape[-1] != length:
        raise ValueError(f"segment_ids has length {segment_ids.shape[-1]}, not that of x, {length}")
    return replace(inputs, mask=F.segment_mask(segment_ids), segment_ids=segment_ids)


def bidirectional_inputs(valid: Bool[Array, "*batch T"]) -> BlockInputs:
    """Return positions 0, 1, ... of tokens that attend to all valid ones."""
    positions, mask = jnp.arange(valid.shape[-1]), valid[..., None, None, :]
    return BlockInputs(mask, positions=positions, key_positions=positions, valid=valid)


def cached_inputs(
    length: int,
    caches: Sequence[LayerCache],
    start: Int[Array, "*#batch"],
    context: int,
    valid: Bool[Array, "*batch T"] | None = None,
) -> BlockInputs:
    """Return the inputs of `length` tokens that continue a sequence with `start` cached tokens."""
    capacity = cache_capacity(caches, context)
    if not isinstance(start, Tracer):
        F.check_length(int(start.max()) + length, capacity, "the caches")
    positions = start[..., None] + jnp.arange(length)
    return BlockInputs(
        F.cache_mask(positions, capacity),
        positions=positions,
        key_positions=jnp.arange(capacity),
        start=start,
        valid=valid,
    )


def window_inputs(model, inputs: BlockInputs, window: int) -> BlockInputs:
    """Return the inputs of blocks with this window: mask, rotary angles, bias of scores."""
    config, encoding = model.config, model.config.positions
    params, positions = getattr(model, positions_name(config)), inputs.positions
    key_positions = inputs.key_positions
    assert positions is not None and key_positions is not None  # noqa: PT018
    if window:
        near = F.window_mask(positions, key_positions, window)
        inputs = replace(inputs, mask=F.combine_masks(inputs.mask, near), window=window)
    if isinstance(encoding, Rotary):
        local_base = encoding.local_base if window else None
        frequencies, factor = rotary_frequencies(encoding, config.head_dim, local_base)
        angles = positions[..., None] * frequencies
        angles = angles[..., None, :, :] if positions.ndim > 1 else angles
        return replace(inputs, angles=angles, attention_factor=factor)
    if isinstance(encoding, ALiBi):
        return replace(inputs, bias=F.alibi(positions, key_positions, config.num_heads))
    if isinstance(encoding, Relative):
        relative = key_positions[..., None, :] - positions[..., :, None]
        sizes = encoding.num_buckets, encoding.max_distance
        buckets = F.relative_position_buckets(relative, *sizes, causal=model.is_causal)
        bias = jnp.moveaxis(F.embed(jnp.asarray(params.table), buckets), -1, -3)
        return replace(inputs, bias=bias)
    fields = encoding.attention_inputs(params, inputs, config, is_causal=model.is_causal)
    if "bias" in fields and not encoding.adds_bias:
        raise ValueError(f"{type(encoding).__name__} returns a bias: set adds_bias = True")
    return replace(inputs, **fields)


def rotary_frequencies(
    encoding: Rotary, head_dim: int, local_base: float | None = None
) -> tuple[Float[Array, " half_K"], Float[Array, ""] | None]:
    """Return the rotary frequencies, scaled for longer contexts, and YaRN's attention factor.

    Args:
        local_base: base of blocks with a window; their frequencies are never scaled.
    """
    if local_base is not None:
        return F.rotary_frequencies(head_dim, local_base), None
    frequencies, scaling = F.rotary_frequencies(head_dim, encoding.base), encoding.scaling
    if scaling is None:
        return frequencies, None
    if scaling.method == "linear":
        return frequencies / scaling.factor, None
    if scaling.method == "llama3":
        return F.llama3_frequencies(
            frequencies, scaling.factor, scaling.original_context,
            scaling.low_frequency_factor, scaling.high_frequency_factor,
        ), None  # fmt: skip
    frequencies = F.yarn_frequencies(
        frequencies, scaling.factor, scaling.original_context,
        scaling.beta_fast, scaling.beta_slow, encoding.base,
    )  # fmt: skip
    return frequencies, F.yarn_attention_factor(scaling.factor, scaling.attention_factor)


def position_table(encoding, params, config) -> Float[Array, "L D"]:
    """Return the vectors of all positions, learned or sinusoidal."""
    if isinstance(encoding, Learned):
        return jnp.asarray(params.table)[encoding.offset :]
    # Computed once, not at every step of a search, and on no mesh of devices.
    no_mesh = jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))
    with no_mesh, jax.ensure_compile_time_eval():
        return F.sinusoidal_positions(config.context, config.width, split=encoding.split)


def cache_capacity(caches: Sequence[LayerCache], default: int) -> int:
    """Return the number of positions of caches; `default` if no entry has a length axis."""
    leaves = jax.tree.leaves(caches, is_leaf=lambda a: isinstance(a, F.State))
    arrays = [leaf for leaf in leaves if not isinstance(leaf, F.State)]
    return arrays[0].shape[-2] if arrays else default
