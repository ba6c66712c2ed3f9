"""Generate tokens with a key/value cache; past the model's context the window slides.

Nucleus sampling, with a vector added to a residual stream from position 20 of the text on:

    def steer(name, value, positions, vector):
        if name != "blocks.3.residual":
            return value
        return jnp.where(positions[..., None] >= 20, value + vector, value)

    generate(model, prompt, num_tokens=50, rng=rng, sampler=partial(F.sample, top_p=0.9),
             tap=partial(steer, vector=vector))
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Int, Integer, Key

import tlite.functional as F
from tlite.config import check_size
from tlite.models.ensemble import Ensemble
from tlite.models.inputs import LayerCache
from tlite.models.transformer import Transformer, list_blocks
from tlite.user_code.library import closure_values, instruction_names

PADDING = -1
"""Id that replaces a stop token and all tokens after it; no token has this id."""
PREFILL_CHUNK = 512
"""Number of prompt tokens, of all rows together, that are read at once; more are no faster."""

Sampler = Callable[..., Int[Array, "*batch"]]
Tap = Callable[..., Array]


def generate(
    model,
    prompt: Integer[Array | np.ndarray, "*batch P"],
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
    `functools.partial`: calls with other floats or arrays then use the compiled program again.
    The bool, int, float and str globals and closure variables of the function body may change
    between calls. Other values that it reads, such as arrays, are kept as they were when compiled.

    Args:
        sampler: function (rng, logits (..., V)) -> tokens (...): `functional.sample`, `greedy` or
            another; a keyword argument `tokens` gets the window (..., C), -1 after its last token.
        lengths: number of tokens of each prompt, for prompts that are padded at the end.
        stop: token or tokens that end a row; generation stops when all rows have ended.
        slide: number of tokens that a full window drops at once. All positions change then, and the
            rest of the window is read again.
        tap: function (name, value, positions) -> value or its replacement, called for each named
            value of the model (`inspection.tap_names`). `positions` (..., T) counts the tokens of
            the value from the start of the prompt; it is -1 for padding. A single row has no batch
            axis here.

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
    prompt: Integer[Array | np.ndarray, "*batch P"],
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
    prefill_size = _prefill_size(longest - 1, length.size, capacity)
    arrays = jax.device_put((window[..., :capacity], length, dropped))
    state = _init_state(model, *arrays, options.tap, capacity=capacity, prefill_size=prefill_size)
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
    made anew at each call compiles once. So are the function's captured scalars.
    """

    def tree_flatten(self):
        leaves, structure = jax.tree.flatten((self.args, self.keywords))
        constants = tuple(None if _is_traced(a) else a for a in leaves)
        static = self.func, structure, constants, captured_scalars(self.func)
        return [a for a in leaves if _is_traced(a)], static

    @classmethod
    def tree_unflatten(cls, static, traced):
        (function, structure, constants, _), traced = static, iter(traced)
        leaves = [next(traced) if a is None else a for a in constants]
        args, keywords = jax.tree.unflatten(structure, leaves)
        return cls(function, *args, **keywords)


def captured_scalars(function: Callable) -> tuple[tuple[str, str], ...]:
    """Return the bool, int, float and str globals and closure variables of the function body.

    Variables that the function assigns, such as a counter of its calls, are left out.
    """
    if not isinstance(function, FunctionType):
        return ()
    names = sorted(instruction_names(function.__code__, "LOAD_GLOBAL"))
    values = {name: function.__globals__.get(name) for name in names} | closure_values(function)
    for name in instruction_names(function.__code__, "STORE_GLOBAL", "STORE_DEREF"):
        values.pop(name, None)
    scalar = bool | int | float | str | np.generic
    return tuple((n, repr(v)) for n, v in values.items() if isinstance(v, scalar))


def _is_traced(value) -> bool:
    return isinstance(value, float | np.inexact | np.ndarray | jax.Array)


