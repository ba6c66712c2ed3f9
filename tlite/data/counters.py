"""Random numbers of 64 bits on the host: pure functions of a seed, a step and a place in the batch.

`jax.random.randint` draws from 32 bits, and overflows where a corpus has more than 2^31 tokens.
"""

import numpy as np
from jaxtyping import Int64

BLOCK = 4  # numbers that Philox makes of one value of its counter
MASK = 2**64 - 1


def places(
    seed: int, step: int, number: int, below: int, *, stream: int = 0, first: int = 0
) -> Int64[np.ndarray, "N"]:
    """Places in [0, below), uniform; the i-th depends on (seed, stream, step, i) alone.

    The bits are those of Philox (Salmon et al. 2011), which NumPy promises never to change. Their
    remainder favours no place by more than `below` / 2^64.

    Args:
        stream: numbers for different purposes have different ones.
        first: the place in the batch of the first number, for a process that draws its own rows.
    """
    if below < 1:
        raise ValueError(f"below must be at least 1, not {below}")
    # The counter has four words: the lowest counts the blocks of a step, the next is the step.
    counter = np.array([first // BLOCK, step & MASK, 0, 0], np.uint64)
    key = np.array([seed & MASK, stream & MASK], np.uint64)
    bits = np.random.Philox(key=key, counter=counter)
    raw = bits.random_raw(first % BLOCK + number)[first % BLOCK :]
    return (raw % np.uint64(below)).astype(np.int64)
