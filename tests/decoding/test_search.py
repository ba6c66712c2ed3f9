"""Searches equal plain ones without caches, alone and in batches; translation keeps its order."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import assert_close, numbers
from tests.helpers.models import LeakySum, Shifted, replaced
from tlite.decoding.search import beam_search, beam_top_k, greedy_search
from tlite.decoding.translate import LENGTH_MULTIPLE, translate
from tlite.models import Attention, Seq2Seq, Seq2SeqConfig, TranslatorHead

V, CONTEXT, START, END = 8, 12, 2, 3
SIZES = {"source_vocabulary_size": V, "width": 8, "num_heads": 2, "num_blocks": 1}
CONFIG = Seq2SeqConfig(V, CONTEXT, **SIZES, head=TranslatorHead("separate"), positions="learned")
SOURCES = np.int32([[4, 5, 6, 7, 3], [7, 3, 0, 0, 0], [5, 5, 4, 3, 0], [6, 3, 0, 0, 0]])

RELATIVE = {"positions": "relative", "attention": Attention(windows=(3, 0)), "decoder_blocks": 2}
OTHERS = {
    70: RELATIVE,
    71: RELATIVE,
    82: {"feed_forward": LeakySum()},
    84: {"feed_forward": Shifted()},
}
"""Fields of other models by seed."""


@functools.cache
def initial(config):
    return jax.jit(lambda seed: Seq2Seq(config, rng=jax.random.key(seed)))


@functools.cache
def make_model(seed):
    """Return a model with large arrays, whose output depends on all of source and target."""
    config = dataclasses.replace(CONFIG, **OTHERS.get(seed, {}))
    arrays, structure = jax.tree.flatten(initial(config)(seed))
    noise = (numbers(*a.shape, seed=100 * seed + i) for i, a in enumerate(arrays))
    arrays = [
        jax.device_put(2 * (np.asarray(a) + np.float32(0.3) * n))
        for a, n in zip(arrays, noise, strict=True)
    ]
    model = jax.tree.unflatten(structure, arrays)
    is_relative = OTHERS.get(seed) is RELATIVE
    positions = model.decoder.relative if is_relative else model.decoder.positions
    positions.table[...] = jax.device_put(4 * numbers(*positions.table.shape, seed=seed))
    # Padding is never generated.
    model.head.bias[...] = jax.device_put(np.float32([-20.0] + [0.0] * (V - 1)))
    return model


@jax.jit
def log_probabilities(model, source, target):
    return jax.nn.log_softmax(model(source, target))


@functools.cache
def next_token(seed, row, target):
    """Return log p of each token after a target, by a call on all of it, padded to one shape."""
    padded = np.int32([START, *target] + [0] * (CONTEXT - 1 - len(target)))
    rows = log_probabilities(make_model(seed), SOURCES[row], padded)
    return np.asarray(rows)[len(target)].tolist()


def plain_greedy(seed, row, max_length):
    target, score = (), 0.0
    while len(target) < max_length and target[-1:] != (END,):
        log_p = next_token(seed, row, target)
        token = max(range(V), key=lambda v: log_p[v])
        target, score = (*target, token), score + log_p[token]
    return target, score


def plain_beam(seed, row, beam, max_length, length_penalty):
    """Return a list of (target, score), best first; a target ends with its end symbol."""
    live, finished = [((), 0.0)], []

    def penalised(score, length):
        return score / ((5 + length) / 6) ** length_penalty

    for length in range(1, max_length + 1):
        grown = [
            ((*target, token), score + log_p)
            for target, score in live
            for token, log_p in enumerate(next_token(seed, row, target))
        ]
        grown = sorted(grown, key=lambda pair: -pair[1])[: 2 * beam]
        ended = [(t, penalised(score, length)) for t, score in grown if t[-1] == END]
        finished = sorted(finished + ended, key=lambda pair: -pair[1])[:beam]
        live = [pair for pair in grown if pair[0][-1] != END][:beam]
        worst = finished[-1][1] if len(finished) == beam else -math.inf
        if penalised(live[0][1], max_length) <= worst:
            break
    return finished or [(t, penalised(score, max_length)) for t, score in live]


def as_lists(hypotheses):
    """Return for each source a list of (target without padding, score)."""
    tokens, scores = jax.device_get(hypotheses)
    assert (np.sort(scores, axis=-1)[:, ::-1] == scores).all()
    results = []
    for rows, values in zip(tokens, scores, strict=True):
        pairs = zip(rows, values.tolist(), strict=True)
        results.append([(shorten(row), value) for row, value in pairs if np.isfinite(value)])
    return results


def shorten(row):
    """Return the tokens up to the end symbol; only padding may follow it."""
    row = row.tolist()
    length = row.index(END) + 1 if END in row else len(np.trim_zeros(row, "b"))
    assert not any(row[length:])
    return tuple(row[:length])


def assert_hypotheses(results, expected):
    assert [target for target, _ in results] == [target for target, _ in expected]
    np.testing.assert_allclose(
        [score for _, score in results], [score for _, score in expected], atol=1e-4
    )


SEEDS = (1, 3, 5)
CASES = [  # seeds of models, beam, longest target, penalties, and limits of the sources
    *((SEEDS, *sizes, (0.0, 0.6, 2.0), None) for sizes in [(1, 5), (V, 3)]),
    *(((seed,), 3, 8, (0.6,), None) for seed in OTHERS),
    (SEEDS, 4, CONTEXT, (0.0, 0.6, 2.0), [1, 4, CONTEXT, CONTEXT]),
]


@pytest.mark.parametrize(("seeds", "beam", "max_length", "penalties", "limits"), CASES)
def test_searches_equal_plain_ones(seeds, beam, max_length, penalties, limits):
    sources = np.pad(SOURCES, [(0, 0), (0, 3)]) if limits else SOURCES
    settings = {"max_length": max_length} | ({"limits": np.array(limits)} if limits else {})
    limits, targets = limits or [max_length] * len(SOURCES), []
    for seed in seeds:
        model = make_model(seed)
        greedy = greedy_search(model, sources, **settings)
        assert greedy.tokens.shape == (len(SOURCES), 1, max_length)
        for row, results in enumerate(as_lists(greedy)):
            assert_hypotheses(results, [plain_greedy(seed, row, limits[row])])
        for penalty in penalties:
            hypotheses = beam_search(model, sources, beam=beam, length_penalty=penalty, **settings)
            assert hypotheses.tokens.shape == (len(SOURCES), beam, max_length)
            for row, results in enumerate(as_lists(hypotheses)):
                assert_hypotheses(results, plain_beam(seed, row, beam, limits[row], penalty))
                targets.append(results[0][0])
    assert any(target[-1] == END for target in targets)
    assert max(map(len, targets)) >= min(max_length, 6)


@pytest.mark.parametrize("first", [END, 5])
def test_a_forced_first_token_is_free_and_may_be_the_end(first):
    """BART has `forced_bos_token_id`; its targets begin with the end symbol, and continue."""
    plain = make_model(1)
    model = jax.tree.unflatten(jax.tree.structure(plain), jax.tree.leaves(plain))
    model.config = replaced(plain.config, {"special_tokens.forced_bos_id": first})
    if first == END:
        greedy = as_lists(greedy_search(model, SOURCES, max_length=4))
        assert_hypotheses(greedy[0], [((END,), 0.0)])
        return
    results = as_lists(greedy_search(model, SOURCES, max_length=2))
    beams = as_lists(beam_search(model, SOURCES, beam=2, length_penalty=0.0, max_length=2))
    for row in range(len(SOURCES)):
        scores = np.array(next_token(1, row, (first,)))
        assert_hypotheses(results[row], [((first, int(scores.argmax())), scores.max())])
        assert {tokens[0] for tokens, _ in beams[row]} == {first}


best = jax.jit(beam_top_k, static_argnums=2)


@pytest.mark.parametrize(("size", "number"), [(2, 10), (63, 2), (64, 10), (65, 1), (200, 10)])
def test_beam_top_k_equals_a_stable_sort(size, number):
    beams, live = 5, 3 * numbers(3, 5, seed=1)
    live[0, 2:] = -np.inf
    for logits in (3 * numbers(3, beams, size), np.round(numbers(3, beams, size))):
        logits[..., 0] = -np.inf
        scores, parent, token = best(logits, live, min(number, size))
        shares = np.float64(logits) - np.log(np.exp(np.float64(logits)).sum(-1, keepdims=True))
        expected = (live[..., None] + shares).reshape(3, -1)
        # Scores that differ by rounding alone count as equal, in the order of their tokens.
        order = np.argsort(-expected.round(4), axis=-1, kind="stable")[:, : scores.shape[1]]
        assert_close(scores, np.take_along_axis(expected, order, -1))
        there = np.isfinite(scores)
        results = np.asarray(parent) * size + np.asarray(token)
        np.testing.assert_array_equal(results[there], order[there])


# Many sentences


def sentences(number, longest=CONTEXT, seed=0):
    """Return the tokens of sources of different lengths, each with its end symbol."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, longest, number)
    return [np.r_[random.integers(4, V, n), END].astype(np.int32) for n in lengths]


