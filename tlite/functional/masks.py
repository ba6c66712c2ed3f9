"""Attention masks: boolean, True = may attend, broadcastable to (..., H, T, S)."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def causal_mask(length: int) -> Bool[Array, "T T"]:
    """mask[t, s] = s <= t: a position sees itself and what came before."""
    return jnp.tril(jnp.ones((length, length), bool))


def cache_mask(
    positions: Int[Array, "*batch T"], capacity: int
) -> Bool[Array, "*batch 1 T capacity"]:
    """Causal attention on a cache: what is at a position sees that place and those before it."""
    return jnp.arange(capacity) <= positions[..., None, :, None]


def window_mask(
    positions: Int[Array, "*batch T"], key_positions: Int[Array, "*#batch S"], window: int
) -> Bool[Array, "*batch 1 T S"]:
    """|t - s| < window: a position sees only what is near ("Longformer", Beltagy et al. 2020)."""
    distances = positions[..., None, :, None] - key_positions[..., None, None, :]
    return jnp.abs(distances) < window


def padding_mask(tokens: Int[Array, "*batch S"], pad_id: int) -> Bool[Array, "*batch 1 1 S"]:
    """True where a key is a real token; the axes for heads and queries are of length 1."""
    return (tokens != pad_id)[..., None, None, :]


def documents(tokens: Int[Array, "*batch T"], end_id: int) -> Int[Array, "*batch T"]:
    """The number of the document that each token belongs to.

    The token that ends a document is the first that the next one sees, as a text that is generated
    begins with it too.
    """
    return jnp.cumsum(tokens == end_id, axis=-1)


def document_mask(numbers: Int[Array, "*batch T"]) -> Bool[Array, "*batch 1 T T"]:
    """Causal attention within documents that are packed into one sequence, by their numbers.

    Positions count on from one document to the next: rotary ones and distances do not mind.
    """
    same = numbers[..., :, None] == numbers[..., None, :]
    return same[..., None, :, :] & causal_mask(numbers.shape[-1])


def combine_masks(*masks: Bool[Array, "..."] | None) -> Bool[Array, "..."] | None:
    """What every mask allows; None allows everything."""
    combined = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else combined & mask
    return combined
