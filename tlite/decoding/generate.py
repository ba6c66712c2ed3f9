"""Generation with a key/value cache, token by token; past the context the window slides."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from tlite import functional as F
from tlite.models.stack import Rows

AT_ONCE = 512  # tokens of a prompt (of all samples): more are no faster, and scores take memory
PADDING = -1  # what follows a stop token: no token has this id


class Generated(NamedTuple):
    """What was written up to a stop token."""

    tokens: Int[Array, "*batch N"]
    """Of each row its text, the stop token if it came to one, and -1 behind it."""
    counts: Int[Array, "*batch"]
    """Tokens of each row's text: where there is a stop token, it is the next."""


class Decoding(NamedTuple):
    """Where the generation of a batch stands."""

    tokens: Int[Array, "*batch C"]
    """The window: the last tokens, at most the model's context, from the left."""
    length: Int[Array, "*batch"]
    """How many of them there are."""
    caches: list[Rows]
    """Keys and values of all of them but the last, one cache a block, with room for C tokens."""
    stale: Bool[Array, ""]
    """Whether a window has slid, so that its caches must be made anew."""
    ended: Bool[Array, "*batch"]
    """Whether a stop token was the last."""


def generate(
    model,
    prompt: Int[Array, "*batch P"],
    *,
    num_tokens: int,
    rng: Key[Array, ""],
    lengths: Int[Array, "*batch"] | None = None,
    stop: int | Sequence[int] | None = None,
    temperature: float | np.number = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    greedy: bool = False,
    slide: int = 1,
) -> Int[Array, "*batch N"] | Generated:
    """The `num_tokens` tokens that follow the prompt, each drawn given at most a context before it.

    Token i is drawn with `fold_in(key, i)` by `functional.sample`; with `greedy`, or at temperature
    0, it is the most probable one.

    Args:
        lengths: number of tokens of each prompt; those after them are ignored.
        stop: the token, or tokens, that end a row. What comes before is as without it, and when
            all rows have ended nothing more is computed; `Generated` says how long each is.
        slide: how many tokens a full window forgets at once. With 1 every token sees all that the
            context can hold, but each costs a pass over the whole window, since the positions of
            all tokens change; with half a context that pass is rare.

    Raises:
        ValueError: the prompt is empty, shorter than `lengths` or has a token that is not in the
            vocabulary; a setting makes no sense, or `greedy` is combined with one of sampling.
    """
    (made,) = stream(
        model, prompt, num_tokens=num_tokens, rng=rng, part=num_tokens, lengths=lengths, stop=stop,
        slide=slide, temperature=temperature, top_k=top_k, top_p=top_p, greedy=greedy,
    )  # fmt: skip
    if not isinstance(made, Generated):
        return made
    missing = [(0, 0)] * (made.tokens.ndim - 1) + [(0, num_tokens - made.tokens.shape[-1])]
    return made._replace(tokens=jnp.pad(made.tokens, missing, constant_values=PADDING))


def stream(
    model,
    prompt: Int[Array, "*batch P"],
    *,
    num_tokens: int,
    rng: Key[Array, ""],
    part: int = 8,
    lengths: Int[Array, "*batch"] | None = None,
    stop: int | Sequence[int] | None = None,
    slide: int = 1,
    temperature: float | np.number = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    greedy: bool = False,
) -> Iterator[Int[Array, "*batch n"] | Generated]:
    """What `generate` gives, `part` tokens at a time, as soon as they are there."""
    context, batch, temperature = model.config.context, jnp.shape(prompt)[:-1], float(temperature)
    _check(context, num_tokens, slide, temperature, top_k, top_p, greedy)
    greedy = greedy or temperature == 0  # the limit of softmax(logits / temperature)
    window, counts = _last_tokens(prompt, lengths, model.config)
    longest = int(counts.max())
    steps = plan(longest, num_tokens, context, part=part, ample=_free(model, counts.shape))
    size = _size(longest - 1, counts.size, steps[0].capacity)
    stops = np.asarray(() if stop is None else stop, np.int32).reshape(-1)
    window, counts, stops = jax.device_put((window, counts, stops))
    state = _start(model, window, counts, longest - 1, capacity=steps[0].capacity, size=size)
    pieces = []
    for step in steps:
        loop = Settings(part, slide if step.slides else None, top_k, top_p, greedy)
        tokens = grown(state.tokens, step.capacity, axis=-1)
        state = state._replace(tokens=tokens, caches=grown(state.caches, step.capacity))
        state, new = _extend(model, state, rng, step.start, step.count, temperature, stops, loop)
        pieces.append(new[..., : step.count])
        over = step is steps[-1] or (stops.size and state.ended.all())
        if over or (step.start + step.count) % part == 0:
            tokens, pieces = jnp.concatenate(pieces, axis=-1).reshape(*batch, -1), []
            yield tokens if stop is None else _counted(tokens, stops)
        if over:
            break


