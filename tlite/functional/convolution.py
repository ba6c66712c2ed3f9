"""A short convolution over what came before, each channel by itself."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def causal_convolution(
    taps: Float[Array, "N D"],
    x: Float[Array, "*batch T D"],
    before: Float[Array, "*batch P D"] | None = None,
) -> Float[Array, "*batch T D"]:
    """x_t + sum over j < N of taps_j * x_(t-j) ("Canon layers", Allen-Zhu 2025, section 3).

    `before` (P = N - 1) is what came right before x; zeros unless given.
    """
    number, length = taps.shape[0], x.shape[-2]
    if before is None:
        before = jnp.zeros((*x.shape[:-2], number - 1, x.shape[-1]), x.dtype)
    rows = jnp.concatenate([before, x], axis=-2)
    shifted = (
        jax.lax.slice_in_dim(rows, number - 1 - j, number - 1 - j + length, axis=-2)
        for j in range(number)
    )
    return x + sum(tap * part for tap, part in zip(taps, shifted, strict=True))


def rows_before(
    inputs: Float[Array, "*batch C D"], start: Int[Array, "*#batch"], number: int
) -> Float[Array, "*batch P D"]:
    """The `number` rows before `start` of each sample; zeros where there are none."""

    def rows(inputs, start):
        places = start + jnp.arange(-number, 0)
        found = jnp.take(inputs, jnp.maximum(places, 0), axis=-2)
        return jnp.where((places >= 0)[:, None], found, 0)

    for _ in range(start.ndim):
        rows = jax.vmap(rows)
    return rows(inputs, start)
