"""The parameter trees that the functions expect, as NamedTuples.

A function reads fields by name, so anything with these fields will do: one of these tuples in a
notebook, or the Flax module of the same name. `None` in place of a bias leaves it out.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from jax.typing import ArrayLike


class LinearParameters(NamedTuple):
    kernel: ArrayLike  # (D_in, D_out)
    bias: ArrayLike | None = None  # (D_out,)


class NormParameters(NamedTuple):
    scale: ArrayLike  # (D,)
    bias: ArrayLike | None = None  # (D,); RMS norm has none


class AttentionParameters(NamedTuple):
    query: LinearParameters  # (D, H*K)
    key: LinearParameters  # (D, G*K), G = H unless heads share keys
    value: LinearParameters  # (D, G*K)
    output: LinearParameters  # (H*K, D)
    query_norm: NormParameters | None = None  # (K,)
    key_norm: NormParameters | None = None  # (K,)


class FeedForwardParameters(NamedTuple):
    hidden: LinearParameters  # (D, F)
    output: LinearParameters  # (F, D)
    gate: LinearParameters | None = None  # (D, F)


class EncoderBlockParameters(NamedTuple):
    attention: AttentionParameters
    attention_norm: NormParameters
    feed_forward: FeedForwardParameters
    feed_forward_norm: NormParameters


class DecoderBlockParameters(NamedTuple):
    attention: AttentionParameters
    attention_norm: NormParameters
    cross_attention: AttentionParameters
    cross_attention_norm: NormParameters
    feed_forward: FeedForwardParameters
    feed_forward_norm: NormParameters


def bind(function: Callable, params) -> Callable:
    """A function that has parameters of its own, `params.own`, with these as first argument."""
    own = getattr(params, "own", None)
    return function if own is None else partial(function, own)
