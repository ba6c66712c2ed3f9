"""Windows of T tokens and the T tokens that follow each: the examples of a language model.

Where a window of a corpus starts is drawn by `places`: `jax.random.randint` draws from 32 bits, and
overflows where there are more than 2^31 tokens.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int64, Key

BLOCK = 4  # numbers that Philox makes of one value of its counter
MASK = 2**64 - 1

Tokens = TypeVar("Tokens", np.ndarray, str)


def split_tokens(tokens: Tokens, validation_fraction: float) -> tuple[Tokens, Tokens]:
    """Of tokens or a text: the first part for training, the last part for validation."""
    at = len(tokens) - round(len(tokens) * validation_fraction)
    return tokens[:at], tokens[at:]


def draw_windows(
    rng: Key[Array, ""], tokens: Int[Array, "N"], context: int, batch_size: int
) -> tuple[Int[Array, "B T"], Int[Array, "B T"]]:
    """Inputs and targets of `batch_size` windows that start anywhere, drawn with replacement."""
    starts = jax.random.randint(rng, (batch_size,), 0, tokens.shape[0] - context)
    windows = tokens[starts[:, None] + jnp.arange(context + 1)]
    return windows[:, :-1], windows[:, 1:]


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


def every_window(
    tokens: np.ndarray, context: int, multiple_of: int = 1
) -> tuple[Int[np.ndarray, "B T"], Int[np.ndarray, "B T"], Float[np.ndarray, "B T"]]:
    """Inputs, targets and weights of the windows that cut `tokens` end to end.

    Every token but the first is a target exactly once, with weight 1; the last window is filled
    up, and whole windows are added to reach a multiple of `multiple_of`, with weight 0.
    """
    num_targets = len(tokens) - 1
    num_windows = -(-num_targets // (context * multiple_of)) * multiple_of
    padded = np.zeros(num_windows * context + 1, tokens.dtype)
    padded[: len(tokens)] = tokens
    weights = (np.arange(num_windows * context) < num_targets).astype(np.float32)
    shape = num_windows, context
    return padded[:-1].reshape(shape), padded[1:].reshape(shape), weights.reshape(shape)
