"""Attention with bfloat16 operands, as one kernel of a GPU's, or of so many queries at a time.

A model takes them where its config says so (`attention="mixed"`, "fused").
They compute what `scaled_dot_product_attention` defines, up to rounding, and are tested against it.
`jax.grad` and `jax.vjp` take them; of `jax.jvp` only `fused_attention` does.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from tlite.functional.attention import repeat_kv, scaled_dot_product_attention
from tlite.functional.layers import Tap, bind_supported_kwargs, no_tap, soft_cap, widen
from tlite.functional.mixed import product, transposed

SPANS = 8  # each is compiled by itself; of T^2 products (1 + 1 / SPANS) / 2 remain


def _flat(query, key, value):
    """(..., H, T, K) with one axis for batch and heads: with two XLA's product is slower."""
    return (x.reshape(-1, *x.shape[-2:]) for x in (query, *repeat_kv(query, key, value)))


def _definition(query, key, value, mask, tap):
    """The definition's output and weights, of operands that are rounded to bfloat16."""
    rounded = (x.astype(jnp.bfloat16).astype(x.dtype) for x in (query, key, value))
    return scaled_dot_product_attention(*rounded, mask=mask, tap=tap)


def mixed_attention(
    query: Float[Array, "*batch T K"],
    key: Float[Array, "*keys S K"],
    value: Float[Array, "*keys S Kv"],
    mask: Bool[Array, "..."] | None = None,
    *,
    tap: Tap = no_tap,
) -> tuple[Float[Array, "*batch T Kv"], Float[Array, "*batch T S"]]:
    """softmax(Q K^T / sqrt(K)) V: softmax and sums in float32, operands in bfloat16.

    Nobody who asks only for the output pays for the weights: the compiler drops them. To somebody
    who observes them the definition offers its own, of operands that are rounded in the same way.
    """
    looked_at, weights = _definition(query, key, value, mask, tap)
    if tap is not no_tap:
        return looked_at, weights
    *batch, length, width = query.shape
    mask = jnp.ones((1, 1), bool) if mask is None else mask
    if mask.ndim > 2:
        mask = jnp.broadcast_to(mask, (*batch, *mask.shape[-2:])).reshape(-1, *mask.shape[-2:])
    wide = map(widen, (query / math.sqrt(width), key, value))
    output = _mixed(*_flat(*wide), mask).astype(value.dtype)
    return output.reshape(*batch, length, value.shape[-1]), weights


def _mixed_forward(query, key, value, mask):
    """O = E V / z,  E = exp(S - max S) where the mask allows,  S = Q K^T,  z = the rows' sums.

    `mask` is (T, S) or (N, T, S). Dividing the output costs less than dividing the weights
    W = E / z. Where nothing is allowed E is 0, and so is O.
    """
    query, key, value = (x.astype(jnp.bfloat16) for x in (query, key, value))
    scores = jnp.where(mask, product("ntk,nsk->nts", query, key), -1e30)
    exponentials = jnp.where(mask, jnp.exp(scores - scores.max(-1, keepdims=True)), 0)
    scale = 1 / jnp.maximum(exponentials.sum(-1, keepdims=True), 1e-30)
    exponentials = exponentials.astype(jnp.bfloat16)
    output = scale * product("nts,nsv->ntv", exponentials, value)
    return output, (query, key, value, exponentials, scale, output)


def _mixed_backward(saved, gradient):
    """With dO the gradient of O, dW = dO V^T and dS = W * (dW - rowsum(dO * O)):

    dV = W^T dO,  dQ = dS K,  dK = dS^T Q.
    """
    query, key, value, exponentials, scale, output = saved
    by_row = (gradient * output).sum(-1, keepdims=True)
    scaled = (scale * gradient).astype(jnp.bfloat16)
    by_weights = product("ntv,nsv->nts", scaled, value)
    by_scores = (exponentials * (by_weights - scale * by_row)).astype(jnp.bfloat16)
    by_query = product("nts,nsk->ntk", by_scores, key)
    by_key = product("nst,ntk->nsk", transposed(by_scores), query)
    return by_query, by_key, product("nst,ntv->nsv", transposed(exponentials), scaled), None


_mixed = jax.custom_vjp(lambda *inputs: _mixed_forward(*inputs)[0])
_mixed.defvjp(_mixed_forward, _mixed_backward)


