"""Search for the best target of a source: greedy, and with a beam; batched, with caches."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tlite import functional as F


class Hypotheses(NamedTuple):
    """The best targets that a search has found, best first, and their scores."""

    tokens: Int[Array, "*batch K N"]
    """Without the start; what follows the end symbol is padding."""
    scores: Float[Array, "*batch K"]


def length_penalty(length, alpha: float | Float[Array, ""]):
    """((5 + n) / 6)^alpha (Wu et al. 2016, eq. 14): what a log-probability is divided by."""
    return ((5 + length) / 6) ** alpha


@partial(jax.jit, static_argnames=("max_length", "start_id", "end_id"))
def greedy_search(
    model, source: Int[Array, "B S"], *, max_length: int, start_id: int, end_id: int
) -> Hypotheses:
    """The most probable token, step by step, up to the end symbol or `max_length` tokens.

    The one hypothesis' score is its log-probability.
    """
    memory, mask = model.encode(source)
    memories, size = model.memory_caches(memory), source.shape[0]
    pad = model.config.pad_id

    def step(carry):
        index, last, tokens, scores, caches = carry
        start = jnp.full(size, index)
        logits, caches = model.extend(last[:, None], caches, memories, mask, start)
        log_probabilities = jax.nn.log_softmax(logits[:, 0]).at[:, pad].set(-jnp.inf)
        token, going = F.greedy(log_probabilities), (last != end_id) & (last != pad)
        scores += jnp.where(going, log_probabilities.max(-1), 0)
        token = jnp.where(going, token, pad)
        return index + 1, token, tokens.at[:, index].set(token), scores, caches

    def goes_on(carry):
        index, last, *_ = carry
        return (index < max_length) & jnp.any((last != end_id) & (last != pad))

    first = jnp.full(size, start_id, source.dtype)
    empty = jnp.full((size, max_length), pad, source.dtype)
    caches = model.empty_caches(size, capacity=max_length)
    state = 0, first, empty, jnp.zeros(size), caches
    _, _, tokens, scores, _ = jax.lax.while_loop(goes_on, step, state)
    return Hypotheses(tokens[:, None], scores[:, None])


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
) -> Hypotheses:
    """The `beam` best targets by log p / `length_penalty`, the length counting the end symbol.

    At each step the 2 * beam best continuations of the live beams are made, which always leaves
    `beam` that have not ended. The search stops when no live beam can get better than the worst of
    `beam` finished ones, or after `max_length` tokens; a source none of whose beams has ended by
    then gets the live ones.
    """
    memory, mask = model.encode(source)
    memories, size, pad = model.memory_caches(memory), source.shape[0], model.config.pad_id

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
        # First the best of each beam: a sort of beam * V numbers would take longer.
        number = min(2 * beam, scores.shape[-1])
        scores, token = jax.lax.top_k(scores, number)
        scores, places = jax.lax.top_k(scores.reshape(size, -1), min(2 * beam, beam * number))
        token = jnp.take_along_axis(token.reshape(size, -1), places, axis=1)
        parent = places // number
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
        return Beams(
            index + 1,
            Hypotheses(live_tokens, live_scores),
            Hypotheses(finished_tokens, finished_scores),
            take(caches, parent),
        )

    def goes_on(beams):
        # Scores are negative, so that the longest target has the least penalty.
        hope = beams.live.scores[:, 0] / length_penalty(max_length, alpha)
        return (beams.index < max_length) & jnp.any(hope > beams.finished.scores[:, -1])

    empty = jnp.full((size, beam, max_length), pad, source.dtype)
    nothing = jnp.full((size, beam), -jnp.inf)
    beams = Beams(
        jnp.int32(0),
        Hypotheses(empty, nothing.at[:, 0].set(0.0)),  # one beam to begin with
        Hypotheses(empty, nothing),
        model.empty_caches(size, beam, capacity=max_length),
    )
    beams = jax.lax.while_loop(goes_on, step, beams)
    found = jnp.isfinite(beams.finished.scores[:, :1])
    unended = beams.live.scores / length_penalty(max_length, alpha)
    return Hypotheses(
        jnp.where(found[..., None], beams.finished.tokens, beams.live.tokens),
        jnp.where(found, beams.finished.scores, unended),
    )


def take(tree, places: Int[Array, "B K"]):
    """Elements `places[b]` of axis 1 of each array, for each b."""
    return jax.tree.map(lambda array: jax.vmap(lambda a, p: a[p])(array, places), tree)
