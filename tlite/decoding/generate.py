"""Generate tokens with a key/value cache; past the model's context the window slides.

Nucleus sampling, with a vector added to a residual stream from position 20 of the text on:

    def steer(name, value, positions, vector):
        if name != "blocks.3.residual":
            return value
        return jnp.where(positions[..., None] >= 20, value + vector, value)

    generate(model, prompt, num_tokens=50, rng=rng, sampler=partial(F.sample, top_p=0.9),
             tap=partial(steer, vector=vector))
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Int, Key

import tlite.functional as F
from tlite.config import check_size
from tlite.models.ensemble import Ensemble
from tlite.models.inputs import LayerCache
from tlite.models.transformer import Transformer, list_blocks

PADDING = -1  # id in place of a stop token and of all that follows it: no token has this id
PREFILL_CHUNK = 512  # prompt tokens (of all rows) read at once: more are no faster

Sampler = Callable[..., Int[Array, "*batch"]]
Tap = Callable[..., Array]


def generate(
    model,
    prompt: Int[Array | np.ndarray, "*batch P"],
    *,
    num_tokens: int,
    rng: Key[Array, ""],
    sampler: Sampler = F.sample,
    lengths: Int[Array | np.ndarray, "*batch"] | None = None,
    stop: int | Sequence[int] | None = None,
    slide: int = 1,
    tap: Tap | None = None,
) -> Int[Array, "*batch N"]:
    """Return the `num_tokens` tokens that follow each prompt, -1 from a stop token on.

    Token i is `sampler(fold_in(rng, i), logits)`. Bind options of a sampler or a tap by
    `functools.partial`: another float or array needs no compilation.

    Args:
        sampler: function (rng, logits (..., V)) -> tokens (...): `functional.sample`, `greedy` or
            another; a keyword argument `tokens` gets the window (..., C), -1 behind its last token.
        lengths: number of tokens of each prompt; those after them are ignored.
        stop: token or tokens that end a row; generation stops when all rows have ended.
        slide: number of tokens that a full window drops at once, each time at the price of a pass
            over the window, since all positions change.
        tap: function (name, value, positions) -> value or its replacement, called for each named
            value of the model (`inspection.tap_names`); `positions` (..., T) of the value's tokens
            in prompt and text, -1 for padding. A single row has no batch axis here.

    Raises:
        ValueError: the prompt is empty, shorter than `lengths` or has a token that is not in the
            vocabulary, or an option is out of range.
    """
    (tokens,) = stream(
        model, prompt, num_tokens=num_tokens, rng=rng, chunk_size=num_tokens, sampler=sampler,
        lengths=lengths, stop=stop, slide=slide, tap=tap,
    )  # fmt: skip
    return pad_axis(tokens, num_tokens, axis=-1, value=PADDING)


def stream(
    model,
    prompt: Int[Array | np.ndarray, "*batch P"],
    *,
    num_tokens: int,
    rng: Key[Array, ""],
    chunk_size: int = 8,
    sampler: Sampler = F.sample,
    lengths: Int[Array | np.ndarray, "*batch"] | None = None,
    stop: int | Sequence[int] | None = None,
    slide: int = 1,
    tap: Tap | None = None,
) -> Iterator[Int[Array, "*batch n"]]:
    """Yield the tokens of `generate`, `chunk_size` at a time, until all rows have ended."""
    check_size("chunk_size", chunk_size if num_tokens > 0 else 1)
    stop_ids = _stop_ids(stop, model.config.vocabulary_size)
    options = DecodeOptions(rng, TracedPartial(sampler), stop_ids, tap and TracedPartial(tap))
    window, length, dropped = _initial_window(prompt, lengths, model.config)
    _check_options(model.config, num_tokens, slide, options, length.shape)
    longest = int(length.max())
    context, budget, pending = model.config.context, _cache_budget(model, length.shape), []
    chunks = plan_chunks(longest, num_tokens, context, chunk_size=chunk_size, budget=budget)
    capacity = chunks[0].capacity
    size = _prefill_size(longest - 1, length.size, capacity)
    arrays = jax.device_put((window, length, dropped))
    state = _init_state(model, *arrays, options.tap, capacity=capacity, size=size)
    for chunk in chunks:
        tokens = pad_axis(state.tokens, chunk.capacity, axis=-1)
        state = state._replace(tokens=tokens, caches=grow_caches(state.caches, chunk.capacity))
        state, tokens = _decode(
            model, state, options, chunk.start, chunk.count,
            max_tokens=chunk_size, slide=slide if chunk.slides else None,
        )  # fmt: skip
        pending.append(tokens[..., : chunk.count])
        is_last = chunk is chunks[-1] or (stop_ids.size and state.has_ended.all())
        if is_last or (chunk.start + chunk.count) % chunk_size == 0:
            yield jnp.concatenate(pending, axis=-1).reshape(*jnp.shape(prompt)[:-1], -1)
            pending = []
        if is_last:
            break


def _stop_ids(stop: int | Sequence[int] | None, vocabulary_size: int) -> Int[np.ndarray, "S"]:
    """Return the stop tokens as an array; a ValueError if one is not in the vocabulary."""
    ids = np.asarray([] if stop is None else stop).reshape(-1)
    if ids.size:
        F.check_tokens(ids, vocabulary_size)
    return ids.astype(np.int32)


@jax.tree_util.register_pytree_node_class
class TracedPartial(partial):
    """A `functools.partial` as a pytree: `jit` traces its floats and arrays.

    The function and all other bound values are static and compared by value, so that a partial
    made anew at each call compiles once.
    """

    def tree_flatten(self):
        leaves, structure = jax.tree.flatten((self.args, self.keywords))
        is_traced = lambda a: isinstance(a, float | np.inexact | np.ndarray | jax.Array)  # noqa: E731
        constants = tuple(None if is_traced(a) else a for a in leaves)
        return [a for a in leaves if is_traced(a)], (self.func, structure, constants)

    @classmethod
    def tree_unflatten(cls, static, numbers):
        (function, structure, constants), numbers = static, iter(numbers)
        leaves = [next(numbers) if a is None else a for a in constants]
        args, keywords = jax.tree.unflatten(structure, leaves)
        return cls(function, *args, **keywords)


class DecodeOptions(NamedTuple):
    """The arguments of `generate` that every step needs."""

    rng: Key[Array, ""]
    sampler: TracedPartial
    stop: Int[np.ndarray, "E"]
    tap: TracedPartial | None


class DecodeState(NamedTuple):
    """Texts of a batch and their caches, between two steps of `generate`."""

    tokens: Int[Array, "*batch C"]
    """Window of the last tokens of each text, at most a context, left-aligned."""
    length: Int[Array, "*batch"]
    """Number of tokens in the window."""
    dropped: Int[Array, "*batch"]
    """Number of tokens before the window."""
    caches: list[LayerCache]
    """Cache of each layer, for all tokens of the window but the last; its capacity is C."""
    must_refill: Bool[Array, ""]
    """True if a window has slid, so that all positions in the caches have changed."""
    has_ended: Bool[Array, "*batch"]
    """True after a stop token."""


def _check_options(config, num_tokens: int, slide: int, options: DecodeOptions, batch) -> None:
    """Raise a ValueError for an option out of its range, or a sampler of another shape."""
    if num_tokens < 1:
        raise ValueError(f"the number of tokens must be at least 1, not {num_tokens}")
    context = config.context
    if not 1 <= slide <= context:
        raise ValueError(f"a window of {context} can slide by 1 to {context} tokens, not {slide}")
    logits = jax.ShapeDtypeStruct((*batch, config.vocabulary_size), jnp.float32)
    tokens, length = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((*batch, 1), batch))
    sampler, args = options.sampler, (options.rng, logits, tokens, length)
    if jax.tree.leaves(sampler):  # a constant number is checked, a traced one is not
        token = jax.eval_shape(partial(_sample, sampler), *args)
    else:
        token = jax.eval_shape(_sample, sampler, *args)  # cached by `jit`
    is_array = isinstance(token, jax.ShapeDtypeStruct)
    if not is_array or token.shape != batch or not jnp.issubdtype(token.dtype, jnp.integer):
        shape = f"{token.dtype}{list(token.shape)}" if is_array else type(token).__name__
        raise ValueError(f"the sampler returns {shape}, not integers of shape {list(batch)}")


def _initial_window(prompt, lengths, config):
    """Return the last `context` tokens of each prompt left-aligned, their number, and the rest's.

    In NumPy: each operation of JAX would be a program to compile.
    """
    prompt, context = np.asarray(prompt), config.context
    full = np.full(prompt.shape[:-1], prompt.shape[-1], np.int32)
    lengths = full if lengths is None else np.asarray(lengths)
    if lengths.shape != full.shape or not np.issubdtype(lengths.dtype, np.integer):
        raise ValueError(f"lengths must be integers of shape {list(full.shape)}, not {lengths}")
    lengths = lengths.astype(np.int32)
    if prompt.shape[-1] == 0 or not np.all(lengths > 0):
        raise ValueError("the prompt is empty: generation needs at least one token to start from")
    if (longest := lengths.max()) > prompt.shape[-1]:
        raise ValueError(f"lengths has {longest}, but the prompt only {prompt.shape[-1]} tokens")
    prompt = np.where(np.arange(prompt.shape[-1]) < lengths[..., None], prompt, 0)
    F.check_tokens(prompt, config.vocabulary_size)
    if lengths.size == 1:  # without a batch axis XLA's CPU compiler copies no caches
        prompt, lengths = prompt.reshape(-1), lengths.reshape(())
    dropped = np.maximum(lengths - context, 0)
    indices = dropped[..., None] + np.arange(min(prompt.shape[-1], context))
    return np.take_along_axis(prompt, indices, axis=-1), lengths - dropped, dropped


class DecodeChunk(NamedTuple):
    """Tokens that one call of a compiled loop generates."""

    start: int
    """Number of tokens generated before."""
    count: int
    """Number of tokens to generate."""
    capacity: int
    """Number of tokens that the caches can hold."""
    slides: bool
    """True if a window may fill up and slide; otherwise the capacity suffices."""


def plan_chunks(
    length: int, num_tokens: int, context: int, *, chunk_size: int | None = None, budget: int = 0
) -> list[DecodeChunk]:
    """Split decoding into compiled loops of fixed cache capacity.

    A chunk ends where the caches are full, and at multiples of `chunk_size`.

    Args:
        length: tokens of the longest prompt, at most `context`.
        budget: capacity from the start, if that many tokens come.
    """
    chunk_size, chunks, start = chunk_size or num_tokens, [], 0
    capacity = _round_capacity(max(length + 1, min(length + num_tokens, budget)), context)
    while start < num_tokens:
        capacity = max(capacity, _round_capacity(min(length + start, context) + 1, context))
        slides = length + num_tokens > context == capacity
        count = min(num_tokens, start - start % chunk_size + chunk_size) - start
        if not slides:
            count = min(count, capacity - length - start)
        chunks.append(DecodeChunk(start, count, capacity, slides))
        start += count
    return chunks


def _round_capacity(length: int, context: int) -> int:
    """Return the cache capacity for `length` tokens: a multiple of an eighth to a quarter of it.

    Each step reads the whole cache, so unused capacity costs time; each capacity is a program to
    compile, so there are few, and only one up to a context of 64.
    """
    multiple = max(64, 2 ** length.bit_length() // 8)
    return min(context, -(-length // multiple) * multiple)


def _cache_budget(model, batch: tuple[int, ...]) -> int:
    """Return the number of tokens whose caches have a quarter of the weights' bytes."""
    caches = _empty_caches.eval_shape(model, batch, 1)  # cached by `jit`
    entries = [a for a in jax.tree.leaves(caches, is_leaf=is_state) if not is_state(a)]
    num_bytes = lambda arrays: sum(a.size * a.dtype.itemsize for a in arrays)  # noqa: E731
    weights, token = num_bytes(jax.tree.leaves(model)), num_bytes(entries)
    return weights // (4 * token) if token else model.config.context