def fused_attention(
    query: Float[Array, "*batch T K"],
    key: Float[Array, "*keys S K"],
    value: Float[Array, "*keys S K"],
    mask: Bool[Array, "..."] | None = None,
    *,
    causal: bool = False,
    window: int = 0,
    tap: Tap = no_tap,
) -> tuple[Float[Array, "*batch T K"], Float[Array, "*batch T S"]]:
    """The same by `jax.nn.dot_product_attention`: on a GPU one kernel of cuDNN's, which never has
    all T S weights in memory (Dao et al. 2022); elsewhere XLA's products.

    If the mask is just that of causal attention and of a window (0: none), `causal` and `window`
    say so, and the kernel reads no mask. `weights` and what is observed are the definition's, of
    operands that are rounded.
    """
    looked_at, weights = _definition(query, key, value, mask, tap)
    if tap is not no_tap:
        return looked_at, weights
    *batch, length, width = query.shape
    on_gpu, sees = jax.default_backend() == "gpu", None
    settings: dict[str, Any] = {"implementation": "cudnn" if on_gpu else "xla"}
    if causal:
        settings |= {"is_causal": True, "local_window_size": (window - 1, 0) if window else None}
    elif mask is not None:
        mask = jnp.broadcast_to(mask, (*mask.shape[:-2], length, key.shape[-2]))
        sees = mask.any(-1, keepdims=True)  # theirs gives the mean of all values for a row of False
        mask = mask.reshape((1,) * (max(len(batch), 1) + 2 - mask.ndim) + mask.shape)
        mask = jnp.broadcast_to(mask, (*batch[:-1], *mask.shape[-3:]))  # heads may share one
        settings["mask"] = mask.reshape(-1, *mask.shape[-3:])

    def by_place(x):  # (..., H, T, K) to (B, T, H, K)
        x = x.reshape(-1, x.shape[-3] if batch else 1, *x.shape[-2:])
        return jnp.swapaxes(x, 1, 2).astype(jnp.bfloat16)

    output = jax.nn.dot_product_attention(*map(by_place, (query, key, value)), **settings)
    output = jnp.swapaxes(output, 1, 2).astype(query.dtype).reshape(*batch, length, width)
    return output if sees is None else jnp.where(sees, output, 0), weights


# So many queries at a time


def chunked_causal_attention(
    attention: Callable, rows: int, operands: DTypeLike | None = None
) -> Callable:
    """`attention`, of `rows` queries at a time where it is causal: each with the keys it may see.

    It keeps no weights (Dao et al. 2022, section 3.1 and appendix B): memory grows with T, not with
    T^2. Queries come in at most `SPANS` spans, whose keys end where they end and begin where a
    window W does; so nearly half of all products are left out, with a window all but about W / T +
    1 / SPANS. Within a span parts of `rows` queries follow each other. Kept for the backward pass
    are each query's output and log sum exp of its scores, from which it computes the weights again.

    Only operands of products are rounded to `operands` (bfloat16), if given. `causal` and `window`
    describe the mask; with another mask, or with `tap`, this is `attention` itself.
    """

    def call(
        query: Float[Array, "*batch T K"],
        key: Float[Array, "*keys S K"],
        value: Float[Array, "*keys S Kv"],
        mask: Bool[Array, "..."] | None = None,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        bias: Float[Array, "..."] | None = None,
        causal: bool = False,
        window: int = 0,
        tap: Tap = no_tap,
    ) -> tuple[Float[Array, "*batch T Kv"], Float[Array, "*batch T S"]]:
        changes = {"scale": scale, "softcap": softcap, "bias": bias}
        definition = bind_supported_kwargs(attention, changes, tap=tap)
        output, weights = definition(query, key, value, mask)
        if not causal or tap is not no_tap:
            return output, weights
        *batch, length, width = query.shape
        query = widen(query) * (1 / math.sqrt(width) if scale is None else scale)
        if bias is not None:  # a part of the queries has a part of it
            bias = jnp.broadcast_to(bias, (*bias.shape[:-2], length, key.shape[-2]))
        form = _Form(min(rows, length), window, softcap, tuple(batch), operands)
        computed = _by_rows(form, *_flat(query, widen(key), widen(value)), bias)
        return computed.astype(value.dtype).reshape(*batch, length, -1), weights

    return call


