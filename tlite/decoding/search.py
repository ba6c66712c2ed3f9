"""Search for the best target of a source: greedy, and with a beam; batched, with caches."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from tlite import functional as F

ROOM = 16  # tokens, at least, by which caches grow: each step reads all of them
GROUP = 64  # tokens: of a group that is not among the best only the maximum is looked at


class Hypotheses(NamedTuple):
    """The best targets that a search has found, best first, and their scores."""

    tokens: Int[Array, "*batch K N"]
    """Without the start; what follows the end symbol is padding."""
    scores: Float[Array, "*batch K"]


def length_normaliser(length, length_penalty: float | Float[Array, ""]):
    """((5 + n) / 6)^length_penalty (Wu et al. 2016, eq. 14) divides log-probabilities."""
    return ((5 + length) / 6) ** length_penalty


class Line(NamedTuple):
    """Where a greedy search stands."""

    index: Int[Array, ""]
    """Tokens that have been written."""
    last: Int[Array, "B"]
    tokens: Int[Array, "B N"]
    scores: Float[Array, "B"]
    caches: list[F.KeyValues]


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
        ended = (line.last == end_id) | (line.last == pad)
        return (line.index < limits) & (~ended | (line.index == 0))  # some start with the end's

    def step(line):
        logits, caches = model.extend(line.last[:, None], line.caches, memories, mask, line.index)
        logits = allowed(model.config, logits[:, 0], line.index)
        log_probabilities = jax.nn.log_softmax(logits)
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
    caches: list[F.KeyValues]
    """What a source's beams have written, step by step; which is whose, `own` says."""
    own: Bool[Array, "B K NK"]
    """The places of the caches that hold the tokens of each live beam."""


@partial(jax.jit, static_argnames=("beam", "max_length", "start_id", "end_id"))
def beam_search(
    model,
    source: Int[Array, "B S"],
    *,
    beam: int,
    max_length: int,
    start_id: int,
    end_id: int,
    length_penalty: float | Float[Array, ""] = 0.6,
    limits: Int[Array, "B"] | None = None,
) -> Hypotheses:
    """The `beam` best targets by log p / `length_normaliser`, the length counting the end symbol.

    At each step the 2 * beam best continuations of the live beams are made, which always leaves
    `beam` that have not ended. The search stops when no live beam can get better than the worst of
    `beam` finished ones, or after `max_length` tokens (`limits`: fewer, for each source); a source
    none of whose beams has ended by then gets the live ones.
    """
    memory, mask = model.encode(source)
    memories, size, pad = model.memory_caches(memory), source.shape[0], model.config.pad_id
    limits = jnp.full(size, max_length) if limits is None else limits
    longest = length_normaliser(limits, length_penalty)[:, None]

    def best(number, scores, *trees):
        """The `number` best along the axis of beams."""
        scores, places = jax.lax.top_k(scores, number)
        return scores, *(take(tree, places) for tree in trees)

    def step(beams):
        index, live, finished, caches, own = beams
        last = jnp.where(index > 0, live.tokens[:, :, index - 1], start_id)
        # The beams go on as one sequence, each of whose tokens sees its own beam only: so no cache
        # is reordered when beams are.
        start, new = index * beam, jnp.broadcast_to(jnp.eye(beam, dtype=bool), (size, beam, beam))
        own = jax.lax.dynamic_update_slice(own, new, (0, 0, start))
        seen, positions = own[:, None, :, : caches[0].key.shape[-2]], jnp.full((1, beam), index)
        at = {"positions": positions, "key_positions": jnp.arange(seen.shape[-1]) // beam}
        logits, caches = model.extend(last, caches, memories, mask, start, mask=seen, **at)
        scores, parent, token = continuations(
            allowed(model.config, logits, index), live.scores, 2 * beam
        )
        tokens = take(live.tokens, parent).at[:, :, index].set(token)
        ended = token == end_id
        penalised = jnp.where(
            ended, scores / length_normaliser(index + 1, length_penalty), -jnp.inf
        )
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
        return Beams(index + 1, *made, caches, take(own, parent))

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
        model.empty_caches(size, capacity=0),
        jnp.zeros((size, beam, max_length * beam), bool),
    )
    beams = _while(goes_on, step, beams, max_length, beam)
    found = jnp.isfinite(beams.finished.scores[:, :1])
    unended = beams.live.scores / longest
    return Hypotheses(
        jnp.where(found[..., None], beams.finished.tokens, beams.live.tokens),
        jnp.where(found, beams.finished.scores, unended),
    )


