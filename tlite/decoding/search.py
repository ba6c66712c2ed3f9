"""Search for the best target of a source: greedy, and with a beam; batched, with caches."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from tlite import functional as F

ROOM = 16  # tokens, at least, by which caches grow: each step reads and reorders all of them
GROUP = 64


class Hypotheses(NamedTuple):
    """The best targets that a search has found, best first, and their scores."""

    tokens: Int[Array, "*batch K N"]
    """Without the start; what follows the end symbol is padding."""
    scores: Float[Array, "*batch K"]


def length_penalty(length, alpha: float | Float[Array, ""]):
    """((5 + n) / 6)^alpha (Wu et al. 2016, eq. 14): what a log-probability is divided by."""
    return ((5 + length) / 6) ** alpha


class Line(NamedTuple):
    """Where a greedy search stands."""

    index: Int[Array, ""]
    """Tokens that have been written."""
    last: Int[Array, "B"]
    tokens: Int[Array, "B N"]
    scores: Float[Array, "B"]
    caches: list[F.KeyValueCache]


@partial(jax.jit, static_argnames=("max_length", "start_id", "end_id"))
def greedy_search(
    model,
    source: Int[Array, "B S"],
    *,
    max_length: int,
    start_id: int,
    end_id: int,
    limits: Int[Array, "B"] | None = None,
) -> Hypotheses:
    """The most probable token, step by step, up to the end symbol or `max_length` tokens.

    The one hypothesis' score is its log-probability. `limits` are those of each source's target,
    where they are less than `max_length`.
    """
    memory, mask = model.encode(source)
    memories, size, pad = model.memory_caches(memory), source.shape[0], model.config.pad_id
    limits = jnp.full(size, max_length) if limits is None else limits

    def going(line):
        return (line.index < limits) & (line.last != end_id) & (line.last != pad)

    def step(line):
        start = jnp.full(size, line.index)
        logits, caches = model.extend(line.last[:, None], line.caches, memories, mask, start)
        log_probabilities = jax.nn.log_softmax(logits[:, 0]).at[:, pad].set(-jnp.inf)
        token = jnp.where(going(line), F.greedy(log_probabilities), pad)
        scores = line.scores + jnp.where(going(line), log_probabilities.max(-1), 0)
        tokens = line.tokens.at[:, line.index].set(token)
        return Line(line.index + 1, token, tokens, scores, caches)

    line = Line(
        jnp.int32(0),
        jnp.full(size, start_id, source.dtype),
        jnp.full((size, max_length), pad, source.dtype),
        jnp.zeros(size),
        model.empty_caches(size, capacity=0),
    )
    line = _while(lambda line: jnp.any(going(line)), step, line, max_length)
    return Hypotheses(line.tokens[:, None], line.scores[:, None])


class Beams(NamedTuple):
    """Where a beam search stands."""

    index: Int[Array, ""]
    """Tokens that every live beam has."""
    live: Hypotheses
    """Beams that go on, by log-probability."""
    finished: Hypotheses
    """The best that have ended, by penalised log-probability; -inf where there are fewer."""
    caches: list[F.KeyValueCache]


@partial(jax.jit, static_argnames=("beam", "max_length", "start_id", "end_id"))
def beam_search(
    model,
    source: Int[Array, "B S"],
    *,
    beam: int,
    max_length: int,
    start_id: int,
    end_id: int,
    alpha: float | Float[Array, ""] = 0.6,
    limits: Int[Array, "B"] | None = None,
) -> Hypotheses:
    """The `beam` best targets by log p / `length_penalty`, the length counting the end symbol.

    At each step the 2 * beam best continuations of the live beams are made, which always leaves
    `beam` that have not ended. The search stops when no live beam can get better than the worst of
    `beam` finished ones, or after `max_length` tokens (`limits`: fewer, for each source); a source
    none of whose beams has ended by then gets the live ones.
    """
    memory, mask = model.encode(source)
    memories, size, pad = model.memory_caches(memory), source.shape[0], model.config.pad_id
    limits = jnp.full(size, max_length) if limits is None else limits
    longest = length_penalty(limits, alpha)[:, None]

    def best(number, scores, *trees):
        """The `number` best along the axis of beams."""
        scores, places = jax.lax.top_k(scores, number)
        return scores, *(take(tree, places) for tree in trees)

    def step(beams):
        index, live, finished, caches = beams
        last = jnp.where(index > 0, live.tokens[:, :, index - 1], start_id)
        start = jnp.full((size, beam), index)
        logits, caches = model.extend(last[..., None], caches, memories, mask, start)
        log_probabilities = jax.nn.log_softmax(logits[:, :, 0]).at[..., pad].set(-jnp.inf)
        scores = live.scores[..., None] + log_probabilities
        vocabulary = scores.shape[-1]
        scores, places = largest(scores.reshape(size, -1), min(2 * beam, beam * vocabulary))
        parent, token = places // vocabulary, places % vocabulary
        tokens = take(live.tokens, parent).at[:, :, index].set(token)
        ended = token == end_id
        penalised = jnp.where(ended, scores / length_penalty(index + 1, alpha), -jnp.inf)
        finished_scores, finished_tokens = best(
            beam,
            jnp.concatenate([finished.scores, penalised], axis=1),
            jnp.concatenate([finished.tokens, tokens], axis=1),
        )
        live_scores, live_tokens, parent = best(
            beam, jnp.where(ended, -jnp.inf, scores), tokens, parent
        )
        made = (
            Hypotheses(live_tokens, live_scores),
            Hypotheses(finished_tokens, finished_scores),
        )
        # A source whose limit is reached waits, as it is, for the others.
        going = index < limits
        made = jax.tree.map(partial(_where, going), made, (live, finished))
        return Beams(index + 1, *made, take(caches, parent))

    def goes_on(beams):
        # Scores are negative, so that the longest target has the least penalty.
        hope = beams.live.scores[:, :1] / longest
        better = hope[:, 0] > beams.finished.scores[:, -1]
        return jnp.any((beams.index < limits) & better)

    empty = jnp.full((size, beam, max_length), pad, source.dtype)
    nothing = jnp.full((size, beam), -jnp.inf)
    beams = Beams(
        jnp.int32(0),
        Hypotheses(empty, nothing.at[:, 0].set(0.0)),  # one beam to begin with
        Hypotheses(empty, nothing),
        model.empty_caches(size, beam, capacity=0),
    )
    beams = _while(goes_on, step, beams, max_length)
    found = jnp.isfinite(beams.finished.scores[:, :1])
    unended = beams.live.scores / longest
    return Hypotheses(
        jnp.where(found[..., None], beams.finished.tokens, beams.live.tokens),
        jnp.where(found, beams.finished.scores, unended),
    )


def _while(goes_on: Callable, step: Callable, state, max_length: int):
    """`step` while `goes_on`, at most `max_length` times, with caches that grow with the text."""
    more = max(ROOM, -(-max_length // 8))
    for capacity in (*range(more, max_length, more), max_length):
        state = state._replace(caches=jax.tree.map(partial(_grow, capacity), state.caches))

        def has_room(state, capacity=capacity):
            return (state.index < capacity) & goes_on(state)

        state = jax.lax.while_loop(has_room, step, state)
    return state


def _where(rows: Bool[Array, "B"], new: Array, old: Array) -> Array:
    return jnp.where(rows.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _grow(capacity: int, cache: Float[Array, "*batch C K"]) -> Float[Array, "*batch L K"]:
    *batch, length, _ = cache.shape
    return jnp.pad(cache, [(0, 0)] * len(batch) + [(0, capacity - length), (0, 0)])


def largest(
    x: Float[Array, "*batch N"], number: int
) -> tuple[Float[Array, "*batch K"], Int[Array, "*batch K"]]:
    """`jax.lax.top_k`, faster: they are in the `number` groups with the largest maxima."""
    *batch, size = x.shape
    if size <= GROUP * number:
        return tuple(jax.lax.top_k(x, number))
    missing = [(0, 0)] * len(batch) + [(0, -size % GROUP)]
    groups = jnp.pad(x, missing, constant_values=-jnp.inf).reshape(*batch, -1, GROUP)
    _, chosen = jax.lax.top_k(groups.max(-1), number)
    chosen = jnp.sort(chosen)  # so that of equal numbers the first is taken, as in top_k
    candidates = jnp.take_along_axis(groups, chosen[..., None], axis=-2)
    values, places = jax.lax.top_k(candidates.reshape(*batch, -1), number)
    return values, jnp.take_along_axis(chosen, places // GROUP, -1) * GROUP + places % GROUP


def take(tree, places: Int[Array, "B K"]):
    """Elements `places[b]` of axis 1 of each array, for each b."""
    return jax.tree.map(lambda array: jax.vmap(lambda a, p: a[p])(array, places), tree)
