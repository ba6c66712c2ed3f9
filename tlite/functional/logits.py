"""Samplers of the next token, and filters of its logits (..., V).

A sampler is a function (rng, logits) -> tokens; a filter returns logits, -inf for dropped tokens.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, Key

from tlite.functional.layers import widen

Number = float | int | np.number | Float[Array, ""]


def sample(
    rng: Key[Array, ""],
    logits: Float[Array, "*batch V"],
    temperature: Number = 1.0,
    top_k: int | None = None,
    top_p: Number | None = None,
    min_p: Number | None = None,
) -> Int[Array, "*batch"]:
    """Draw from softmax(logits / temperature) after the filters top-k, top-p and min-p.

    Raises:
        ValueError: an option is out of its range; under `jit` a traced number is not checked.
    """
    logits = apply_temperature(logits, temperature)
    if top_k is not None:
        logits = keep_top_k(logits, top_k)
    if top_p is not None:
        logits = keep_top_p(logits, top_p)
    if min_p is not None:
        logits = keep_min_p(logits, min_p)
    return jax.random.categorical(rng, logits)


def greedy(rng: Key[Array, ""] | None, logits: Float[Array, "*batch V"]) -> Int[Array, "*batch"]:
    """Return the most probable token, the first of equals; `rng` is not used."""
    return logits.argmax(-1)


def apply_temperature(
    logits: Float[Array, "*batch V"], temperature: Number
) -> Float[Array, "*batch V"]:
    """logits / temperature: below 1 sharper, above 1 flatter."""
    if not isinstance(temperature, Tracer) and not np.all(np.asarray(temperature) > 0):
        raise ValueError(f"the temperature must be positive, not {temperature}; or decode greedily")
    return logits / temperature


def keep_top_k(logits: Float[Array, "*batch V"], k: int) -> Float[Array, "*batch V"]:
    """Keep the k most probable tokens, and all that tie with the last of them (Fan et al. 2018)."""
    if k < 1:
        raise ValueError(f"top-k must keep at least one token, not {k}")
    largest = jax.lax.top_k(logits, min(k, logits.shape[-1]))[0]
    threshold = largest.min(-1, keepdims=True)  # XLA sorts all tokens for largest[..., -1:]
    return jnp.where(logits < threshold, -jnp.inf, logits)


def keep_top_p(logits: Float[Array, "*batch V"], p: Number) -> Float[Array, "*batch V"]:
    """Keep the fewest most probable tokens whose probabilities sum to at least p.

    Nucleus sampling (Holtzman et al. 2020, eq. 2-3). The most probable token always stays.
    """
    check_probability("top-p", p)
    order = jnp.argsort(logits, axis=-1, descending=True)
    probabilities = jnp.take_along_axis(jax.nn.softmax(widen(logits), axis=-1), order, axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    # With p = 1 rounding must drop nothing; the first token has nothing before it.
    keep_sorted = (before < p) | (jnp.asarray(p) == 1) | (before == 0)
    keep = jnp.put_along_axis(keep_sorted, order, keep_sorted, axis=-1, inplace=False)
    return jnp.where(keep, logits, -jnp.inf)


def keep_min_p(logits: Float[Array, "*batch V"], p: Number) -> Float[Array, "*batch V"]:
    """Keep the tokens at least p times as probable as the most probable (Nguyen et al. 2024)."""
    check_probability("min-p", p)
    return jnp.where(logits < logits.max(-1, keepdims=True) + jnp.log(p), -jnp.inf, logits)


def check_probability(name: str, p: Number) -> None:
    """Raise a ValueError unless 0 < p <= 1; a traced p is not checked."""
    if not isinstance(p, Tracer) and not 0 < p <= 1:
        raise ValueError(f"{name} must be in (0, 1], not {p}")


def repetition_penalty(
    logits: Float[Array, "*batch V"], tokens: Int[Array, "*batch T"], penalty: Number
) -> Float[Array, "*batch V"]:
    """Divide positive and multiply negative logits of tokens that occurred by the penalty.

    (Keskar et al. 2019, section 4.1, which divides all; as in transformers.)

    Args:
        tokens: the tokens so far; one below 0 is padding.
        penalty: above 1 makes a repetition less probable.
    """
    size = logits.shape[-1]

    def to_mask(ids):
        return jnp.zeros(size, bool).at[ids].set(True, mode="drop")

    occurs = jnp.vectorize(to_mask, signature="(t)->(v)")(jnp.where(tokens < 0, size, tokens))
    penalised = jnp.where(logits > 0, logits / penalty, logits * penalty)
    return jnp.where(occurs, penalised, logits)
