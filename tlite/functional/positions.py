"""Position encodings: sinusoidal, learned, rotary, relative; and their way to longer texts."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def sinusoidal_positions(
    length: int, dim: int, base: float = 10_000.0, *, split: bool = False
) -> Float[Array, "length dim"]:
    """The table of "Attention is all you need", section 3.5; its first row is position 0.

    table[p, 2i] = sin(p / base^(2i/dim)),  table[p, 2i+1] = cos(p / base^(2i/dim))

    With `split` all sines come before all cosines.
    """
    angles = jnp.arange(length)[:, None] / base ** (jnp.arange(0, dim, 2) / dim)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-2 if split else -1)
    return pairs.reshape(length, -1)[:, :dim]  # an odd width ends with a sine


def positions_from(start: Int[Array, "*batch"], length: int) -> Int[Array, "*batch length"]:
    """start, start + 1, ..., start + length - 1."""
    return start[..., None] + jnp.arange(length)


def check_length(length: int, longest: int, what: str) -> None:
    """Raises a ValueError for a sequence that is longer than what there is, and names both."""
    if length > longest:
        said = f"a sequence of length {length} is longer than {what}, which has length {longest}"
        raise ValueError(said)


def add_positions(
    table: Float[Array, "L D"], x: Float[Array, "*batch T D"]
) -> Float[Array, "*batch T D"]:
    """x + table[:T]; the table is sinusoidal or learned.

    Raises:
        ValueError: the sequence is longer than the table; both lengths are named.
    """
    check_length(x.shape[-2], len(table), "the position table")
    return x + table[: x.shape[-2]]


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


def rotary_frequencies(dim: int, base: float = 10_000.0) -> Float[Array, "half_dim"]:
    """1 / base^(2i/dim) radians a position, i < dim/2 (Su et al. 2021, eq. 15).

    Raises:
        ValueError: `dim` is odd, so that its columns can't be paired.
    """
    if dim % 2:
        raise ValueError(f"rotary positions pair the columns, so the width {dim} must be even")
    return base ** (-jnp.arange(0, dim, 2) / dim)


def rotary_angles(
    length: int, dim: int, base: float = 10_000.0, scale: float = 1.0
) -> Float[Array, "length half_dim"]:
    """angles[p, i] = scale * p / base^(2i/dim) in radians, i < dim/2 (Su et al. 2021, eq. 15).

    Raises:
        ValueError: `dim` is odd, so that its columns can't be paired.
    """
    return scale * jnp.arange(length)[:, None] * rotary_frequencies(dim, base)


def llama3_frequencies(
    frequencies: Float[Array, "N"],
    factor: float,
    original_context: int,
    low: float = 1.0,
    high: float = 4.0,
) -> Float[Array, "N"]:
    """Slower by `factor` those that turn less than `low` times in the context of training.

    Those that turn more than `high` times stay, between them is a straight line (Llama 3.1, 2024).
    """
    turns = original_context * frequencies / (2 * jnp.pi)
    kept = jnp.clip((turns - low) / (high - low), 0, 1)
    return frequencies * (kept + (1 - kept) / factor)


def yarn_frequencies(
    frequencies: Float[Array, "N"],
    factor: float,
    original_context: int,
    fast: float = 32.0,
    slow: float = 1.0,
    base: float = 10_000.0,
) -> Float[Array, "N"]:
    """Slower by `factor` those that turn less than `slow` times; straight in i up to `fast` turns.

    (Peng et al. 2023, "NTK-by-parts", in whole numbers of i.)
    """
    number = frequencies.shape[0]

    def place(turns):
        return number * math.log(original_context / (turns * 2 * math.pi)) / math.log(base)

    first, last = max(math.floor(place(fast)), 0), min(math.ceil(place(slow)), 2 * number - 1)
    slowed = jnp.clip((jnp.arange(number) - first) / max(last - first, 1e-3), 0, 1)
    return frequencies * (1 - slowed + slowed / factor)


def relative_position_buckets(
    distances: Int[Array, "*shape"], buckets: int, longest: int, *, causal: bool
) -> Int[Array, "*shape"]:
    """A bucket for each distance s - t: exact when near, logarithmic up to `longest` (T5).

    (Raffel et al. 2020, section 2.1.) Half of the buckets are for what comes later, unless causal.
    """
    later = 0 if causal else jnp.where(distances > 0, buckets // 2, 0)
    far = jnp.maximum(-distances, 0) if causal else jnp.abs(distances)
    half = buckets if causal else buckets // 2
    exact = half // 2
    # By NumPy, in float64: a device's logarithms may round a bucket's first distance otherwise.
    all_of_them = np.arange(exact, longest)
    place = np.log(all_of_them / exact) / math.log(longest / exact) * (half - exact)
    starts = exact + np.searchsorted(place, np.arange(1, half - exact))
    starts = jnp.asarray([*range(1, exact + 1), *starts])
    return later + jnp.searchsorted(starts, far, side="right")


def alibi(
    positions: Int[Array, "*batch T"], key_positions: Int[Array, "*#batch S"], num_heads: int
) -> Float[Array, "*batch H T S"]:
    """-|t - s| * 2^(-8h/H), h = 1 ... H: added to scores (Press et al. 2022, section 3)."""
    slopes = 2.0 ** (-8 * jnp.arange(1, num_heads + 1) / num_heads)
    distances = positions[..., None, :, None] - key_positions[..., None, None, :]
    return -slopes[:, None, None] * jnp.abs(distances)


def rotate(
    x: Float[Array, "*batch T K"], angles: Float[Array, "*#batch L half_K"], magnitude: float = 1.0
) -> Float[Array, "*batch T K"]:
    """Turn each pair (x[2i], x[2i+1]) at position p by angles[p, i] (Su et al. 2021, eq. 34).

    Scores of rotated queries and keys depend on the distance of their positions alone. YaRN makes
    both longer by a `magnitude`, too.

    Raises:
        ValueError: the sequence is longer than the angles' table; both lengths are named.
    """
    check_length(x.shape[-2], angles.shape[-2], "the table of rotary angles")
    angles = angles[..., : x.shape[-2], :]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    if magnitude != 1:
        sin, cos = magnitude * sin, magnitude * cos
    even, odd = x[..., 0::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)
