"""Generation, token by token; past the model's context its window slides."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from tlite import functional as F


class Window(NamedTuple):
    """The last tokens, which the model sees: `tokens[..., :length]`, at most its context."""

    tokens: Int[Array, "*batch T"]
    length: Int[Array, ""]


def generate(
    model,
    prompt: Int[Array, "*batch P"],
    *,
    num_tokens: int,
    key: Key[Array, ""],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    greedy: bool = False,
) -> Int[Array, "*batch N"]:
    """The `num_tokens` tokens that follow the prompt, each drawn given at most a context before it.

    Token i is drawn with `fold_in(key, i)` by `functional.sample`, or is the most probable one.

    Raises:
        ValueError: the prompt is empty, or a setting of the sampling makes no sense.
    """
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "greedy": greedy}
    (tokens,) = stream(model, prompt, num_tokens=num_tokens, key=key, part=num_tokens, **settings)
    return tokens


def stream(
    model,
    prompt: Int[Array, "*batch P"],
    *,
    num_tokens: int,
    key: Key[Array, ""],
    part: int = 8,
    temperature: float = 1.0,
    **sampling,
) -> Iterator[Int[Array, "*batch n"]]:
    """The tokens of `generate`, `part` at a time, as soon as they are there."""
    prompt = jnp.asarray(prompt)
    if prompt.shape[-1] == 0:
        raise ValueError("the prompt is empty: generation needs at least one token to start from")
    if num_tokens < 1:
        raise ValueError(f"the number of tokens must be at least 1, not {num_tokens}")
    F.apply_temperature(jnp.zeros(1), float(temperature))  # raises for what makes no sense
    window = start_window(prompt, model.config.context)
    for done in range(0, num_tokens, part):
        window, tokens = _extend(model, window, key, done, temperature, part=part, **sampling)
        yield tokens[..., : num_tokens - done]


def start_window(prompt: Int[Array, "*batch P"], context: int) -> Window:
    """The end of the prompt, as much as the model's context holds."""
    seen = prompt[..., -context:]
    unused = [(0, 0)] * (seen.ndim - 1) + [(0, context - seen.shape[-1])]
    return Window(jnp.pad(seen, unused), jnp.int32(seen.shape[-1]))


def push(window: Window, token: Int[Array, "*batch"]) -> Window:
    """Append a token; a full window loses its first."""
    context = window.tokens.shape[-1]
    full = window.length == context
    tokens = jnp.where(full, jnp.roll(window.tokens, -1, axis=-1), window.tokens)
    place = jnp.minimum(window.length, context - 1)
    return Window(tokens.at[..., place].set(token), place + 1)


@partial(jax.jit, static_argnames=("part", "top_k", "top_p", "greedy"))
def _extend(model, window, key, done, temperature, *, part, top_k=None, top_p=None, greedy=False):
    def step(window, index):
        logits = model(window.tokens)[..., window.length - 1, :]
        if greedy:
            token = F.greedy(logits)
        else:
            token = F.sample(jax.random.fold_in(key, index), logits, temperature, top_k, top_p)
        return push(window, token), token

    window, tokens = jax.lax.scan(step, window, done + jnp.arange(part))
    return window, jnp.moveaxis(tokens, 0, -1)
