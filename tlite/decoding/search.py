"""Search for the best target of a source: greedy, and with a beam; batched, with caches."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from tlite import functional as F
from tlite.decoding.generate import grown
from tlite.models.seq2seq import END_ID, START_ID
from tlite.models.stack import Rows, room

GROUP = 64  # tokens: of a group that is not among the best only the maximum is looked at


class Hypotheses(NamedTuple):
    """The best targets of a search, best first, and their scores."""

    tokens: Int[Array, "*batch K N"]
    """Without the start; what follows the end symbol is padding."""
    scores: Float[Array, "*batch K"]


def start_and_end(config) -> tuple[int, int]:
    """The symbols that targets of a model start and end with."""
    start, end = config.special_tokens.bos_id, config.special_tokens.eos_id
    return START_ID if start is None else start, END_ID if end is None else end


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
    caches: list[Rows]


@partial(jax.jit, static_argnames="max_length")
@F.float32_products
def greedy_search(
    model,
    source: Int[Array, "B S"],
    *,
    max_length: int,
    limits: Int[Array, "B"] | None = None,
) -> Hypotheses:
    """The most probable token, step by step, up to the end symbol or `max_length` tokens.

    The one hypothesis' score is its log-probability. `limits` are those of each source's target,
    where they are less than `max_length`.
    """
    size, pad = len(source), model.config.special_tokens.pad_id
    memories, (start_id, end_id) = model.memories(source), start_and_end(model.config)
    limits = jnp.full(size, max_length) if limits is None else limits

    def going(line):
        ended = (line.last == end_id) | (line.last == pad)
        return (line.index < limits) & (~ended | (line.index == 0))  # some start with the end's

    def step(line):
        logits, caches = model.extend(line.last[:, None], line.caches, *memories, line.index)
        log_probabilities = jax.nn.log_softmax(allowed(model.config, logits[:, 0], line.index))
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
    caches: list[Rows]
    """What a source's beams have written, step by step; which is whose, `mask` says."""
    mask: Bool[Array, "B K NK"]
    """The places of the caches that hold the tokens of each live beam."""


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
    """The `beam` best targets by log p / `length_normaliser`, the length counting the end symbol.

    At each step the 2 * beam best continuations of the live beams are made, which always leaves
    `beam` that have not ended. The search stops when no live beam can get better than the worst of
    `beam` finished ones, or after `max_length` tokens (`limits`: fewer, for each source); a source
    none of whose beams has ended by then gets the live ones.
    """
    memories, (start_id, end_id) = model.memories(source), start_and_end(model.config)
    limits = jnp.full(len(source), max_length) if limits is None else limits
    longest = length_normaliser(limits, length_penalty)[:, None]

    def step(beams):
        logits, caches, mask = _extend(model, memories, beams, start_id)
        *made, parent = _best(beams, logits, end_id, length_penalty)
        # A source whose limit is reached waits, as it is, for the others.
        going = beams.index < limits
        made = jax.tree.map(partial(jax.vmap(jnp.where), going), made, [beams.live, beams.finished])
        live, finished = made
        return Beams(beams.index + 1, live, finished, caches, take(mask, parent))

    def goes_on(beams):
        # Scores are negative, so that the longest target has the least penalty.
        better = (beams.live.scores / longest)[:, 0] > beams.finished.scores[:, -1]
        return jnp.any((beams.index < limits) & better)

    beams = _while(goes_on, step, _begun(model, source, beam, max_length), max_length, beam)
    any_finished = jnp.isfinite(beams.finished.scores[:, :1])
    return Hypotheses(
        jnp.where(any_finished[..., None], beams.finished.tokens, beams.live.tokens),
        jnp.where(any_finished, beams.finished.scores, beams.live.scores / longest),
    )


