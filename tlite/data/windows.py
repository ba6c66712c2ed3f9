"""Windows of T tokens and the T tokens that follow each: the examples of a language model."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

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