class DecodeOptions(NamedTuple):
    """Arguments of `generate` that every step needs."""

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
    """Raise a ValueError for an option out of range, or a sampler with another output shape."""
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
    """Return (window, length, dropped) of `DecodeState` for each prompt.

    They are computed by NumPy: each operation of JAX would be a program to compile.
    """
    prompt, context = np.asarray(prompt), config.context
    full_lengths = np.full(prompt.shape[:-1], prompt.shape[-1], np.int32)
    lengths = full_lengths if lengths is None else np.asarray(lengths)
    if lengths.shape != full_lengths.shape or not np.issubdtype(lengths.dtype, np.integer):
        shape = list(full_lengths.shape)
        raise ValueError(f"lengths must be integers of shape {shape}, not {lengths}")
    lengths = lengths.astype(np.int32)
    if prompt.shape[-1] == 0 or not np.all(lengths > 0):
        raise ValueError("the prompt is empty: generation needs at least one token to start from")
    if (longest := lengths.max()) > prompt.shape[-1]:
        raise ValueError(f"lengths has {longest}, but the prompt only {prompt.shape[-1]} tokens")
    prompt = np.where(np.arange(prompt.shape[-1]) < lengths[..., None], prompt, 0)
    F.check_tokens(prompt, config.vocabulary_size)
    prompt = prompt.astype(np.int32)  # generated tokens and PADDING get its type
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
        length: number of tokens of the longest prompt, at most `context`.
        budget: capacity of the first caches, unless the whole text is shorter.
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
    """Return `length` rounded up to one of few cache capacities, at most `context`.

    Each step reads the whole cache, so unused capacity costs time; each capacity is a program to
    compile. Capacities are multiples of a power of two that is an eighth to a quarter of the
    length, and at least 64.
    """
    multiple = max(64, 2 ** length.bit_length() // 8)
    return min(context, -(-length // multiple) * multiple)


def _cache_budget(model, batch: tuple[int, ...]) -> int:
    """Return the number of tokens whose caches take a quarter as many bytes as the weights."""
    caches = _empty_caches.eval_shape(model, batch, 1)  # cached by `jit`
    entries = [a for a in jax.tree.leaves(caches, is_leaf=is_state) if not is_state(a)]
    bytes_per_token = _num_bytes(entries)
    if not bytes_per_token:
        return model.config.context
    return _num_bytes(jax.tree.leaves(model)) // (4 * bytes_per_token)


def _num_bytes(arrays: Iterable[Any]) -> int:
    return sum(a.size * a.dtype.itemsize for a in arrays)


@partial(jax.jit, static_argnums=(1, 2))
def _empty_caches(model, batch: tuple[int, ...], capacity: int) -> list[LayerCache]:
    return model.empty_caches(*batch, capacity=capacity)


def _prefill_size(length: int, num_rows: int, capacity: int) -> int:
    """Return the number of tokens of each row that `_prefill` reads at once; 0 for none.

    Only a few sizes are used, as each is compiled. The size is `length` rounded up to a power of
    two (at least 16), but at most `capacity` and at most max(16, `PREFILL_CHUNK` // num_rows). If
    a divisor of `capacity` lies between about half this size and this size, the largest one is
    returned, so that chunks fill the capacity exactly.
    """
    if length < 1:
        return 0
    limit = max(16, PREFILL_CHUNK // max(1, num_rows))
    size = min(max(16, 2 ** (length - 1).bit_length()), limit, capacity)
    num_chunks = -(-capacity // size)
    divisors = (capacity // n for n in range(num_chunks, 2 * num_chunks) if capacity % n == 0)
    return next(divisors, size)


def pad_axis(array: Array, size: int, axis: int = -2, value: int = 0) -> Array:
    """Pad the end of an axis with `value`, up to `size` entries."""
    width = [(0, 0)] * array.ndim
    width[axis] = (0, size - array.shape[axis])
    return jnp.pad(array, width, constant_values=value) if width[axis][1] else array


def is_state(entry) -> bool:
    """True for a cache entry without a length axis."""
    return isinstance(entry, F.State)


def grow_caches(caches: list[LayerCache], capacity: int) -> list[LayerCache]:
    """Pad the cache entries that have a length axis with zeros up to a capacity."""

    def grow(entry):
        return entry if is_state(entry) else pad_axis(entry, capacity)

    return jax.tree.map(grow, caches, is_leaf=is_state)


def unroll_blocks(model):
    """Return the model with stacked blocks of its decoder as a list, for a loop of `extend`.

    The blocks are then sliced once, and not for every token.
    """
    if isinstance(model, Ensemble):
        return Ensemble(jax.vmap(unroll_blocks)(model.models))
    model = jax.tree.map(lambda a: a, model)  # a copy, as its blocks are replaced
    stack = getattr(model, "decoder", model)
    if isinstance(stack, Transformer):
        stack.blocks = nnx.List(list_blocks(stack))
    return model


@partial(jax.jit, static_argnames=("capacity", "prefill_size"))
@F.float32_products
def _init_state(
    model,
    tokens: Int[Array, "*batch P"],
    length: Int[Array, "*batch"],
    dropped: Int[Array, "*batch"],
    tap: TracedPartial | None = None,
    *,
    capacity: int,
    prefill_size: int,
) -> DecodeState:
    """Return the state after the prompts; their last tokens are read by the first step."""
    model = unroll_blocks(model)
    caches = model.empty_caches(*length.shape, capacity=capacity)
    tokens, ended = pad_axis(tokens, capacity, axis=-1), jnp.zeros_like(length, bool)
    state = DecodeState(tokens, length, dropped, caches, jnp.array(False), ended)
    if not prefill_size:
        return state
    return _prefill(model, state, tap, prefill_size, length.max() - 1)


def _prefill(model, state: DecodeState, tap, size: int, length: int | Array) -> DecodeState:
    """Read the first `length` tokens of the window into the caches, `size` at a time.

    A row's last token and all after it are padding here: the next step reads the last one. Padding
    does not change recurrent states, which start from zeros. Other caches hold its keys and values,
    which causality hides until decoding overwrites them.
    """

    def reset(entry):
        return jax.tree.map(jnp.zeros_like, entry) if is_state(entry) else entry

    def read(start, size, caches):
        tokens = jax.lax.dynamic_slice_in_dim(state.tokens, start, size, axis=-1)
        indices = start + jnp.arange(size)
        valid = indices < state.length[..., None] - 1
        positions = jnp.where(valid, state.dropped[..., None] + indices, PADDING)
        return model.extend(tokens, caches, start, valid=valid, tap=_tap_at(tap, positions))[1]

    def read_chunk(index, caches):
        return read(index * size, size, caches)

    caches = jax.tree.map(reset, state.caches, is_leaf=is_state)
    num_full, rest = divmod(state.tokens.shape[-1], size)
    num_chunks = -(-length // size)
    num_chunks = jnp.minimum(num_chunks, num_full) if rest else num_chunks
    caches = jax.lax.fori_loop(0, num_chunks, read_chunk, caches)
    caches = read(jnp.int32(num_full * size), rest, caches) if rest else caches
    return state._replace(caches=caches, must_refill=jnp.array(False))


def _tap_at(tap: TracedPartial | None, positions: Int[Array, "*batch T"]) -> F.Tap:
    """Return the function (name, value) that calls `tap` with these positions of the tokens."""
    return F.no_tap if tap is None else lambda name, value: tap(name, value, positions)


@partial(jax.jit, static_argnames=("max_tokens", "slide"), donate_argnames="state")
@F.float32_products
def _decode(
    model, state: DecodeState, options: DecodeOptions, start, count,
    *, max_tokens: int, slide: int | None,
) -> tuple[DecodeState, Int[Array, "*batch max_tokens"]]:  # fmt: skip
    """Generate `count` tokens, or fewer if all rows end; `slide` is None if no window fills up."""
    model = unroll_blocks(model)

    def continues(carry):
        index, state, _ = carry
        return (index < count) & ~state.has_ended.all()

    def step(carry):
        index, state, output = carry
        last = state.length - 1
        tokens = jnp.take_along_axis(state.tokens, last[..., None], axis=-1)
        tap = _tap_at(options.tap, (state.dropped + last)[..., None])
        logits, caches = model.extend(tokens, state.caches, last, tap=tap)
        rng = jax.random.fold_in(options.rng, start + index)
        token = _sample(options.sampler, rng, logits[..., 0, :], state.tokens, state.length)
        token = token.astype(output.dtype)
        ended = state.has_ended | jnp.isin(token, options.stop)
        state = _append_token(state._replace(caches=caches, has_ended=ended), token, slide)
        return index + 1, state, output.at[index].set(jnp.where(ended, PADDING, token))

    def refill_and_steps(carry):
        index, state, output = carry
        window = state.tokens.shape[-1]
        size = _prefill_size(window, state.length.size, window)
        refill = partial(_prefill, model, tap=options.tap, size=size, length=window)
        state = jax.lax.cond(state.must_refill, refill, lambda state: state, state)
        return jax.lax.while_loop(
            lambda carry: continues(carry) & ~carry[1].must_refill, step, (index, state, output)
        )

    output = jnp.full((max_tokens, *state.length.shape), PADDING, state.tokens.dtype)
    body = step if slide is None else refill_and_steps
    _, state, output = jax.lax.while_loop(continues, body, (jnp.int32(0), state, output))
    return state, jnp.moveaxis(output, 0, -1)


def _sample(sampler: Sampler, rng, logits, tokens, length):
    """Call the sampler; one that accepts `tokens` gets the window, padded with -1."""
    if F.unsupported_kwargs(sampler, ["tokens"]):
        return sampler(rng, logits)
    is_token = jnp.arange(tokens.shape[-1]) < length[..., None]
    return sampler(rng, logits, tokens=jnp.where(is_token, tokens, PADDING))


def _append_token(
    state: DecodeState, token: Int[Array, "*batch"], slide: int | None
) -> DecodeState:
    """Append a token to each row that has not ended; a full window first drops `slide` tokens."""
    capacity, is_active = state.tokens.shape[-1], ~state.has_ended
    window, must_refill = (state.tokens, state.length, state.dropped), state.must_refill

    def drop(tokens, length, dropped):
        shift = jnp.where(is_full, slide or 0, 0)
        sources = jnp.minimum(jnp.arange(capacity) + shift[..., None], capacity - 1)
        return jnp.take_along_axis(tokens, sources, axis=-1), length - shift, dropped + shift

    if slide is not None:
        is_full = (state.length == capacity) & is_active
        must_refill = is_full.any()
        window = jax.lax.cond(must_refill, drop, lambda *window: window, *window)
    tokens, length, dropped = window
    is_new = (jnp.arange(capacity) == length[..., None]) & is_active[..., None]
    tokens = jnp.where(is_new, token[..., None], tokens)
    return state._replace(
        tokens=tokens, length=length + is_active, dropped=dropped, must_refill=must_refill
    )
