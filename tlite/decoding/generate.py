"""Generation with a key/value cache, token by token; past the context the window slides."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from tlite import functional as F


class Decoding(NamedTuple):
    """Where the generation of a batch stands."""

    tokens: Int[Array, "*batch C"]
    """The window: the last tokens, at most the model's context, from the left."""
    length: Int[Array, "*batch"]
    """How many of them there are."""
    caches: list[F.KeyValues]
    """Keys and values of the window, one cache a block."""
    logits: Float[Array, "*batch V"]
    """Of the token that comes next."""
    stale: Bool[Array, ""]
    """Whether a window has slid, so that its caches and logits must be made anew."""


def generate(
    model,
    prompt: Int[Array, "*batch P"],
    *,
    num_tokens: int,
    key: Key[Array, ""],
    lengths: Int[Array, "*batch"] | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    greedy: bool = False,
    slide: int = 1,
) -> Int[Array, "*batch N"]:
    """The `num_tokens` tokens that follow the prompt, each drawn given at most a context before it.

    Token i is drawn with `fold_in(key, i)` by `functional.sample`, or is the most probable one.

    Args:
        lengths: how much of each prompt counts, where shorter ones are padded on the right; for
            padding on the left see `align_left`.
        slide: how many tokens a full window forgets at once. With 1 every token sees all that the
            context can hold, but each costs a pass over the whole window, since the positions of
            all tokens change; with half a context that pass is rare.

    Raises:
        ValueError: the prompt is empty, or a setting makes no sense.
    """
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "greedy": greedy}
    settings |= {"lengths": lengths, "slide": slide}
    (tokens,) = stream(model, prompt, num_tokens=num_tokens, key=key, part=num_tokens, **settings)
    return tokens


def stream(
    model,
    prompt: Int[Array, "*batch P"],
    *,
    num_tokens: int,
    key: Key[Array, ""],
    part: int = 8,
    lengths: Int[Array, "*batch"] | None = None,
    temperature: float = 1.0,
    slide: int = 1,
    **sampling,
) -> Iterator[Int[Array, "*batch n"]]:
    """The tokens of `generate`, `part` at a time, as soon as they are there."""
    prompt, context = jnp.asarray(prompt), model.config.context
    if lengths is None:
        lengths = jnp.full(prompt.shape[:-1], prompt.shape[-1])
    if prompt.shape[-1] == 0 or not jnp.all(lengths > 0):
        raise ValueError("the prompt is empty: generation needs at least one token to start from")
    if num_tokens < 1:
        raise ValueError(f"the number of tokens must be at least 1, not {num_tokens}")
    if not 1 <= slide <= context:
        raise ValueError(f"a window of {context} can slide by 1 to {context} tokens, not {slide}")
    temperature = float(temperature)
    if not sampling.get("greedy"):
        F.apply_temperature(jnp.zeros(1), temperature)  # raises for what makes no sense
    state = _start(model, *_last_tokens(prompt, lengths, context))
    longest, done = int(jnp.max(state.length)), 0
    while done < num_tokens:
        pieces, wanted = [], min(part, num_tokens - done)
        while wanted:
            capacity = _capacity(longest, context)
            count = wanted if capacity == context else min(wanted, capacity - longest)
            state, tokens = _extend(
                model,
                _with_capacity(state, capacity),
                key,
                done,
                count,
                temperature,
                room=part,
                slide=slide,
                **sampling,
            )
            pieces.append(tokens[..., :count])
            longest, done, wanted = min(longest + count, context), done + count, wanted - count
        yield jnp.concatenate(pieces, axis=-1)


