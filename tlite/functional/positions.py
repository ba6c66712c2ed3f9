"""Position encodings: sinusoidal, learned, rotary, and linear interpolation to longer texts."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def sinusoidal_positions(
    length: int, dim: int, base: float = 10_000.0
) -> Float[Array, "length dim"]:
    """The table of "Attention is all you need", section 3.5; its first row is position 0.

    table[p, 2i] = sin(p / base^(2i/dim)),  table[p, 2i+1] = cos(p / base^(2i/dim))
    """
    angles = jnp.arange(length)[:, None] / base ** (jnp.arange(0, dim, 2) / dim)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(length, -1)[:, :dim]  # an odd width ends with a sine


def positions_from(start: Int[Array, "*batch"], length: int) -> Int[Array, "*batch length"]:
    """start, start + 1, ..., start + length - 1."""
    return start[..., None] + jnp.arange(length)


def add_positions(
    table: Float[Array, "L D"], x: Float[Array, "*batch T D"]
) -> Float[Array, "*batch T D"]:
    """x + table[:T]; the table is sinusoidal or learned.

    Raises:
        ValueError: the sequence is longer than the table; both lengths are named.
    """
    length = x.shape[-2]
    if length > table.shape[0]:
        raise ValueError(
            f"a sequence of length {length} is longer than the position table, "
            f"which has length {table.shape[0]}"
        )
    return x + table[:length]


def interpolate_positions(table: Float[Array, "L D"], length: int) -> Float[Array, "length D"]:
    """Stretch a table over `length` positions: row t is the table at the fraction t * L / length.

    Linear position interpolation (Chen et al. 2023, eq. 3) with straight lines between the rows;
    past the last row the last row is used. For rotary positions pass `scale=L / length` to
    `rotary_angles`, where no interpolation between rows is needed.
    """
    table = jnp.asarray(table)
    at = jnp.clip(jnp.arange(length) * (table.shape[0] / length), 0, table.shape[0] - 1)
    below = jnp.floor(at).astype(int)
    above = jnp.minimum(below + 1, table.shape[0] - 1)
    fraction = (at - below)[:, None]
    return (1 - fraction) * table[below] + fraction * table[above]


def rotary_angles(
    length: int, dim: int, base: float = 10_000.0, scale: float = 1.0
) -> Float[Array, "length half_dim"]:
    """angles[p, i] = scale * p / base^(2i/dim) in radians, i < dim/2 (Su et al. 2021, eq. 15).

    Raises:
        ValueError: `dim` is odd, so that its columns can't be paired.
    """
    if dim % 2:
        raise ValueError(f"rotary positions pair the columns, so the width {dim} must be even")
    frequencies = base ** (-jnp.arange(0, dim, 2) / dim)
    return scale * jnp.arange(length)[:, None] * frequencies


def rotate(
    x: Float[Array, "*batch T K"], angles: Float[Array, "*#batch L half_K"]
) -> Float[Array, "*batch T K"]:
    """Turn each pair (x[2i], x[2i+1]) at position p by angles[p, i] (Su et al. 2021, eq. 34).

    Scores of rotated queries and keys depend on the distance of their positions alone.

    Raises:
        ValueError: the sequence is longer than the angles' table; both lengths are named.
    """
    length = x.shape[-2]
    if length > angles.shape[-2]:
        raise ValueError(
            f"a sequence of length {length} is longer than the table of rotary angles, "
            f"which has length {angles.shape[-2]}"
        )
    sin, cos = jnp.sin(angles[..., :length, :]), jnp.cos(angles[..., :length, :])
    even, odd = x[..., 0::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)
