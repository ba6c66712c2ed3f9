"""Generation with a key/value cache, token by token; past the context the window slides."""

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from tlite import functional as F

AT_ONCE = 512  # tokens of a prompt (of all samples): more are no faster, and scores take memory


class Decoding(NamedTuple):
    """Where the generation of a batch stands."""

    tokens: Int[Array, "*batch C"]
    """The window: the last tokens, at most the model's context, from the left."""
    length: Int[Array, "*batch"]
    """How many of them there are."""
    caches: list[F.Cache]
    """Keys and values of all of them but the last, one cache a block, with room for C tokens."""
    stale: Bool[Array, ""]
    """Whether a window has slid, so that its caches must be made anew."""


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
    batch = prompt.shape[:-1]
    if math.prod(batch) == 1:  # without a batch axis XLA's CPU compiler copies no caches
        prompt, lengths = prompt.reshape(-1), jnp.reshape(lengths, ())
    tokens, lengths = _last_tokens(prompt, lengths, context)
    longest, done = int(jnp.max(lengths)), 0
    needed = longest + num_tokens
    ample = min(needed, _free(model, lengths.shape))
    capacity = _capacity(max(longest + 1, ample), context)
    size = _size(longest - 1, lengths.size, capacity)
    state = _start(model, tokens, lengths, longest - 1, capacity=capacity, size=size)
    while done < num_tokens:
        pieces, wanted = [], min(part, num_tokens - done)
        while wanted:
            capacity = max(capacity, _capacity(longest + 1, context))
            slides = needed > context == capacity
            count = wanted if slides else min(wanted, capacity - longest)
            state, tokens = _extend(
                model,
                _with_capacity(state, capacity),
                key,
                done,
                count,
                temperature,
                room=part,
                slide=slide if slides else None,
                **sampling,
            )
            pieces.append(tokens[..., :count])
            longest, done, wanted = min(longest + count, context), done + count, wanted - count
        yield jnp.concatenate(pieces, axis=-1).reshape(*batch, -1)