@partial(jax.jit, static_argnums=(1, 2))
def _empty_caches(model, batch: tuple[int, ...], capacity: int) -> list[LayerCache]:
    return model.empty_caches(*batch, capacity=capacity)


def _prefill_size(count: int, rows: int, capacity: int) -> int:
    """Return how many tokens of each row to read at once: few sizes, as each is a program.

    A divisor of the capacity, if there is one of at least half the best size.
    """
    if count < 1:
        return 0
    limit = max(16, PREFILL_CHUNK // max(1, rows))
    size = min(max(16, 2 ** (count - 1).bit_length()), limit, capacity)
    chunks = -(-capacity // size)
    divisors = (capacity // n for n in range(chunks, 2 * chunks) if capacity % n == 0)
    return next(divisors, size)


def pad_axis(array: Array, size: int, axis: int = -2, value: int = 0) -> Array:
    """Pad an axis of the array with `value` behind, up to `size`."""
    width = [(0, 0)] * array.ndim
    width[axis] = (0, size - array.shape[axis])
    return jnp.pad(array, width, constant_values=value) if width[axis][1] else array


def is_state(entry) -> bool:
    """True for a cache entry without a length axis."""
    return isinstance(entry, F.State)


def grow_caches(caches: list[LayerCache], capacity: int) -> list[LayerCache]:
    """Pad the cache entries that have a length axis with zeros up to a capacity."""
    grow = lambda entry: entry if is_state(entry) else pad_axis(entry, capacity)  # noqa: E731
    return jax.tree.map(grow, caches, is_leaf=is_state)


def unroll_blocks(model):
    """Return a model whose (decoder's) blocks are a list, for a loop that calls `extend`.

    Stacked blocks are then copied once, and not for every token.
    """
    if isinstance(model, Ensemble):
        return Ensemble(jax.vmap(unroll_blocks)(model.models))
    model = jax.tree.map(lambda a: a, model)  # a new module, to be changed
    stack = getattr(model, "decoder", model)
    if isinstance(stack, Transformer):
        stack.blocks = nnx.List(list_blocks(stack))
    return model


@partial(jax.jit, static_argnames=("capacity", "size"))
@F.float32_products
def _init_state(
    model,
    tokens: Int[Array, "*batch P"],
    length: Int[Array, "*batch"],
    dropped: Int[Array, "*batch"],
    tap: TracedPartial | None = None,
    *,
    capacity: int,
    size: int,
) -> DecodeState:
    """Return a state of this capacity, all tokens but the last in the caches (unless size is 0)."""
    model = unroll_blocks(model)
    caches = model.empty_caches(*length.shape, capacity=capacity)
    tokens, ended = pad_axis(tokens, capacity, axis=-1), jnp.zeros_like(length, bool)
    state = DecodeState(tokens, length, dropped, caches, jnp.array(False), ended)
    return _prefill(model, state, tap, size, length.max() - 1) if size else state


def _prefill(model, state: DecodeState, tap, size: int, count: int | Array) -> DecodeState:
    """Read the first `count` tokens of the window into the caches, `size` at a time, each once.

    States start from zeros, and skip padding behind a row's tokens; in other caches causality hides
    it and decoding overwrites it. A row's last token is padding here: the next step reads it.
    """
    reset = lambda entry: jax.tree.map(jnp.zeros_like, entry) if is_state(entry) else entry  # noqa: E731
    caches = jax.tree.map(reset, state.caches, is_leaf=is_state)
    full, rest = divmod(state.tokens.shape[-1], size)

    def read(start, size, caches):
        tokens = jax.lax.dynamic_slice_in_dim(state.tokens, start, size, axis=-1)
        indices = start + jnp.arange(size)
        valid = indices < state.length[..., None] - 1
        positions = jnp.where(valid, state.dropped[..., None] + indices, PADDING)
        return model.extend(tokens, caches, start, valid=valid, tap=_tap_at(tap, positions))[1]

    chunks = jnp.minimum(-(-count // size), full) if rest else -(-count // size)
    read_chunk = lambda index, caches: read(index * size, size, caches)  # noqa: E731
    caches = jax.lax.fori_loop(0, chunks, read_chunk, caches)
    caches = read(full * size, rest, caches) if rest else caches
    return state._replace(caches=caches, must_refill=jnp.array(False))


def _tap_at(tap: TracedPartial | None, positions: Int[Array, "*batch T"]) -> F.Tap:
    """Return a model's tap that calls `tap` with the positions of the tokens."""
    return F.no_tap if tap is None else lambda name, value: tap(name, value, positions)


@partial(jax.jit, static_argnames=("max_tokens", "slide"), donate_argnames="state")
@F.float32_products
def _decode(
    model, state: DecodeState, options: DecodeOptions, start, count,
    *, max_tokens: int, slide: int | None,
) -> tuple[DecodeState, Int[Array, "*batch max_tokens"]]:  # fmt: skip
    """Generate `count` tokens after `start` ones, or until all rows have ended.

    `slide` is the number of tokens that a full window drops; None if no window fills up.
    """
    model = unroll_blocks(model)

    def continues(carry):
        index, state, _ = carry
        return (index < count) & ~state.has_ended.all()

    def step(carry):
        index, state, written = carry
        last = state.length - 1
        tokens = jnp.take_along_axis(state.tokens, last[..., None], axis=-1)
        tap = _tap_at(options.tap, (state.dropped + last)[..., None])
        logits, caches = model.extend(tokens, state.caches, last, tap=tap)
        rng = jax.random.fold_in(options.rng, start + index)
        token = _sample(options.sampler, rng, logits[..., 0, :], state.tokens, state.length)
        token = token.astype(written.dtype)
        ended = state.has_ended | jnp.isin(token, options.stop)
        state = _append_token(state._replace(caches=caches, has_ended=ended), token, slide)
        return index + 1, state, written.at[index].set(jnp.where(ended, PADDING, token))

    def refill_and_step(carry):
        index, state, written = carry
        window = state.tokens.shape[-1]
        size = _prefill_size(window, state.length.size, window)
        refill = lambda state: _prefill(model, state, options.tap, size, window)  # noqa: E731
        state = jax.lax.cond(state.must_refill, refill, lambda state: state, state)
        fits = lambda carry: continues(carry) & ~carry[1].must_refill  # noqa: E731
        return jax.lax.while_loop(fits, step, (index, state, written))

    written = jnp.full((max_tokens, *state.length.shape), PADDING, state.tokens.dtype)
    body = step if slide is None else refill_and_step
    _, state, written = jax.lax.while_loop(continues, body, (jnp.int32(0), state, written))
    return state, jnp.moveaxis(written, 0, -1)


def _sample(sampler: Sampler, rng, logits, tokens, length):
    """Call the sampler; one that accepts `tokens` gets the window, padded with -1."""
    if F.unsupported_kwargs(sampler, ["tokens"]):
        return sampler(rng, logits)
    is_text = jnp.arange(tokens.shape[-1]) < length[..., None]
    return sampler(rng, logits, tokens=jnp.where(is_text, tokens, PADDING))


def _append_token(
    state: DecodeState, token: Int[Array, "*batch"], slide: int | None
) -> DecodeState:
    """Append a token to each row that has not ended; a full window first drops `slide` tokens."""
    capacity, active = state.tokens.shape[-1], ~state.has_ended
    window, must_refill = (state.tokens, state.length, state.dropped), state.must_refill

    def drop(tokens, length, dropped):
        shift = jnp.where(full, slide or 0, 0)
        sources = jnp.minimum(jnp.arange(capacity) + shift[..., None], capacity - 1)
        return jnp.take_along_axis(tokens, sources, axis=-1), length - shift, dropped + shift

    if slide is not None:
        full = (state.length == capacity) & active
        must_refill = full.any()
        window = jax.lax.cond(must_refill, drop, lambda *window: window, *window)
    tokens, length, dropped = window
    is_new = (jnp.arange(capacity) == length[..., None]) & active[..., None]
    tokens = jnp.where(is_new, token[..., None], tokens)
    return state._replace(
        tokens=tokens, length=length + active, dropped=dropped, must_refill=must_refill
    )
