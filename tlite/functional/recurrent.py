"""The gated delta rule: linear attention with a state of fixed size.

    S_t = alpha_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T,    o_t = S_t q_t

("Gated Delta Networks", Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464, section 3.1). The state
S, of shape (Kv, K), maps keys to values: a token scales it by alpha, then corrects its value for
k_t by a gradient step of size beta on |S k_t - v_t|^2 / 2. With |k_t| = 1, alpha in [0, 1] and beta
in [0, 2] the step does not amplify the state. States and sums are float32.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def gated_delta_rule(
    query: Float[Array, "*batch T K"],
    key: Float[Array, "*batch T K"],
    value: Float[Array, "*batch T Kv"],
    log_alpha: Float[Array, "*batch T"],
    beta: Float[Array, "*batch T"],
    state: Float[Array, "*batch Kv K"] | None = None,
    *,
    valid: Bool[Array, "*#batch T"] | None = None,
) -> tuple[Float[Array, "*batch T Kv"], Float[Array, "*batch Kv K"]]:
    """Apply the gated delta rule token by token: the definition, and the form for decoding.

    Args:
        log_alpha: log of the decay alpha, at most 0; -inf discards the state before the token.
        state: state before the first token; None: zeros.
        valid: False at padding, which leaves the state unchanged (alpha = 1, beta = 0).

    Returns:
        Outputs of the dtype of `value`, and the float32 state after the last token.
    """
    state, *arrays = _prepare(query, key, value, log_alpha, beta, state, valid)

    def step(state, token):
        q, k, v, log_alpha, beta = token
        state = jnp.exp(log_alpha)[..., None, None] * state
        correction = beta[..., None] * (v - jnp.einsum("...vk,...k->...v", state, k))
        state += correction[..., :, None] * k[..., None, :]
        return state, jnp.einsum("...vk,...k->...v", state, q)

    tokens = [jnp.moveaxis(x, query.ndim - 2, 0) for x in arrays]
    state, output = jax.lax.scan(step, state, tokens)
    return jnp.moveaxis(output, 0, -2).astype(value.dtype), state


def chunked_gated_delta_rule(
    query: Float[Array, "*batch T K"],
    key: Float[Array, "*batch T K"],
    value: Float[Array, "*batch T Kv"],
    log_alpha: Float[Array, "*batch T"],
    beta: Float[Array, "*batch T"],
    state: Float[Array, "*batch Kv K"] | None = None,
    *,
    valid: Bool[Array, "*#batch T"] | None = None,
    chunk_size: int = 64,
) -> tuple[Float[Array, "*batch T Kv"], Float[Array, "*batch Kv K"]]:
    """Apply `gated_delta_rule` by matrix products per chunk: the form for training.

    In a chunk that starts from S, with D[t, s] = alpha_{s+1} ... alpha_t and g_t = alpha_1 ...
    alpha_t, S_t = g_t S + sum over s <= t of D[t, s] u_s k_s^T. The corrections u solve the unit
    triangular system u_t + beta_t sum over s < t of D[t, s] (k_t . k_s) u_s = beta_t (v_t - g_t
    S k_t), here u = W_v - W_k S^T (WY representation, Yang et al. 2024, arXiv:2406.06484).
    """
    state, *arrays = _prepare(query, key, value, log_alpha, beta, state, valid)
    arrays = (_split_chunks(x, query.ndim - 2, chunk_size) for x in arrays)

    def step(state, chunk):
        q, k, w_value, w_key, scores, g, to_end = chunk
        u = w_value - jnp.einsum("...tk,...vk->...tv", w_key, state)
        output = jnp.einsum("...tk,...vk->...tv", g * q, state) + scores @ u
        state = g[..., -1:, :] * state + jnp.einsum("...tv,...tk->...vk", to_end * u, k)
        return state, output

    state, output = jax.lax.scan(step, state, _chunk_terms(*arrays))
    output = jnp.moveaxis(output, 0, -3)  # (..., chunks, size, Kv)
    output = output.reshape(*value.shape[:-2], -1, value.shape[-1])
    return output[..., : value.shape[-2], :].astype(value.dtype), state


def _prepare(query, key, value, log_alpha, beta, state, valid) -> list[Array]:
    """Return state and inputs in float32, with alpha = 1 and beta = 0 at padding."""
    if state is None:
        state = jnp.zeros((*key.shape[:-2], value.shape[-1], key.shape[-1]))
    if valid is not None:
        log_alpha, beta = jnp.where(valid, log_alpha, 0.0), jnp.where(valid, beta, 0.0)
    return [x.astype(jnp.float32) for x in (state, query, key, value, log_alpha, beta)]


def _split_chunks(x: Array, axis: int, size: int) -> Array:
    """Return (..., T, N) or (..., T) as chunks (chunks, ..., size, N), the last one zero-padded."""
    size = min(size, x.shape[axis])
    x = jnp.pad(x, [(0, -x.shape[axis] % size if i == axis else 0) for i in range(x.ndim)])
    return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :]), axis, 0)


def _chunk_terms(q, k, v, log_alpha, beta) -> tuple[Array, ...]:
    """Return (q, k, W_v, W_k, scores, g, decay to the end) of chunks, which need no state."""
    size, beta = q.shape[-2], beta[..., None]
    g = jnp.exp(jnp.cumsum(log_alpha, axis=-1))[..., None]
    # Logs of D, as sums: differences of the cumulative sums lose digits, and are NaN at -inf.
    logs = jnp.where(jnp.tri(size, k=-1, dtype=bool), log_alpha[..., None], 0.0)
    decay = jnp.tril(jnp.exp(jnp.cumsum(logs, axis=-2)))
    inverse = _unit_lower_inverse(beta * decay * jnp.einsum("...tk,...sk->...ts", k, k))
    scores = decay * jnp.einsum("...tk,...sk->...ts", q, k)
    return q, k, inverse @ (beta * v), inverse @ (beta * g * k), scores, g, decay[..., -1, :, None]


def _unit_lower_inverse(x: Float[Array, "*batch C C"]) -> Float[Array, "*batch C C"]:
    """Return the inverse of the lower triangle of x, with 1 in place of its diagonal.

    By halves: [[A, 0], [B, C]] has the inverse [[A', 0], [-C' B A', C']], with A' and C' those of A
    and C. (`jax.lax.linalg.triangular_solve` can deadlock on several CPU devices in jaxlib 0.10.2.)
    """
    size = x.shape[-1]
    if size == 1:
        return jnp.ones_like(x)
    if size % 2:
        padding = [(0, 0)] * (x.ndim - 2) + [(0, 1)] * 2
        return _unit_lower_inverse(jnp.pad(x, padding))[..., :-1, :-1]
    half = size // 2
    a, c = _unit_lower_inverse(jnp.stack([x[..., :half, :half], x[..., half:, half:]]))
    corner = -c @ x[..., half:, :half] @ a
    return jnp.block([[a, jnp.zeros_like(a)], [corner, c]])