def _while(goes_on: Callable, step: Callable, state, max_length: int, each: int = 1):
    """`step` while `goes_on`, at most `max_length` times, with caches that grow with the text.

    Every step writes to `each` places of the caches.
    """
    more = max(ROOM, -(-max_length // 8))
    for capacity in (*range(more, max_length, more), max_length):
        caches = jax.tree.map(partial(_grow, capacity * each), state.caches)
        state = state._replace(caches=caches)

        def has_room(state, capacity=capacity):
            return (state.index < capacity) & goes_on(state)

        state = jax.lax.while_loop(has_room, step, state)
    return state


def _where(rows: Bool[Array, "B"], new: Array, old: Array) -> Array:
    return jnp.where(rows.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _grow(capacity: int, cache: Float[Array, "*batch C K"]) -> Float[Array, "*batch L K"]:
    *batch, length, _ = cache.shape
    return jnp.pad(cache, [(0, 0)] * len(batch) + [(0, capacity - length), (0, 0)])


def allowed(
    config, logits: Float[Array, "*batch V"], index: Int[Array, ""]
) -> Float[Array, "*batch V"]:
    """Logits of a distribution that never gives the padding, and first `first_id`, if any."""
    tokens = jnp.arange(logits.shape[-1])
    logits = jnp.where(tokens == config.pad_id, -jnp.inf, logits)
    if config.first_id is None:
        return logits
    forced = jnp.where(tokens == config.first_id, 0.0, -jnp.inf)
    return jnp.where(index == 0, forced, logits)


def continuations(
    logits: Float[Array, "B K V"], live: Float[Array, "B K"], number: int
) -> tuple[Float[Array, "B N"], Int[Array, "B N"], Int[Array, "B N"]]:
    """The `number` largest of live[k] + log softmax(logits[k])[v], and the k and v of each.

    As sorting all of them finds, of equal ones the first, but with fewer passes: they lie in the
    `number` groups of tokens with the largest maxima, and only there is a token's share computed.
    """
    size, beams, vocabulary = logits.shape
    missing = [(0, 0), (0, 0), (0, -vocabulary % GROUP)]
    logits = jnp.pad(logits, missing, constant_values=-jnp.inf)
    groups = logits.reshape(size, beams, -1, GROUP)
    maxima = groups.max(-1)
    top = maxima.max(-1, keepdims=True)
    shares = live[..., None] - top - jnp.log(jnp.exp(logits - top).sum(-1, keepdims=True))
    shares = jnp.broadcast_to(shares, maxima.shape).reshape(size, -1)
    maxima, groups = shares + maxima.reshape(size, -1), groups.reshape(size, -1, GROUP)
    _, chosen = jax.lax.top_k(maxima, min(number, maxima.shape[1]))
    chosen = jnp.sort(chosen)  # so that of equal numbers the first is taken
    candidates = jnp.take_along_axis(groups, chosen[..., None], axis=1)
    candidates += jnp.take_along_axis(shares, chosen, axis=1)[..., None]
    scores, places = jax.lax.top_k(candidates.reshape(size, -1), number)
    group, per_beam = jnp.take_along_axis(chosen, places // GROUP, 1), maxima.shape[1] // beams
    return scores, group // per_beam, group % per_beam * GROUP + places % GROUP


def take(tree, places: Int[Array, "B K"]):
    """Elements `places[b]` of axis 1 of each array, for each b."""
    return jax.tree.map(lambda array: jax.vmap(lambda a, p: a[p])(array, places), tree)