def _begun(model, source: Int[Array, "B S"], beam: int, max_length: int) -> Beams:
    """One empty beam for each source."""
    size = len(source)
    empty = jnp.full((size, beam, max_length), model.config.special_tokens.pad_id, source.dtype)
    nothing = jnp.full((size, beam), -jnp.inf)
    return Beams(
        jnp.int32(0),
        Hypotheses(empty, nothing.at[:, 0].set(0.0)),
        Hypotheses(empty, nothing),
        model.empty_caches(size, capacity=0),
        jnp.zeros((size, beam, max_length * beam), bool),
    )


def _extend(model, memories: tuple, beams: Beams, start_id: int):
    """Logits (B, K, V) after the last token of each live beam; caches and mask with its place.

    The beams of a source go on as one sequence, each of whose tokens sees its own beam only: so no
    cache is reordered when beams are.
    """
    index, tokens, (size, beam) = beams.index, beams.live.tokens, beams.live.scores.shape
    last, start = jnp.where(index > 0, tokens[:, :, index - 1], start_id), index * beam
    new = jnp.broadcast_to(jnp.eye(beam, dtype=bool), (size, beam, beam))
    mask = jax.lax.dynamic_update_slice(beams.mask, new, (0, 0, start))
    capacity = room(beams.caches, mask.shape[-1])
    logits, caches = model.extend(
        last,
        beams.caches,
        *memories,
        start,
        positions=jnp.full((1, beam), index),
        key_positions=jnp.arange(capacity) // beam,
        mask=mask[:, None, :, :capacity],
    )
    return allowed(model.config, logits, index), caches, mask


def _best(beams: Beams, logits: Float[Array, "B K V"], end_id: int, length_penalty):
    """The best live and finished beams one token later, and which beams the live ones go on."""
    beam = logits.shape[1]
    scores, parent, token = continuations(logits, beams.live.scores, 2 * beam)
    tokens = take(beams.live.tokens, parent).at[:, :, beams.index].set(token)
    ended = token == end_id
    penalised = scores / length_normaliser(beams.index + 1, length_penalty)
    ending = Hypotheses(tokens, jnp.where(ended, penalised, -jnp.inf))
    both = jax.tree.map(lambda *a: jnp.concatenate(a, axis=1), beams.finished, ending)
    finished, _ = _top(both, beam)
    live, places = _top(Hypotheses(tokens, jnp.where(ended, -jnp.inf, scores)), beam)
    return live, finished, take(parent, places)


def _top(hypotheses: Hypotheses, number: int) -> tuple[Hypotheses, Int[Array, "B K"]]:
    """The best of them, and their places."""
    scores, places = jax.lax.top_k(hypotheses.scores, number)
    return Hypotheses(take(hypotheses.tokens, places), scores), places


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


def take(array: Array, places: Int[Array, "B K"]) -> Array:
    """Elements `places[b]` of axis 1 of the array, for each b."""
    return jax.vmap(lambda row, chosen: row[chosen])(array, places)


def _while(goes_on: Callable, step: Callable, state, max_length: int, each: int = 1):
    """`step` while `goes_on`, at most `max_length` times, each of which fills `each` places.

    Each step reads all of the caches, and most targets are short: so there are four loops, with
    room for a quarter of the longest target and then for a quarter more.
    """
    for capacity in (-(-max_length * quarter // 4) for quarter in (1, 2, 3, 4)):
        state = state._replace(caches=grown(state.caches, capacity * each))
        has_room = lambda state, room=capacity: (state.index < room) & goes_on(state)  # noqa: E731
        state = jax.lax.while_loop(has_room, step, state)
    return state


def allowed(
    config, logits: Float[Array, "*batch V"], index: Int[Array, ""]
) -> Float[Array, "*batch V"]:
    """Logits that never give the padding, and first `special_tokens.forced_bos_id`, if any."""
    tokens = jnp.arange(logits.shape[-1])
    logits = jnp.where(tokens == config.special_tokens.pad_id, -jnp.inf, logits)
    if config.special_tokens.forced_bos_id is None:
        return logits
    forced = jnp.where(tokens == config.special_tokens.forced_bos_id, 0.0, -jnp.inf)
    return jnp.where(index == 0, forced, logits)
