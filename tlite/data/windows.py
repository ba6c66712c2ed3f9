"""Windows of T tokens and the T tokens that follow each: the examples of a language model."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int64, Key

PHILOX_BLOCK = 4  # numbers per value of Philox's counter
MASK = 2**64 - 1

Tokens = TypeVar("Tokens", np.ndarray, str)


def split_tokens(tokens: Tokens, validation_fraction: float) -> tuple[Tokens, Tokens]:
    """Split tokens or a text: the end is the validation split, the rest the training split."""
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
    seed: int, step: int, number: int, below: int, *, stream: int = 0, first: int = 0
) -> Int64[np.ndarray, "N"]:
    """Return uniform random integers in [0, below); the i-th depends on (seed, stream, step, i).

    They start the windows of a corpus, as `jax.random.randint` has 32 bits only. The bits are
    Philox's (Salmon et al. 2011), which NumPy keeps across versions; the bias of the remainder is
    below `below` / 2^64.

    Args:
        stream: different streams give independent numbers.
        first: index of the first number in the batch, for a process that draws its rows only.
    """
    if below < 1:
        raise ValueError(f"below must be at least 1, not {below}")
    # The counter has four words: the lowest counts the blocks of a step, the next is the step.
    counter = np.array([first // PHILOX_BLOCK, step & MASK, 0, 0], np.uint64)
    key = np.array([seed & MASK, stream & MASK], np.uint64)
    skipped = first % PHILOX_BLOCK
    bits = np.random.Philox(key=key, counter=counter).random_raw(skipped + number)[skipped:]
    return (bits % np.uint64(below)).astype(np.int64)


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