def _capacity(length: int, context: int) -> int:
    """Room in the caches for more than `length` tokens, in eighths of the context.

    Each step reads all of the caches, so room that is not needed yet costs time; a program is
    compiled for each size, so there are not many, and one only up to a context of 64.
    """
    eighth = max(64, -(-context // 8))
    return min(context, (length // eighth + 1) * eighth)


def _with_capacity(state: Decoding, capacity: int) -> Decoding:
    def resize(array):
        *batch, length, width = array.shape
        if length >= capacity:
            return array[..., :capacity, :]
        missing = jnp.zeros((*batch, capacity - length, width), array.dtype)
        return jnp.concatenate([array, missing], axis=-2)

    return state._replace(caches=jax.tree.map(resize, state.caches))


def align_left(
    prompt: Int[Array, "*batch P"], lengths: Int[Array, "*batch"]
) -> Int[Array, "*batch P"]:
    """Prompts that were padded on the left, padded on the right instead."""
    places = jnp.arange(prompt.shape[-1]) + prompt.shape[-1] - lengths[..., None]
    return jnp.take_along_axis(prompt, jnp.minimum(places, prompt.shape[-1] - 1), axis=-1)


def _last_tokens(prompt, lengths, context: int):
    """The end of each prompt, as much as a context holds, in a window of that size."""
    places = jnp.maximum(lengths - context, 0)[..., None] + jnp.arange(context)
    tokens = jnp.take_along_axis(prompt, jnp.minimum(places, prompt.shape[-1] - 1), axis=-1)
    return tokens, jnp.minimum(lengths, context)


@jax.jit
def _start(model, tokens: Int[Array, "*batch C"], length: Int[Array, "*batch"]) -> Decoding:
    """Caches and logits of a window, from one pass over it."""
    logits, caches = model.extend(tokens, model.empty_caches(*length.shape), jnp.zeros_like(length))
    last = jnp.take_along_axis(logits, (length - 1)[..., None, None], axis=-2)[..., 0, :]
    return Decoding(tokens, length, caches, last, jnp.array(False))


def _push(state: Decoding, token: Int[Array, "*batch"], slide: int) -> Decoding:
    """Append a token; a full window first forgets its first `slide`."""
    context = state.tokens.shape[-1]
    full = state.length == context

    def forget(tokens, length):
        places = jnp.arange(context) + jnp.where(full, slide, 0)[..., None]
        tokens = jnp.take_along_axis(tokens, jnp.minimum(places, context - 1), axis=-1)
        return tokens, jnp.where(full, context - slide, length)

    stale = full.any()
    tokens, length = jax.lax.cond(stale, forget, lambda *x: x, state.tokens, state.length)
    tokens = jnp.where(jnp.arange(context) == length[..., None], token[..., None], tokens)
    return state._replace(tokens=tokens, length=length + 1, stale=stale)


@partial(jax.jit, static_argnames=("room", "slide", "top_k", "top_p", "greedy"))
def _extend(
    model,
    state,
    key,
    done,
    count,
    temperature,
    *,
    room,
    slide=1,
    top_k=None,
    top_p=None,
    greedy=False,
):
    """`count` more tokens (..., room): cached steps until a window slides, then a pass over all."""

    def choose(logits, index):
        if greedy:
            return F.greedy(logits)
        return F.sample(jax.random.fold_in(key, index), logits, temperature, top_k, top_p)

    def cached_step(carry):
        index, state, chosen = carry
        token = choose(state.logits, done + index)
        state = _push(state, token, slide)
        logits, caches = model.extend(token[..., None], state.caches, state.length - 1)
        state = state._replace(logits=logits[..., 0, :], caches=caches)
        return index + 1, state, chosen.at[index].set(token)

    def until_stale(carry):
        index, state, chosen = carry
        if state.caches[0].key.shape[-2] == state.tokens.shape[-1]:  # smaller caches never slide
            state = jax.lax.cond(
                state.stale, lambda s: _start(model, s.tokens, s.length), lambda s: s, state
            )
        return jax.lax.while_loop(
            lambda carry: (carry[0] < count) & ~carry[1].stale, cached_step, (index, state, chosen)
        )

    chosen = jnp.zeros((room, *state.length.shape), state.tokens.dtype)
    carry = jnp.int32(0), state, chosen
    _, state, chosen = jax.lax.while_loop(lambda carry: carry[0] < count, until_stale, carry)
    return state, jnp.moveaxis(chosen, 0, -1)
