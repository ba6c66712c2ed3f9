"""Choosing the next token from logits (..., V). A filter returns logits, -inf for what is out."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key


def greedy(logits: Float[Array, "*batch V"]) -> Int[Array, "*batch"]:
    """The most probable token; the first of equals."""
    return logits.argmax(-1)


def apply_temperature(
    logits: Float[Array, "*batch V"], temperature: float | int | Float[Array, ""]
) -> Float[Array, "*batch V"]:
    """logits / temperature: below 1 sharper, above 1 flatter."""
    if isinstance(temperature, float | int) and not temperature > 0:
        raise ValueError(f"the temperature must be positive, not {temperature}; or decode greedily")
    return logits / temperature


def keep_top_k(logits: Float[Array, "*batch V"], k: int) -> Float[Array, "*batch V"]:
    """Keep the k most probable tokens, and what ties with the last of them (Fan et al. 2018)."""
    if k < 1:
        raise ValueError(f"top-k must keep at least one token, not {k}")
    kept = jax.lax.top_k(logits, min(k, logits.shape[-1]))[0]
    smallest_kept = kept.min(-1, keepdims=True)  # XLA makes a whole sort of kept[..., -1:]
    return jnp.where(logits < smallest_kept, -jnp.inf, logits)


def keep_top_p(logits: Float[Array, "*batch V"], p: float | int) -> Float[Array, "*batch V"]:
    """Keep the fewest most probable tokens whose probabilities sum to at least p.

    Nucleus sampling (Holtzman et al. 2020, eq. 2-3). The most probable token always stays.
    """
    if not 0 < p <= 1:
        raise ValueError(f"top-p must be in (0, 1], not {p}")
    order = jnp.argsort(logits, axis=-1, descending=True)
    probabilities = jnp.take_along_axis(jax.nn.softmax(logits, axis=-1), order, axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    # With p = 1 rounding must drop nothing; the first token has nothing before it.
    keep_sorted = (before < p) | (p == 1) | (before == 0)
    keep = jnp.put_along_axis(keep_sorted, order, keep_sorted, axis=-1, inplace=False)
    return jnp.where(keep, logits, -jnp.inf)


def sample(
    rng: Key[Array, ""],
    logits: Float[Array, "*batch V"],
    temperature: float | int | Float[Array, ""] = 1.0,
    top_k: int | None = None,
    top_p: float | int | None = None,
) -> Int[Array, "*batch"]:
    """Draw from softmax(logits / temperature) after the filters, top-k before top-p."""
    logits = apply_temperature(logits, temperature)
    if top_k is not None:
        logits = keep_top_k(logits, top_k)
    if top_p is not None:
        logits = keep_top_p(logits, top_p)
    return jax.random.categorical(rng, logits)