def _check(context, num_tokens, slide, temperature, top_k, top_p, greedy) -> None:
    if num_tokens < 1:
        raise ValueError(f"the number of tokens must be at least 1, not {num_tokens}")
    if not 1 <= slide <= context:
        raise ValueError(f"a window of {context} can slide by 1 to {context} tokens, not {slide}")
    if greedy and (temperature not in (0, 1) or top_k is not None or top_p is not None):
        raise ValueError("greedy decoding has no temperature, top_k or top_p: leave them out")
    if not greedy and temperature != 0:  # raises if it is not positive
        jax.eval_shape(lambda: F.apply_temperature(jnp.zeros(1), temperature))


def _last_tokens(prompt, lengths, config):
    """The end of each prompt, as much as a context holds, from the left; and its length.

    By NumPy: each operation of JAX would be a program of its own.
    """
    prompt, context = np.asarray(prompt), config.context
    whole = np.full(prompt.shape[:-1], prompt.shape[-1], np.int32)
    lengths = whole if lengths is None else np.asarray(lengths)
    if prompt.shape[-1] == 0 or not np.all(lengths > 0):
        raise ValueError("the prompt is empty: generation needs at least one token to start from")
    if (longest := lengths.max()) > prompt.shape[-1]:
        raise ValueError(f"lengths has {longest}, but the prompt only {prompt.shape[-1]} tokens")
    prompt = np.where(np.arange(prompt.shape[-1]) < lengths[..., None], prompt, 0)
    F.check_tokens(prompt, config.vocabulary_size)
    if lengths.size == 1:  # without a batch axis XLA's CPU compiler copies no caches
        prompt, lengths = prompt.reshape(-1), lengths.reshape(())
    places = np.maximum(lengths - context, 0)[..., None]
    places = places + np.arange(min(prompt.shape[-1], context))
    return np.take_along_axis(prompt, places, axis=-1), np.minimum(lengths, context)


def _counted(tokens: Int[Array, "*batch N"], stops: Int[Array, "E"]) -> Generated:
    found = np.asarray(tokens)
    counts = ((found != PADDING) & ~np.isin(found, stops)).sum(-1, dtype=np.int32)
    return Generated(tokens, jax.device_put(counts))


class Step(NamedTuple):
    """Tokens that one call of a compiled loop writes."""

    start: int
    """How many were written before."""
    count: int
    capacity: int
    """Tokens that the caches have room for."""
    slides: bool
    """Whether windows may be full, and slide; if not the caches have room for `count` more."""


def plan(
    length: int, num_tokens: int, context: int, *, part: int | None = None, ample: int = 0
) -> list[Step]:
    """How `num_tokens` are written after a longest prompt of `length`, which the context holds.

    Caches have room at once for `ample` tokens, if so many come, and grow by `_capacity`. A step
    ends where they are full, and at multiples of `part`.
    """
    part, steps, start = part or num_tokens, [], 0
    capacity = _capacity(max(length + 1, min(length + num_tokens, ample)), context)
    while start < num_tokens:
        capacity = max(capacity, _capacity(min(length + start, context) + 1, context))
        slides = length + num_tokens > context == capacity
        count = min(num_tokens, start - start % part + part) - start
        if not slides:
            count = min(count, capacity - length - start)
        steps.append(Step(start, count, capacity, slides))
        start += count
    return steps


