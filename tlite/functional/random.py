"""Hash-based random bits for dropout, and random permutations that are never stored."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, UInt32


def check_typed_key(rng: Key[Array, "*batch"]) -> None:
    """Raise a TypeError for a key of `jax.random.PRNGKey`, whose two words look like two keys."""
    if not jnp.issubdtype(rng.dtype, jax.dtypes.prng_key):
        raise TypeError(f"rng has dtype {rng.dtype}: make typed keys by jax.random.key(seed)")


def fold_in(
    rng: Key[Array, "*batch"] | None, data: int | Int[Array, ""]
) -> Key[Array, "*batch"] | None:
    """`jax.random.fold_in` for one key or each key of an array; None stays None.

    Raises:
        TypeError: the keys are not typed (`jax.random.key`).
    """
    if rng is None:
        return None
    check_typed_key(rng)
    fold = jax.random.fold_in
    for _ in range(rng.ndim):
        fold = jax.vmap(fold, in_axes=(0, None))
    return fold(rng, data)


def random_bits(rng: Key[Array, "*batch"], shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Uniform 32-bit words of shape `rng.shape + shape`: mix(mix(i + k0) + k1) for index i.

    k0 and k1 are the first and last word of the key. XLA fuses this hash into its consumer, so on a
    CPU it is far cheaper than `jax.random.bits` (experiments/LOG.md, 2026-11-21). It is good enough
    for dropout, not for sampling from a model.

    Raises:
        TypeError: the keys are not typed (`jax.random.key`).
    """
    check_typed_key(rng)
    words = jax.random.key_data(rng)
    k0, k1 = (words[(..., w) + (None,) * len(shape)] for w in (0, -1))
    index = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return mix(mix(index + k0) + k1)


def dropout_mask(rng: Key[Array, "..."], shape: tuple[int, ...], rate: float) -> Bool[Array, "..."]:
    """Return a mask that is False with probability `rate`; the axes of `rng` are its first axes."""
    return random_bits(rng, shape[rng.ndim :]) >= jnp.uint32(rate * 2**32)


def permuted_index(
    rng: Key[Array, ""], index: Int[Array, "*batch"], size: int
) -> Int[Array, "*batch"]:
    """Return element `index` of a random permutation of 0..size-1, which is not stored.

    A Feistel network of eight rounds permutes the numbers below the next power of four; results of
    `size` or more are permuted again ("cycle walking", Black and Rogaway 2002).

    Args:
        index: one index or an array of them.

    Raises:
        ValueError: the size is below 1.
    """
    if size < 1:
        raise ValueError(f"the size of a permutation must be at least 1, not {size}")
    words = jax.random.key_data(rng)
    permute = partial(_feistel, words=words, half_bits=max(-(-(size - 1).bit_length() // 2), 1))
    number = jax.lax.while_loop(
        lambda number: (number >= size).any(),
        lambda number: jnp.where(number >= size, permute(number), number),
        permute(index.astype(jnp.uint32)),
    )
    return number.astype(jnp.int32)


# Inlined functions are traced once for each shape: tracing is a large part of a start.
@partial(jax.jit, inline=True, static_argnames="half_bits")
def _feistel(
    number: UInt32[Array, "..."], words: UInt32[Array, "W"], half_bits: int
) -> UInt32[Array, "..."]:
    """Permute the numbers of 2 * half_bits bits by eight rounds with a key."""
    half_mask = jnp.uint32((1 << half_bits) - 1)
    left, right = number >> half_bits, number & half_mask
    for round_number in range(8):
        hashed = mix(mix(right + words[0] + jnp.uint32(round_number << half_bits)) + words[-1])
        left, right = right, left ^ (hashed & half_mask)
    return (left << half_bits) | right


@partial(jax.jit, inline=True)
def mix(word: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Spread every input bit over all output bits (fmix32, the finaliser of MurmurHash3)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