def alone(source, beam, length_penalty=0.6, max_length=6):
    """Return targets and scores of a search for one source, padded to the context."""
    tokens = np.pad(source, (0, CONTEXT - len(source)))[None]
    if beam == 1:
        results = greedy_search(make_model(1), tokens, max_length=max_length)
    else:
        settings = {"beam": beam, "length_penalty": length_penalty, "max_length": max_length}
        results = beam_search(make_model(1), tokens, **settings)
    return jax.device_get(results)


@pytest.mark.parametrize(
    ("search", "batch_size"), [({"beam": 1}, 4), ({"beam": 2, "length_penalty": 0.7}, 64)]
)
def test_translations_are_in_the_order_of_their_sources(search, batch_size):
    sources = sentences(11)
    assert {len(source) <= LENGTH_MULTIPLE for source in sources} == {True, False}
    results = translate(make_model(1), sources, max_length=6, batch_size=batch_size, **search)
    assert len(results) == len(sources)
    for source, hypotheses in zip(sources, results, strict=True):
        tokens, scores = alone(source, **search)
        assert len(hypotheses) == search["beam"]
        for place, (target, score) in enumerate(hypotheses):
            np.testing.assert_array_equal(target, tokens[0, place])
            np.testing.assert_allclose(score, scores[0, place], atol=1e-4)


