"""Randomness from hashed keys: bits for dropout, and orders to go through a data set in."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, UInt32


def check_typed(rng: Key[Array, "*batch"]) -> None:
    """Raise a TypeError for a key of `jax.random.PRNGKey`, whose two words would be two keys."""
    if not jnp.issubdtype(rng.dtype, jax.dtypes.prng_key):
        raise TypeError(f"rng has dtype {rng.dtype}: make typed keys by jax.random.key(seed)")


def fold_in(
    rng: Key[Array, "*batch"] | None, data: int | Int[Array, ""]
) -> Key[Array, "*batch"] | None:
    """`jax.random.fold_in` for one key or an array of keys, each on its own; None without one.

    Raises:
        TypeError: the keys are not typed (`jax.random.key`).
    """
    if rng is None:
        return None
    check_typed(rng)
    fold = jax.random.fold_in
    for _ in range(rng.ndim):
        fold = jax.vmap(fold, in_axes=(0, None))
    return fold(rng, data)


def random_bits(rng: Key[Array, "*batch"], shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Uniform 32-bit words of shape `key.shape + shape`: a hash of (key, index).

    word(i) = mix(mix(i + k0) + k1), with `mix` the 32-bit finaliser of MurmurHash3 and k0, k1
    the two words of the key. XLA fuses it into whatever uses the words, so on a CPU it
    is far cheaper than `jax.random.bits` (experiments/LOG.md, 2026-11-21); good enough for
    dropout, not for sampling a model.

    Raises:
        TypeError: the keys are not typed (`jax.random.key`).
    """
    check_typed(rng)
    words = jax.random.key_data(rng)
    first, last = (words[(..., w) + (None,) * len(shape)] for w in (0, -1))
    size = 1
    index = jnp.zeros(shape, jnp.uint32)
    for axis in reversed(range(len(shape))):
        index += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(size)
        size *= shape[axis]
    return mix(mix(index + first) + last)


def dropout_mask(rng: Key[Array, "..."], shape: tuple[int, ...], rate: float) -> Bool[Array, "..."]:
    """What dropout leaves of an array: each with probability 1 - rate.

    `rng` may be one key, or an array of keys whose shape begins the array's.
    """
    return random_bits(rng, shape[rng.ndim :]) >= jnp.uint32(rate * 2**32)


def permuted_index(
    rng: Key[Array, ""], places: Int[Array, "*batch"], size: int
) -> Int[Array, "*batch"]:
    """The elements at these places of 0..size-1 in a random order, which is never written out.

    A Feistel network of eight rounds permutes the numbers below the next power of four; who lands
    at `size` or above goes through it again ("cycle walking", Black and Rogaway 2002).

    Raises:
        ValueError: the size is below 1.
    """
    if size < 1:
        raise ValueError("there is nothing to shuffle")
    half = max(-(-(size - 1).bit_length() // 2), 1)
    low = jnp.uint32((1 << half) - 1)
    words = jax.random.key_data(rng)

    def permute(number):
        left, right = number >> half, number & low
        for round_number in range(8):
            hashed = mix(mix(right + words[0] + jnp.uint32(round_number << half)) + words[-1])
            left, right = right, left ^ (hashed & low)
        return (left << half) | right

    number = jax.lax.while_loop(
        lambda number: (number >= size).any(),
        lambda number: jnp.where(number >= size, permute(number), number),
        permute(places.astype(jnp.uint32)),
    )
    return number.astype(jnp.int32)


def mix(word: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Spread every input bit over all output bits (MurmurHash3's fmix32)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
