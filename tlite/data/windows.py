"""Examples of a language model: windows of T tokens, and for each token the next one as target."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int64, Key

PHILOX_BLOCK = 4  # numbers per value of Philox's counter
UINT64_MASK = 2**64 - 1

Tokens = TypeVar("Tokens", np.ndarray, str)


def split_tokens(tokens: Tokens, validation_fraction: float) -> tuple[Tokens, Tokens]:
    """Return (training, validation): a fraction at the end of tokens or a text is validation."""
    size = len(tokens) - round(len(tokens) * validation_fraction)
    return tokens[:size], tokens[size:]


def sample_windows(
    rng: Key[Array, ""], tokens: Int[Array, "N"], context: int, batch_size: int
) -> tuple[Int[Array, "B T"], Int[Array, "B T"]]:
    """Return inputs and targets of windows with uniform random starts, drawn with replacement."""
    starts = jax.random.randint(rng, (batch_size,), 0, tokens.shape[0] - context)
    windows = tokens[starts[:, None] + jnp.arange(context + 1)]
    return windows[:, :-1], windows[:, 1:]


def sample_positions(
    seed: int, step: int, count: int, high: int, *, stream: int = 0, first: int = 0
) -> Int64[np.ndarray, "N"]:
    """Return uniform random integers in [0, high); the i-th depends on (seed, stream, step, i).

    Windows of a corpus start at them, as `jax.random.randint` has 32 bits only. They are Philox's
    64-bit words (Salmon et al. 2011), which all versions of NumPy agree on, modulo `high`; the
    relative error of a probability is below `high` / 2^64.

    Args:
        count: number N of integers.
        stream: different streams give independent numbers.
        first: index i of the first number to return, for a process that draws its rows only.
    """
    if high < 1:
        raise ValueError(f"high must be at least 1, not {high}")
    # The counter has four words: the lowest counts the blocks of a step, the next is the step.
    counter = np.array([first // PHILOX_BLOCK, step & UINT64_MASK, 0, 0], np.uint64)
    key = np.array([seed & UINT64_MASK, stream & UINT64_MASK], np.uint64)
    skipped = first % PHILOX_BLOCK
    bits = np.random.Philox(key=key, counter=counter).random_raw(skipped + count)[skipped:]
    return (bits % np.uint64(high)).astype(np.int64)


def contiguous_windows(
    tokens: np.ndarray, context: int
) -> tuple[Int[np.ndarray, "B T"], Int[np.ndarray, "B T"], Float[np.ndarray, "B T"]]:
    """Return inputs, targets and weights of adjacent windows.

    Every token but the first is a target once, with weight 1; the last window is padded with
    weight 0.
    """
    num_targets = len(tokens) - 1
    num_windows = -(-num_targets // context)
    padded = np.zeros(num_windows * context + 1, tokens.dtype)
    padded[: len(tokens)] = tokens
    weights = (np.arange(num_windows * context) < num_targets).astype(np.float32)
    shape = num_windows, context
    return padded[:-1].reshape(shape), padded[1:].reshape(shape), weights.reshape(shape)