def test_a_longer_sentence_in_the_batch_changes_nothing():
    model = initial(dataclasses.replace(CONFIG, context=40))(0)
    model.head.bias[...] = jnp.asarray([-20.0 * (v == END) for v in range(V)])  # long targets
    short, long = (np.r_[np.full(n, 4), END].astype(np.int32) for n in (2, 12))
    (alone, *_), (long_alone, *_) = (translate(model, [x], beam=1)[0] for x in (short, long))
    (beside, *_), (long_beside, *_) = translate(model, [short, long], beam=1)
    for (tokens, score), (again, score_again) in ((beside, alone), (long_beside, long_alone)):
        np.testing.assert_array_equal(np.trim_zeros(tokens, "b"), np.trim_zeros(again, "b"))
        np.testing.assert_allclose(score, score_again, atol=1e-4)
    assert np.count_nonzero(alone[0]) == 3 + 1 + 10 < np.count_nonzero(long_alone[0])


@pytest.mark.parametrize("beam", [1, 2])
def test_a_model_that_has_diverged_has_a_target_for_each_source(beam):
    model = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), make_model(1))
    for (_, score), *_ in translate(model, sentences(3), beam=beam, max_length=6):
        assert math.isnan(score)


def test_targets_are_limited_by_max_length_and_context():
    assert translate(make_model(1), []) == []
    sources = sentences(3, longest=LENGTH_MULTIPLE)
    for max_length, length in ((4, 4), (None, CONTEXT)):
        results = translate(make_model(1), sources, beam=1, max_length=max_length)
        assert {len(target) for hypotheses in results for target, _ in hypotheses} == {length}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beam": 0}, "a beam of 0 is not between 1 and the vocabulary's 8"),
        ({"beam": V + 1}, "a beam of 9"),
        ({"length_penalty": -0.1}, "not -0.1"),
        ({"length_penalty": 10.0}, "not 10.0"),
        ({"length_penalty": float("nan")}, "not nan"),
        ({"max_length": 0}, "between 1 and the context of 12, not 0"),
        ({"batch_size": 0}, "batch_size must be .* not 0"),
        ({"max_length": CONTEXT + 1}, "not 13"),
        ({"sources": [np.int32([4] * CONTEXT + [END])]}, "13 tokens is longer than .* of 12"),
    ],
)
def test_bad_options_of_a_search_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        translate(make_model(1), **{"sources": sentences(1)} | wrong)