def _capacity(length: int, context: int) -> int:
    """Room in the caches for `length` tokens, in steps of a quarter to an eighth of it.

    Each step reads all of the caches, so room that is not needed yet costs time; a program is
    compiled for each size, so there are not many, and one only up to a context of 64.
    """
    step = max(64, 2 ** length.bit_length() // 8)
    return min(context, -(-length // step) * step)


def _free(model, batch: tuple[int, ...]) -> int:
    """How many tokens' caches are read in a quarter of the time that the weights take."""
    empty = jax.eval_shape(lambda: model.empty_caches(*batch, capacity=1))
    weights, token = (
        sum(array.size * array.dtype.itemsize for array in jax.tree.leaves(tree))
        for tree in (model, empty)
    )
    return weights // (4 * token) if token else model.config.context


def _size(count: int, samples: int, capacity: int) -> int:
    """How many tokens of each sample to read at once: few sizes, as each is a program."""
    if count < 1:
        return 0
    most = max(16, AT_ONCE // max(1, samples))
    return min(max(16, 2 ** (count - 1).bit_length()), most, capacity)


def grown(arrays, size: int, axis: int = -2):
    """Arrays, a cache's say, with zeros behind, so that the axis is `size` long."""

    def grow(array):
        missing = [(0, 0)] * array.ndim
        missing[axis] = (0, size - array.shape[axis])
        return jnp.pad(array, missing) if missing[axis][1] else array

    return jax.tree.map(grow, arrays)


@partial(jax.jit, static_argnames=("capacity", "size"))
@F.float32_products
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
    tokens = grown(tokens, capacity, axis=-1)
    caches = model.empty_caches(*length.shape, capacity=capacity)
    state = Decoding(tokens, length, caches, jnp.array(False), jnp.zeros_like(length, bool))
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
    """Append a token where a row goes on; a full window first forgets its first `slide`."""
    room, going, shift = state.tokens.shape[-1], ~state.ended, slide or 0
    tokens, length, stale = state.tokens, state.length, state.stale

    def forget(tokens, length):
        places = jnp.arange(room) + jnp.where(full, shift, 0)[..., None]
        tokens = jnp.take_along_axis(tokens, jnp.minimum(places, room - 1), axis=-1)
        return tokens, jnp.where(full, room - shift, length)

    if slide is not None:
        full = (length == room) & going
        stale = full.any()
        tokens, length = jax.lax.cond(stale, forget, lambda *x: x, tokens, length)
    new = (jnp.arange(room) == length[..., None]) & going[..., None]
    tokens = jnp.where(new, token[..., None], tokens)
    return state._replace(tokens=tokens, length=length + going, stale=stale)


class Settings(NamedTuple):
    """What a loop is compiled for."""

    room: int
    """Tokens that it can write."""
    slide: int | None = None
    """How many a full window forgets; None where none is full."""
    top_k: int | None = None
    top_p: float | None = None
    greedy: bool = False


@partial(jax.jit, static_argnames="settings", donate_argnames="state")
@F.float32_products
def _extend(model, state, rng, start, count, temperature, stops, settings: Settings):
    """`count` more tokens (..., room): cached steps until a window slides, then a pass over all."""
    room, slide, top_k, top_p, greedy = settings

    def choose(logits, index):
        if greedy:
            return F.greedy(logits)
        return F.sample(jax.random.fold_in(rng, index), logits, temperature, top_k, top_p)

    def goes_on(carry):
        index, state, _ = carry
        return (index < count) & ~state.ended.all()

    def step(carry):
        index, state, written = carry
        place = state.length - 1
        last = jnp.take_along_axis(state.tokens, place[..., None], axis=-1)
        logits, caches = model.extend(last, state.caches, place)
        token = choose(logits[..., 0, :], start + index).astype(written.dtype)
        token = jnp.where(state.ended, PADDING, token)
        state = state._replace(caches=caches, ended=state.ended | jnp.isin(token, stops))
        return index + 1, _push(state, token, slide), written.at[index].set(token)

    def until_stale(carry):
        index, state, written = carry
        window = state.tokens.shape[-1]
        size = _size(window, state.length.size, window)
        fill = lambda state: _fill(model, state, window, size)  # noqa: E731
        state = jax.lax.cond(state.stale, fill, lambda state: state, state)
        fresh = lambda carry: goes_on(carry) & ~carry[1].stale  # noqa: E731
        return jax.lax.while_loop(fresh, step, (index, state, written))

    written = jnp.full((room, *state.length.shape), PADDING, state.tokens.dtype)
    body = step if slide is None else until_stale
    _, state, written = jax.lax.while_loop(goes_on, body, (jnp.int32(0), state, written))
    return state, jnp.moveaxis(written, 0, -1)
