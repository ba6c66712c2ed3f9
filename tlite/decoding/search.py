"""Search for the best target of a source: greedy, and with a beam; batched, with caches."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

import tlite.functional as F
from tlite.decoding.generate import grow_caches, unroll_blocks
from tlite.models.inputs import LayerCache, cache_capacity
from tlite.models.seq2seq import END_ID, START_ID, TreeInputs

GROUP = 64  # tokens; `beam_top_k` reads a group only if its maximum is among the largest


class Hypotheses(NamedTuple):
    """The best targets of each source, best first, and their scores."""

    tokens: Int[Array, "*batch K N"]
    """Targets without the start symbol; padding follows the end symbol."""
    scores: Float[Array, "*batch K"]


def start_and_end(config) -> tuple[int, int]:
    """Return the ids of the symbols that targets of a model start and end with."""
    start, end = config.special_tokens.bos_id, config.special_tokens.eos_id
    return START_ID if start is None else start, END_ID if end is None else end


def length_normaliser(length, length_penalty: float | Float[Array, ""]):
    """Return ((5 + n) / 6)^length_penalty, which divides log p (Wu et al. 2016, eq. 14)."""
    return ((5 + length) / 6) ** length_penalty


class GreedyState(NamedTuple):
    """State of a greedy search."""

    index: Int[Array, ""]
    """Number of tokens of each target so far."""
    last: Int[Array, "B"]
    tokens: Int[Array, "B N"]
    scores: Float[Array, "B"]
    caches: list[LayerCache]


@partial(jax.jit, static_argnames="max_length")
@F.float32_products
def greedy_search(
    model,
    source: Int[Array, "B S"],
    *,
    max_length: int,
    limits: Int[Array, "B"] | None = None,
) -> Hypotheses:
    """Return the target of the most probable token at each step; its score is log p.

    Args:
        max_length: tokens of the longest target, with its end symbol.
        limits: number of tokens for each source, where it is below `max_length`.
    """
    size, pad_id = len(source), model.config.special_tokens.pad_id
    memories, (start_id, end_id) = model.memories(source), start_and_end(model.config)
    model = unroll_blocks(model)
    limits = jnp.full(size, max_length) if limits is None else limits

    def is_active(state):  # some targets start with the end symbol
        has_ended = (state.index > 0) & ((state.last == end_id) | (state.last == pad_id))
        return (state.index < limits) & ~has_ended

    def step(state):
        logits, caches = model.extend(state.last[:, None], state.caches, memories, state.index)
        log_p = jax.nn.log_softmax(mask_special_tokens(model.config, logits[:, 0], state.index))
        token = jnp.where(is_active(state), log_p.argmax(-1), pad_id)
        scores = state.scores + jnp.where(is_active(state), log_p.max(-1), 0)
        tokens = state.tokens.at[:, state.index].set(token)
        return GreedyState(state.index + 1, token, tokens, scores, caches)

    state = GreedyState(
        jnp.int32(0),
        jnp.full(size, start_id, source.dtype),
        jnp.full((size, max_length), pad_id, source.dtype),
        jnp.zeros(size),
        model.empty_caches(size, capacity=0),
    )
    state = _loop(lambda state: jnp.any(is_active(state)), step, state, max_length)
    return Hypotheses(state.tokens[:, None], state.scores[:, None])


class BeamState(NamedTuple):
    """State of a beam search."""

    index: Int[Array, ""]
    """Number of tokens of each live beam."""
    live: Hypotheses
    """Beams without an end symbol, by log p."""
    finished: Hypotheses
    """The best beams with an end symbol, by normalised log p; -inf where there are fewer."""
    caches: list[LayerCache]
    """One cache for all beams of a source, or one for each beam, (B, K, ...)."""
    mask: Any
    """Cache entries that belong to each live beam, bool (B, K, NK); None if each has its own."""


@partial(jax.jit, static_argnames=("beam", "max_length"))
@F.float32_products
def beam_search(
    model,
    source: Int[Array, "B S"],
    *,
    beam: int,
    max_length: int,
    length_penalty: float | Float[Array, ""] = 0.6,
    limits: Int[Array, "B"] | None = None,
) -> Hypotheses:
    """Return the `beam` best targets by log p / `length_normaliser`, n counting the end symbol.

    The search stops when no live beam can become better than the worst of `beam` finished ones, or
    after `max_length` tokens; `limits` sets a smaller maximum for each source.
    """
    start_id, end_id = start_and_end(model.config)
    state = _initial_state(model, source, beam, max_length)
    one_cache_each = state.mask is None
    memories = jax.vmap(model.memories)(source) if one_cache_each else model.memories(source)
    extend = _extend_each if one_cache_each else _extend
    model = unroll_blocks(model)
    limits = jnp.full(len(source), max_length) if limits is None else limits
    longest = length_normaliser(limits, length_penalty)[:, None]

    def step(state):
        last = jnp.where(state.index > 0, state.live.tokens[:, :, state.index - 1], start_id)
        logits, caches, mask = extend(model, memories, state, last)
        logits = mask_special_tokens(model.config, logits, state.index)
        live, finished, parent = _select(state, logits, end_id, length_penalty)
        caches = gather_beams(caches, parent) if one_cache_each else caches
        select = partial(jax.vmap(jnp.where), state.index < limits)  # at its limit: unchanged
        live, finished = jax.tree.map(select, (live, finished), (state.live, state.finished))
        return BeamState(state.index + 1, live, finished, caches, gather_beams(mask, parent))

    def continues(state):
        # Scores are negative: the longest target has the smallest penalty.
        can_improve = (state.live.scores / longest)[:, 0] > state.finished.scores[:, -1]
        return jnp.any((state.index < limits) & can_improve)

    state = _loop(continues, step, state, max_length, tokens_per_step=1 if one_cache_each else beam)
    return _finished_or_live(state.finished, state.live, longest)


def _finished_or_live(finished: Hypotheses, live: Hypotheses, normaliser) -> Hypotheses:
    """Return the finished beams of each source, or its live ones if none has finished."""
    live = live._replace(scores=live.scores / normaliser)
    any_finished = jnp.isfinite(finished.scores[:, 0])
    return jax.tree.map(partial(jax.vmap(jnp.where), any_finished), finished, live)


def is_key_values(entry) -> bool:
    return isinstance(entry, F.KeyValues)


def _initial_state(model, source: Int[Array, "B S"], beam: int, max_length: int) -> BeamState:
    """Return one empty live beam for each source.

    Beams share a cache only if all its entries are keys and values of attention: a recurrent layer,
    or a user's layer that reads its cache by position, must not see entries of other beams.
    """
    size, pad_id = len(source), model.config.special_tokens.pad_id
    tokens = jnp.full((size, beam, max_length), pad_id, source.dtype)
    scores = jnp.full((size, beam), -jnp.inf)
    live, finished = Hypotheses(tokens, scores.at[:, 0].set(0.0)), Hypotheses(tokens, scores)
    caches, mask = model.empty_caches(size, capacity=0), jnp.zeros((*tokens.shape, beam), bool)
    if all(map(is_key_values, jax.tree.leaves(caches, is_leaf=is_key_values))):
        return BeamState(jnp.int32(0), live, finished, caches, mask.reshape(size, beam, -1))
    caches = model.empty_caches(capacity=0)
    caches = jax.tree.map(lambda a: jnp.zeros((size, beam, *a.shape), a.dtype), caches)
    return BeamState(jnp.int32(0), live, finished, caches, None)


def _extend(model, memories: tuple, state: BeamState, last: Int[Array, "B K"]):
    """Return logits (B, K, V) after the last token of each live beam, the caches, and the mask.

    The beams of a source are one sequence, each of whose tokens attends to those of its beam only:
    so no cache is reordered when beams are.
    """
    size, beam = last.shape
    start, new = state.index * beam, jnp.broadcast_to(jnp.eye(beam, dtype=bool), (size, beam, beam))
    mask = jax.lax.dynamic_update_slice(state.mask, new, (0, 0, start))
    capacity = cache_capacity(state.caches, mask.shape[-1])
    positions, key_positions = jnp.full((1, beam), state.index), jnp.arange(capacity) // beam
    tree = TreeInputs(positions, key_positions, mask[:, None, :, :capacity])
    logits, caches = model.extend(last, state.caches, memories, start, tree=tree)
    return logits, caches, mask


def _extend_each(model, memories: tuple, state: BeamState, last: Int[Array, "B K"]):
    """`_extend` with a separate cache for each beam."""

    def extend(token, caches, memories):
        return model.extend(token[None], caches, memories, state.index)

    extend_beams = jax.vmap(jax.vmap(extend, in_axes=(0, 0, None)))
    logits, caches = extend_beams(last, state.caches, memories)
    return logits[:, :, 0], caches, None


def _select(state: BeamState, logits: Float[Array, "B K V"], end_id: int, length_penalty):
    """Return the best live and finished beams one token later, and the parents of the live ones."""
    beam = logits.shape[1]
    scores, parent, token = beam_top_k(logits, state.live.scores, 2 * beam)
    tokens = gather_beams(state.live.tokens, parent).at[:, :, state.index].set(token)
    ended = token == end_id
    normalised = scores / length_normaliser(state.index + 1, length_penalty)
    ending = Hypotheses(tokens, jnp.where(ended, normalised, -jnp.inf))
    both = jax.tree.map(lambda *a: jnp.concatenate(a, axis=1), state.finished, ending)
    finished, _ = _best(both, beam)
    live, indices = _best(Hypotheses(tokens, jnp.where(ended, -jnp.inf, scores)), beam)
    return live, finished, gather_beams(parent, indices)


def _best(hypotheses: Hypotheses, number: int) -> tuple[Hypotheses, Int[Array, "B K"]]:
    """Return the best hypotheses, and their indices."""
    scores, indices = jax.lax.top_k(hypotheses.scores, number)
    return Hypotheses(gather_beams(hypotheses.tokens, indices), scores), indices


def beam_top_k(
    logits: Float[Array, "B K V"], live: Float[Array, "B K"], number: int
) -> tuple[Float[Array, "B N"], Int[Array, "B N"], Int[Array, "B N"]]:
    """Return the `number` largest of live[k] + log softmax(logits[k])[v], with k and v of each.

    Equal to a sort, the first of equals first, with fewer passes: the largest are in the `number`
    groups of tokens with the largest maxima, and log p is computed only there.
    """
    size, beams, vocabulary = logits.shape
    padding = [(0, 0), (0, 0), (0, -vocabulary % GROUP)]
    logits = jnp.pad(logits, padding, constant_values=-jnp.inf)
    groups = logits.reshape(size, beams, -1, GROUP)
    maxima = groups.max(-1)
    top = maxima.max(-1, keepdims=True)
    offsets = live[..., None] - top - jnp.log(jnp.exp(logits - top).sum(-1, keepdims=True))
    offsets = jnp.broadcast_to(offsets, maxima.shape).reshape(size, -1)
    maxima, groups = offsets + maxima.reshape(size, -1), groups.reshape(size, -1, GROUP)
    _, chosen = jax.lax.top_k(maxima, min(number, maxima.shape[1]))
    chosen = jnp.sort(chosen)  # so that of equal numbers the first is taken
    candidates = jnp.take_along_axis(groups, chosen[..., None], axis=1)
    candidates += jnp.take_along_axis(offsets, chosen, axis=1)[..., None]
    scores, indices = jax.lax.top_k(candidates.reshape(size, -1), number)
    group, per_beam = jnp.take_along_axis(chosen, indices // GROUP, 1), maxima.shape[1] // beams
    return scores, group // per_beam, group % per_beam * GROUP + indices % GROUP


def gather_beams(arrays, indices: Int[Array, "B K"]):
    """Return array[b, indices[b]] for each b, of one array (B, K, ...) or a pytree of them."""
    return jax.vmap(lambda row, chosen: jax.tree.map(lambda a: a[chosen], row))(arrays, indices)


def _loop(continues: Callable, step: Callable, state, max_length: int, tokens_per_step: int = 1):
    """Repeat `step` while `continues`, at most `max_length` times.

    Each step reads the whole caches, and most targets are short: so up to four loops follow each
    other, with a capacity of one to four quarters of the longest target.
    """
    for steps in sorted({-(-max_length * quarter // 4) for quarter in (1, 2, 3, 4)}):
        state = state._replace(caches=grow_caches(state.caches, steps * tokens_per_step))
        state = jax.lax.while_loop(
            lambda state, steps=steps: (state.index < steps) & continues(state), step, state
        )
    return state


def mask_special_tokens(
    config, logits: Float[Array, "*batch V"], index: Int[Array, ""]
) -> Float[Array, "*batch V"]:
    """Set the logit of padding to -inf; force `special_tokens.forced_bos_id`, if any, at first."""
    tokens = jnp.arange(logits.shape[-1])
    logits = jnp.where(tokens == config.special_tokens.pad_id, -jnp.inf, logits)
    if config.special_tokens.forced_bos_id is None:
        return logits
    forced = jnp.where(tokens == config.special_tokens.forced_bos_id, 0.0, -jnp.inf)
    return jnp.where(index == 0, forced, logits)
