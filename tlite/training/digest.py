"""A digest of an array that does not depend on how it is divided over devices and processes.

It is the sum, modulo 2^64, of a hash of each element's place in the whole array and its bits: the
sums of parts add up to that of the whole. At one place no two values have the same hash, so a
single changed element always changes the digest; any other change does so but for chance (2^-64).
It guards against damage, not against malice.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

MODULUS = 2**64
BLOCK = 2**15  # elements at a time: all that is computed of them stays in a core's cache

# The constants of splitmix64 and murmur3: what is near in place or value becomes far.
GOLDEN, FIRST, SECOND = map(np.uint64, (0x9E3779B97F4A7C15, 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53))

Digests = dict[str, dict[str, str]]
"""By tree and name of an array, in hexadecimal digits."""

Part = tuple[tuple[slice, ...], np.ndarray]
"""Where in the whole array, and what is there."""


def array_digest(array: Any) -> int:
    """Of what this process holds of an array; all of it, for one that no other process has."""
    return parts_digest(parts(array), array.shape)


def parts(array: Any) -> list[Part]:
    """The parts that lie here, on the host: of what is there several times the first copy only."""
    if not isinstance(array, jax.Array):
        return [(tuple(slice(0, size) for size in array.shape), np.asarray(array))]
    shards = [shard for shard in array.addressable_shards if shard.replica_id == 0]
    return [(shard.index, np.asarray(shard.data)) for shard in shards]


def parts_digest(found: Iterable[Part], shape: tuple[int, ...]) -> int:
    """The sum over parts of an array of that shape."""
    return sum(_part_digest(*part, shape) for part in found) % MODULUS


def _part_digest(index: tuple[slice, ...], part: np.ndarray, shape: tuple[int, ...]) -> int:
    if not part.size:
        return 0
    starts, run = _runs(index, part.shape, shape)
    words = _words(part).reshape(len(starts), -1)
    # An element of several words takes several places.
    starts, run = starts * np.uint64(words.shape[1] // run), words.shape[1]
    ahead = np.arange(min(run, BLOCK), dtype=np.uint64) * GOLDEN
    total = 0
    for rows, columns in _blocks(len(starts), run):
        begins = (starts[rows] + np.uint64(columns.start)) * GOLDEN
        block = words[rows, columns]
        total += _hash_sum(np.add.outer(begins, ahead[: block.shape[1]]), block)
    return total % MODULUS


def _runs(
    index: tuple[slice, ...], size: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[np.ndarray, int]:
    """Where in the whole array each run of neighbours begins, and how long all of them are."""
    run, axis = 1, len(shape)
    while axis and (axis == len(shape) or size[axis] == shape[axis]):
        axis -= 1  # the axes after this one are whole, or there are none
        run *= size[axis]
    starts = np.zeros(1, np.uint64)
    for i in reversed(range(len(shape))):
        first, stride = index[i].indices(shape[i])[0], math.prod(shape[i + 1 :])
        number = size[i] if i < axis else 1
        places = np.arange(first, first + number, dtype=np.uint64) * np.uint64(stride)
        starts = np.add.outer(places, starts).ravel()
    return starts, run


def _blocks(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Rectangles of about `BLOCK` elements that cover all."""
    height = max(1, BLOCK // columns)
    for row in range(0, rows, height):
        for column in range(0, columns, BLOCK):
            yield slice(row, row + height), slice(column, column + BLOCK)


def _words(part: np.ndarray) -> np.ndarray:
    """The bits as unsigned integers of 8 to 64 bits."""
    size = min(part.dtype.itemsize, 8)
    return np.ascontiguousarray(part).reshape(-1).view(f"u{size}")


def _hash_sum(mixed: np.ndarray, words: np.ndarray) -> int:
    """The sum of the hashes of words at places; `mixed` holds the places and is used up."""
    mixed ^= words
    other = mixed >> np.uint64(33)
    mixed ^= other
    mixed *= FIRST
    np.right_shift(mixed, np.uint64(33), out=other)
    mixed ^= other
    mixed *= SECOND
    np.right_shift(mixed, np.uint64(33), out=other)
    mixed ^= other
    return int(mixed.sum(dtype=np.uint64))