class _Form(NamedTuple):
    rows: int
    window: int
    softcap: float | None
    batch: tuple[int, ...]
    operands: DTypeLike | None

    def scores(self, place, first_key, products, bias):
        """Products Q K^T capped, with a bias, and -1e30 where a query doesn't see the key."""
        scores = products if self.softcap is None else soft_cap(products, self.softcap)
        if bias is not None:
            biased = scores.reshape(*self.batch, *scores.shape[-2:]) + bias
            scores = biased.reshape(scores.shape)
        ahead = place + jnp.arange(self.rows)[:, None] - first_key - jnp.arange(scores.shape[-1])
        seen = (ahead >= 0) & (ahead < self.window) if self.window else ahead >= 0
        return jnp.where(seen, scores, -1e30)

    def spans(self, query, key, value, bias):
        """Of each span the slices of its parts and of its keys, what these keys are, and of each
        part its place, queries and bias."""
        queries, biases = self.parts(query), jax.tree.map(self.parts, bias)
        length, size = query.shape[-2], math.ceil(len(queries) / SPANS)
        for first in range(0, len(queries), size):
            parts = slice(first, min(first + size, len(queries)))
            begin = max(first * self.rows - self.window + 1, 0) if self.window else 0
            keys = slice(begin, min(parts.stop * self.rows, length))
            seen = None if bias is None else biases[parts][..., keys]
            given = self.rows * jnp.arange(parts.start, parts.stop), queries[parts], seen
            yield parts, keys, (begin, key[:, keys], value[:, keys]), given

    def parts(self, x):
        """(..., T, N) to (P, ..., rows, N), filled up with zeros."""
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, -x.shape[-2] % self.rows), (0, 0)])
        return jnp.moveaxis(x.reshape(*x.shape[:-2], -1, self.rows, x.shape[-1]), -3, 0)


def _joined(parts: Sequence[Array], length: int) -> Array:
    """The inverse of `_Form.parts`, of the parts of all spans."""
    x = jnp.moveaxis(jnp.concatenate(parts), 0, -3)
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])[..., :length, :]


def _forward(form, query, key, value, bias):
    """O = E V / z and l = max S + log z,  E = exp(S - max S),  z = the rows' sums of E."""
    if form.operands is not None:
        query, key, value = (x.astype(form.operands) for x in (query, key, value))
    spans = form.spans(query, key, value, bias)
    found = [jax.lax.map(partial(_forward_part, form, *seen), given) for _, _, seen, given in spans]
    outputs, logs = zip(*found, strict=True)
    output = _joined(outputs, query.shape[-2])
    return output, (query, key, value, bias, output, jnp.concatenate(logs))


def _forward_part(form, first_key, key, value, given):
    place, query, bias = given
    scores = form.scores(place, first_key, product("ntk,nsk->nts", query, key), bias)
    most = scores.max(-1, keepdims=True)
    exponentials = jnp.exp(scores - most)
    total = exponentials.sum(-1, keepdims=True)
    output = product("nts,nsv->ntv", exponentials.astype(value.dtype), value) / total
    return output, most + jnp.log(total)


def _backward(form, saved, gradient):
    """The gradients of queries, keys, values and bias, each part's added to those of its keys."""
    query, key, value, bias, output, logs = saved
    by_row = form.parts((gradient * output).sum(-1, keepdims=True))
    gradients = form.parts(gradient.astype(value.dtype))
    by_key, by_value = (jnp.zeros(x.shape, output.dtype) for x in (key, value))
    found, length = [], query.shape[-2]
    for parts, keys, seen, given in form.spans(query, key, value, bias):
        of_part = partial(_backward_part, form, *seen)
        given = *given, logs[parts], gradients[parts], by_row[parts]
        sums = by_key[:, keys], by_value[:, keys]
        sums, (of_queries, of_biases) = jax.lax.scan(of_part, sums, given)
        by_key, by_value = by_key.at[:, keys].set(sums[0]), by_value.at[:, keys].set(sums[1])
        if bias is not None:
            hidden = (keys.start, length - keys.stop)
            of_biases = jnp.pad(of_biases, [(0, 0)] * (of_biases.ndim - 1) + [hidden])
        found.append((of_queries, of_biases))
    by_query, by_bias = zip(*found, strict=True)
    of_bias = None if bias is None else _joined(by_bias, length)
    return _joined(by_query, length), by_key, by_value, of_bias


def _backward_part(form, first_key, key, value, sums, given):
    """As `_mixed_backward`, with W = exp(S - l), once dS has gone back through cap and bias."""
    place, query, bias, log, gradient, by_row = given
    products = product("ntk,nsk->nts", query, key)
    scores, pull_back = jax.vjp(partial(form.scores, place, first_key), products, bias)
    weights = jnp.exp(scores - log)
    by_weights = product("ntv,nsv->nts", gradient, value)
    by_scores, by_bias = pull_back(weights * (by_weights - by_row))
    by_scores, weights = by_scores.astype(key.dtype), weights.astype(key.dtype)
    by_key = sums[0] + product("nst,ntk->nsk", transposed(by_scores), query)
    by_value = sums[1] + product("nst,ntv->nsv", transposed(weights), gradient)
    return (by_key, by_value), (product("nts,nsk->ntk", by_scores, key), by_bias)


_by_rows = jax.custom_vjp(lambda *inputs: _forward(*inputs)[0], nondiff_argnums=(0,))
_by_rows.defvjp(_forward, _backward)
