"""Position encodings: sinusoidal, learned, rotary, relative; and their scaling to longer texts."""

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
    return pairs.reshape(length, -1)[:, :dim]  # an odd width lacks the last cosine


def check_length(length: int, limit: int, name: str) -> None:
    """Raise a ValueError for a sequence longer than `limit`, the length of `name`."""
    if length > limit:
        raise ValueError(
            f"a sequence of length {length} is longer than {name}, which has length {limit}"
        )


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
    rows = jnp.clip(jnp.arange(length) * (table.shape[0] / length), 0, table.shape[0] - 1)
    below = jnp.floor(rows).astype(int)
    above = jnp.minimum(below + 1, table.shape[0] - 1)
    fraction = (rows - below)[:, None]
    return (1 - fraction) * table[below] + fraction * table[above]


def rotary_frequencies(dim: int, base: float = 10_000.0) -> Float[Array, " half_dim"]:
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
    """Divide low frequencies (fewer than `low` periods in the original context) by `factor`.

    High ones (more than `high` periods) stay; linear interpolation between (Llama 3.1, 2024).
    """
    periods = original_context * frequencies / (2 * jnp.pi)
    share = jnp.clip((periods - low) / (high - low), 0, 1)
    return frequencies * (share + (1 - share) / factor)


def yarn_frequencies(
    frequencies: Float[Array, "N"],
    factor: float,
    original_context: int,
    fast: float = 32.0,
    slow: float = 1.0,
    base: float = 10_000.0,
) -> Float[Array, "N"]:
    """Divide frequencies of fewer than `slow` periods in the original context by `factor`.

    Those of more than `fast` periods stay; linear interpolation in the index between (Peng et al.
    2023, "NTK-by-parts", with indices rounded to integers).
    """
    number = frequencies.shape[0]

    def index(periods):
        return number * math.log(original_context / (periods * 2 * math.pi)) / math.log(base)

    first, last = max(math.floor(index(fast)), 0), min(math.ceil(index(slow)), 2 * number - 1)
    share = jnp.clip((jnp.arange(number) - first) / max(last - first, 1e-3), 0, 1)
    return frequencies * (1 - share + share / factor)


def yarn_attention_factor(factor: float, attention_factor: float | None = None) -> Float[Array, ""]:
    """Factor of rotated queries and keys; None: 0.1 ln(factor) + 1 (Peng et al. 2023)."""
    return jnp.asarray(attention_factor or 0.1 * math.log(max(factor, 1)) + 1)


def relative_position_buckets(
    relative_positions: Int[Array, "*shape"], num_buckets: int, max_distance: int, *, causal: bool
) -> Int[Array, "*shape"]:
    """Bucket of each relative position s - t: exact near 0, logarithmic up to `max_distance` (T5).

    (Raffel et al. 2020, section 2.1.) Half of the buckets are for later positions, unless causal.
    """
    offset = 0 if causal else jnp.where(relative_positions > 0, num_buckets // 2, 0)
    distances = jnp.maximum(-relative_positions, 0) if causal else jnp.abs(relative_positions)
    half = num_buckets if causal else num_buckets // 2
    exact = half // 2
    # In NumPy's float64: a device's logarithms may round the first distance of a bucket otherwise.
    far = np.arange(exact, max_distance)
    fractions = np.log(far / exact) / math.log(max_distance / exact) * (half - exact)
    starts = exact + np.searchsorted(fractions, np.arange(1, half - exact))
    starts = jnp.asarray([*range(1, exact + 1), *starts])
    return offset + jnp.searchsorted(starts, distances, side="right")


def alibi(
    positions: Int[Array, "*batch T"], key_positions: Int[Array, "*#batch S"], num_heads: int
) -> Float[Array, "*batch H T S"]:
    """-|t - s| * 2^(-8h/H), h = 1 ... H: added to scores (Press et al. 2022, section 3)."""
    slopes = 2.0 ** (-8 * jnp.arange(1, num_heads + 1) / num_heads)
    distances = positions[..., None, :, None] - key_positions[..., None, None, :]
    return -slopes[:, None, None] * jnp.abs(distances)


def rotate(
    x: Float[Array, "*batch T K"],
    angles: Float[Array, "*#batch L half_K"],
    attention_factor: Float[Array, ""] | float | None = None,
) -> Float[Array, "*batch T K"]:
    """Rotate each pair (x[2i], x[2i+1]) at position p by angles[p, i] (Su et al. 2021, eq. 34).

    Scores of rotated queries and keys depend on relative positions alone. YaRN multiplies both by
    an `attention_factor`.

    Raises:
        ValueError: the sequence is longer than the table of angles; both lengths are named.
    """
    check_length(x.shape[-2], angles.shape[-2], "the table of rotary angles")
    angles = angles[..., : x.shape[-2], :]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    if attention_factor is not None:
        sin, cos = attention_factor * sin, attention_factor * cos
    even, odd = x[..., 0::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)
