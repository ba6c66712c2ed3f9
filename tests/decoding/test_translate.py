"""Translation of many sentences: in their order, whatever their lengths, batch and devices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.models import replaced
from tests.helpers.searches import CONFIG, CONTEXT, END, V, initial, make_model
from tlite.decoding.search import beam_search, greedy_search, start_and_end
from tlite.decoding.translate import LENGTHS, translate
from tlite.text.subwords import END_ID, START_ID

SEARCHES = {"greedy": {"beam": 1}, "beam": {"beam": 2, "length_penalty": 0.7}}
each_search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)


def sentences(number, longest=CONTEXT, seed=0):
    """Tokens of sources of different lengths, each with its end symbol."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, longest, number)
    return [np.r_[random.integers(4, V, n), END].astype(np.int32) for n in lengths]


def alone(source, beam, length_penalty=0.6, max_length=6):
    """Targets and scores of a search for one source that is padded to the context."""
    tokens = np.pad(source, (0, CONTEXT - len(source)))[None]
    settings = {"max_length": max_length}
    if beam == 1:
        found = greedy_search(make_model(1), tokens, **settings)
    else:
        found = beam_search(
            make_model(1), tokens, beam=beam, length_penalty=length_penalty, **settings
        )
    return jax.device_get(found)


@pytest.mark.parametrize("batch_size", [4, 64])
@each_search
def test_translations_are_in_the_order_of_their_sources_whatever_the_batch(search, batch_size):
    sources = sentences(11)
    assert {len(source) <= LENGTHS for source in sources} == {True, False}
    found = translate(make_model(1), sources, max_length=6, batch_size=batch_size, **search)
    assert len(found) == len(sources)
    for source, hypotheses in zip(sources, found, strict=True):
        tokens, scores = alone(source, **search)
        assert len(hypotheses) == search["beam"]
        for place, (target, score) in enumerate(hypotheses):
            np.testing.assert_array_equal(target, tokens[0, place])
            np.testing.assert_allclose(score, scores[0, place], atol=1e-4)


@each_search
def test_a_longer_neighbour_changes_nothing(search):
    model = initial(dataclasses.replace(CONFIG, context=40))(0)
    model.head.bias[...] = jnp.asarray([-20.0 * (v == END) for v in range(V)])  # long targets
    short, long = (np.r_[np.full(n, 4), END].astype(np.int32) for n in (2, 12))
    (alone, *_), (long_alone, *_) = (translate(model, [x], **search)[0] for x in (short, long))
    (beside, *_), (long_beside, *_) = translate(model, [short, long], **search)
    for (tokens, score), (again, score_again) in ((beside, alone), (long_beside, long_alone)):
        np.testing.assert_array_equal(np.trim_zeros(tokens, "b"), np.trim_zeros(again, "b"))
        np.testing.assert_allclose(score, score_again, atol=1e-4)
    assert np.count_nonzero(alone[0]) == 3 + 1 + 10 < np.count_nonzero(long_alone[0])


def test_targets_are_as_long_as_asked_for_or_as_the_context_allows():
    assert translate(make_model(1), []) == []
    sources = sentences(3, longest=LENGTHS)
    for max_length, length in ((4, 4), (None, CONTEXT)):
        found = translate(make_model(1), sources, beam=1, max_length=max_length)
        assert {len(target) for hypotheses in found for target, _ in hypotheses} == {length}


def test_targets_start_and_end_as_the_tokenizer_says_unless_the_model_does():
    assert start_and_end(CONFIG) == (START_ID, END_ID)
    assert start_and_end(replaced(CONFIG, {"symbols.start": 0, "symbols.end": 1})) == (0, 1)


def test_a_source_longer_than_the_context_is_refused_with_both_lengths():
    source = np.r_[np.full(CONTEXT, 4), END].astype(np.int32)
    with pytest.raises(ValueError, match="13 tokens is longer than the context of 12"):
        translate(make_model(1), [source])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beam": 0}, "a beam of 0 is not between 1 and the vocabulary's 8"),
        ({"beam": V + 1}, "a beam of 9"),
        ({"length_penalty": -0.1}, "not -0.1"),
        ({"length_penalty": 10.0}, "not 10.0"),
        ({"length_penalty": float("nan")}, "not nan"),
        ({"max_length": 0}, "between 1 and the context of 12, not 0"),
        ({"max_length": CONTEXT + 1}, "not 13"),
    ],
)
def test_settings_of_a_search_that_make_no_sense_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        translate(make_model(1), sentences(1), **wrong)