def _capacity(length: int, context: int) -> int:
    """Room in the caches for `length` tokens, in steps of a quarter to an eighth of it.

    Each step reads all of the caches, so room that is not needed yet costs time; a program is
    compiled for each size, so there are not many, and one only up to a context of 64.
    """
    step = max(64, 2 ** length.bit_length() // 8)
    return min(context, -(-length // step) * step)


def _free(model, batch: tuple[int, ...]) -> int:
    """How many tokens' caches are read in a quarter of the time that the weights take."""
    weights, token = (
        sum(array.nbytes for array in jax.tree.leaves(tree))
        for tree in (model, model.empty_caches(*batch, capacity=1))
    )
    return weights // (4 * token)


def _pad(array: Array, room: int, axis: int) -> Array:
    """Zeros behind an array, so that the axis is `room` long."""
    missing = [(0, 0)] * array.ndim
    missing[axis] = (0, room - array.shape[axis])
    return jnp.pad(array, missing)


def _with_capacity(state: Decoding, capacity: int) -> Decoding:
    if state.tokens.shape[-1] == capacity:
        return state
    caches = jax.tree.map(partial(_pad, room=capacity, axis=-2), state.caches)
    return state._replace(tokens=_pad(state.tokens, capacity, -1), caches=caches)


def align_left(
    prompt: Int[Array, "*batch P"], lengths: Int[Array, "*batch"]
) -> Int[Array, "*batch P"]:
    """Prompts that were padded on the left, padded on the right instead."""
    places = jnp.arange(prompt.shape[-1]) + prompt.shape[-1] - lengths[..., None]
    return jnp.take_along_axis(prompt, jnp.minimum(places, prompt.shape[-1] - 1), axis=-1)


def _last_tokens(prompt, lengths, context: int):
    """The end of each prompt, as much as a context holds, from the left."""
    width = min(prompt.shape[-1], context)
    places = jnp.maximum(lengths - context, 0)[..., None] + jnp.arange(width)
    tokens = jnp.take_along_axis(prompt, places, axis=-1)
    return tokens, jnp.minimum(lengths, context)


def _size(count: int, samples: int, capacity: int) -> int:
    """How many tokens of each sample to read at once: few sizes, as each is a program."""
    if count < 1:
        return 0
    most = max(16, AT_ONCE // max(1, samples))
    return min(max(16, 2 ** (count - 1).bit_length()), most, capacity)


@partial(jax.jit, static_argnames=("capacity", "size"))
def _start(
    model,
    tokens: Int[Array, "*batch P"],
    length: Int[Array, "*batch"],
    count,
    *,
    capacity: int,
    size: int,
) -> Decoding:
    """A window with room for `capacity` tokens, whose first `count` have been read."""
    caches = model.empty_caches(*length.shape, capacity=capacity)
    state = Decoding(_pad(tokens, capacity, -1), length, caches, jnp.array(False))
    return _fill(model, state, count, size) if size else state


def _fill(model, state: Decoding, count: int | Int[Array, ""], size: int) -> Decoding:
    """Keys and values of the first `count` tokens, made `size` by `size`.

    What lies behind a sample's tokens is read too: nothing sees it before it is written anew.
    """
    last = state.tokens.shape[-1] - size

    def read(index, caches):
        start = jnp.minimum(index * size, last)
        tokens = jax.lax.dynamic_slice_in_dim(state.tokens, start, size, axis=-1)
        return model.extend(tokens, caches, start)[1]

    caches = jax.lax.fori_loop(0, -(-count // size), read, state.caches)
    return state._replace(caches=caches, stale=jnp.array(False))


def _push(state: Decoding, token: Int[Array, "*batch"], slide: int | None) -> Decoding:
    """Append a token; a full window first forgets its first `slide`."""
    room = state.tokens.shape[-1]
    tokens, length, stale = state.tokens, state.length, state.stale

    def forget(tokens, length):
        places = jnp.arange(room) + jnp.where(full, slide, 0)[..., None]
        tokens = jnp.take_along_axis(tokens, jnp.minimum(places, room - 1), axis=-1)
        return tokens, jnp.where(full, room - slide, length)

    if slide is not None:
        full = length == room
        stale = full.any()
        tokens, length = jax.lax.cond(stale, forget, lambda *x: x, tokens, length)
    tokens = jnp.where(jnp.arange(room) == length[..., None], token[..., None], tokens)
    return state._replace(tokens=tokens, length=length + 1, stale=stale)


@partial(
    jax.jit,
    static_argnames=("room", "slide", "top_k", "top_p", "greedy"),
    donate_argnames="state",
)
def _extend(
    model,
    state,
    key,
    done,
    count,
    temperature,
    *,
    room,
    slide=None,
    top_k=None,
    top_p=None,
    greedy=False,
):
    """`count` more tokens (..., room): cached steps until a window slides, then a pass over all."""

    def choose(logits, index):
        if greedy:
            return F.greedy(logits)
        return F.sample(jax.random.fold_in(key, index), logits, temperature, top_k, top_p)

    def step(carry):
        index, state, chosen = carry
        place = state.length - 1
        last = jnp.take_along_axis(state.tokens, place[..., None], axis=-1)
        logits, caches = model.extend(last, state.caches, place)
        token = choose(logits[..., 0, :], done + index).astype(chosen.dtype)
        state = _push(state._replace(caches=caches), token, slide)
        return index + 1, state, chosen.at[index].set(token)

    def until_stale(carry):
        index, state, chosen = carry
        window = state.tokens.shape[-1]
        size = _size(window, state.length.size, window)
        state = jax.lax.cond(
            state.stale, lambda s: _fill(model, s, window, size), lambda s: s, state
        )
        return jax.lax.while_loop(
            lambda carry: (carry[0] < count) & ~carry[1].stale, step, (index, state, chosen)
        )

    chosen = jnp.zeros((room, *state.length.shape), state.tokens.dtype)
    carry = jnp.int32(0), state, chosen
    body = step if slide is None else until_stale
    _, state, chosen = jax.lax.while_loop(lambda carry: carry[0] < count, body, carry)
    return state, jnp.moveaxis(chosen, 0, -1)
