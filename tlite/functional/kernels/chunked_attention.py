"""Causal attention in chunks of queries: memory O(T) in place of O(T^2)."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from tlite.functional.kernels.matmul import product, transpose
from tlite.functional.kernels.mixed_attention import flatten_heads
from tlite.functional.layers import bind_supported_kwargs, no_tap, soft_cap, widen

NUM_RANGES = 8
"""Largest number of key ranges, each compiled separately. Without a window (1 + 1 / NUM_RANGES) / 2
of the T^2 products of queries and keys are computed."""


def chunked_causal_attention(
    attention: Callable, query_chunk_size: int, operand_dtype: DTypeLike | None = None
) -> Callable:
    """Return `attention`, computed in chunks of `query_chunk_size` queries where it is causal.

    As in FlashAttention (Dao et al. 2022, section 3.1 and appendix B), the forward pass saves the
    output and log-sum-exp of each query, and the backward pass recomputes the weights. Consecutive
    chunks share a static range of keys, from the window of their first query to their last query.

    Args:
        attention: function (query, key, value, mask) -> (output, weights). It computes the weights,
            under `jit` only if they are used, and also the output of a call that has a tap or is
            not causal.
        operand_dtype: dtype to which operands of products are rounded; None: no rounding.

    Returns:
        A function like `attention` with the arguments `is_causal` and `window`. If `is_causal`, its
        mask must be exactly the causal mask within `window` keys (0: all).
    """

    def call(
        query, key, value, mask=None, *,
        scale=None, softcap=None, bias=None, is_causal=False, window=0, tap=no_tap,
    ):  # fmt: skip
        options = {"scale": scale, "softcap": softcap, "bias": bias}
        bound_attention = bind_supported_kwargs(attention, options, tap=tap)
        reference, weights = bound_attention(query, key, value, mask)
        if not is_causal or tap is not no_tap:
            return reference, weights
        *batch_shape, length, head_dim = query.shape
        query = widen(query) * (1 / math.sqrt(head_dim) if scale is None else scale)
        if bias is not None:
            bias = jnp.broadcast_to(bias, (*bias.shape[:-2], length, key.shape[-2]))
        chunk_size = min(query_chunk_size, length)
        spec = _ChunkSpec(chunk_size, window, softcap, tuple(batch_shape), operand_dtype)
        output = _attention(spec, *flatten_heads(query, widen(key), widen(value)), bias)
        return output.astype(value.dtype).reshape(reference.shape), weights

    return call


class _ChunkSpec(NamedTuple):
    """Settings of `_attention` that are not arrays."""

    chunk_size: int
    window: int
    softcap: float | None
    batch_shape: tuple[int, ...]
    operand_dtype: DTypeLike | None

    def key_ranges(self, length: int) -> Iterator[tuple[slice, slice]]:
        """Yield (chunks, keys): a slice of consecutive chunks, and of the keys they attend to."""
        num_chunks = math.ceil(length / self.chunk_size)
        range_size = max(math.ceil(num_chunks / NUM_RANGES), 2)
        for first in range(0, num_chunks, range_size):
            chunks = slice(first, min(first + range_size, num_chunks))
            start = max(first * self.chunk_size - self.window + 1, 0) if self.window else 0
            yield chunks, slice(start, min(chunks.stop * self.chunk_size, length))

    def chunks(self, indices: slice, keys: slice, queries, biases):
        """Return position of the first query, queries, and bias of each chunk in a slice."""
        starts = self.chunk_size * jnp.arange(indices.start, indices.stop)
        return starts, queries[indices], None if biases is None else biases[indices][..., keys]

    def split(self, x: Float[Array, "*batch T N"]) -> Float[Array, "P *batch chunk N"]:
        """Split T into P chunks, the last padded with zeros."""
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, -x.shape[-2] % self.chunk_size), (0, 0)])
        chunks = x.reshape(*x.shape[:-2], -1, self.chunk_size, x.shape[-1])
        return jnp.moveaxis(chunks, -3, 0)

    def scores(self, start, first_key: int, products, bias):
        """Return Q K^T with softcap and bias; -1e30 where a query does not attend to a key."""
        scores = products if self.softcap is None else soft_cap(products, self.softcap)
        if bias is not None:
            biased = scores.reshape(*self.batch_shape, *scores.shape[-2:]) + bias
            scores = biased.reshape(scores.shape)
        query_positions = start + jnp.arange(self.chunk_size)[:, None]
        distances = query_positions - first_key - jnp.arange(scores.shape[-1])
        attends = (distances >= 0) & (distances < self.window) if self.window else distances >= 0
        return jnp.where(attends, scores, -1e30)


def _join(chunks: Sequence[Array], length: int) -> Array:
    """Undo `_ChunkSpec.split`, given the chunks of each key range."""
    x = jnp.moveaxis(jnp.concatenate(chunks), 0, -3)
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])[..., :length, :]


def _forward(spec: _ChunkSpec, query, key, value, bias):
    """O = E V / z and l = max S + log z,  E = exp(S - max S),  z = row sums of E."""
    if spec.operand_dtype is not None:
        query, key, value = (x.astype(spec.operand_dtype) for x in (query, key, value))

    def run_chunk(first_key, key, value, chunk):
        start, query, bias = chunk
        scores = spec.scores(start, first_key, product("ntk,nsk->nts", query, key), bias)
        row_max = scores.max(-1, keepdims=True)
        exponentials = jnp.exp(scores - row_max)
        row_sum = exponentials.sum(-1, keepdims=True)
        output = product("nts,nsv->ntv", exponentials.astype(value.dtype), value) / row_sum
        return output, row_max + jnp.log(row_sum)

    queries, biases = spec.split(query), jax.tree.map(spec.split, bias)
    results = []
    for indices, keys in spec.key_ranges(query.shape[-2]):
        run = partial(run_chunk, keys.start, key[:, keys], value[:, keys])
        results.append(jax.lax.map(run, spec.chunks(indices, keys, queries, biases)))
    outputs, logsumexps = zip(*results, strict=True)
    output = _join(outputs, query.shape[-2])
    return output, (query, key, value, bias, output, jnp.concatenate(logsumexps))


def _backward(spec: _ChunkSpec, residuals, d_output):
    """Gradients as in `mixed_attention`; those of keys and values are summed over chunks."""
    query, key, value, bias, output, logsumexps = residuals
    length, queries, biases = query.shape[-2], spec.split(query), jax.tree.map(spec.split, bias)
    output_dots = spec.split((d_output * output).sum(-1, keepdims=True))
    d_outputs = spec.split(d_output.astype(value.dtype))
    d_key, d_value = (jnp.zeros(x.shape, output.dtype) for x in (key, value))
    d_queries, d_biases = [], []
    for indices, keys in spec.key_ranges(length):
        run = partial(_backward_chunk, spec, keys.start, key[:, keys], value[:, keys])
        chunks = spec.chunks(indices, keys, queries, biases)
        inputs = chunks, logsumexps[indices], d_outputs[indices], output_dots[indices]
        sums, (d_query, d_bias) = jax.lax.scan(run, (d_key[:, keys], d_value[:, keys]), inputs)
        d_key, d_value = d_key.at[:, keys].set(sums[0]), d_value.at[:, keys].set(sums[1])
        d_queries.append(d_query)
        if bias is not None:
            skipped_keys = (keys.start, length - keys.stop)
            d_biases.append(jnp.pad(d_bias, [(0, 0)] * (d_bias.ndim - 1) + [skipped_keys]))
    return _join(d_queries, length), d_key, d_value, _join(d_biases, length) if d_biases else None


def _backward_chunk(spec: _ChunkSpec, first_key: int, key, value, sums, inputs):
    """W = exp(S - l); `jax.vjp` takes dS back through bias and softcap to products and bias."""
    (start, query, bias), logsumexp, d_output, output_dot = inputs
    products = product("ntk,nsk->nts", query, key)
    scores, scores_vjp = jax.vjp(partial(spec.scores, start, first_key), products, bias)
    weights = jnp.exp(scores - logsumexp)
    d_weights = product("ntv,nsv->nts", d_output, value)
    d_products, d_bias = scores_vjp(weights * (d_weights - output_dot))
    d_products, weights = d_products.astype(key.dtype), weights.astype(key.dtype)
    d_key = sums[0] + product("nst,ntk->nsk", transpose(d_products), query)
    d_value = sums[1] + product("nst,ntv->nsv", transpose(weights), d_output)
    return (d_key, d_value), (product("nts,nsk->ntk", d_products, key), d_bias)


_attention = jax.custom_vjp(lambda *inputs: _forward(*inputs)[0], nondiff_argnums=(0,))
_attention.defvjp(_forward, _backward)
