"""Windows of a text: every target follows its input; and places far beyond 2^32."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.data import contiguous_windows, sample_positions, sample_windows, split_tokens

CONTEXT = 4
SEEDS = st.integers(-(2**63), 2**64 - 1)
STEPS = st.integers(0, 2**63)
BELOW = st.integers(1, 2**62)


def draw(num_tokens, seed=0, size=200):
    """Windows of 0, 1, 2, ...: a window's first input is where it starts."""
    tokens = jax.numpy.arange(num_tokens)
    return map(np.asarray, sample_windows(jax.random.key(seed), tokens, CONTEXT, size))


@pytest.mark.parametrize("spare", [0, 1, 5])
def test_drawn_windows_start_at_every_valid_place_and_no_other(spare):
    inputs, targets = draw(CONTEXT + 1 + spare)
    assert set(inputs[:, 0]) == set(range(spare + 1))
    np.testing.assert_array_equal(inputs, inputs[:, :1] + np.arange(CONTEXT))
    np.testing.assert_array_equal(targets, inputs + 1)


def test_drawn_windows_are_a_function_of_the_key():
    (first, _), (again, _), (other, _) = draw(100), draw(100), draw(100, seed=1)
    assert (first == again).all()
    assert (first != other).any()


@given(st.integers(1, 200), st.integers(1, 20))
def test_every_token_but_the_first_is_a_target_once(num_tokens, context):
    tokens = np.arange(num_tokens, dtype=np.int32)
    inputs, targets, weights = contiguous_windows(tokens, context)
    counted = weights == 1
    np.testing.assert_array_equal(targets[counted], tokens[1:])
    np.testing.assert_array_equal(inputs[counted], tokens[:-1])
    assert (weights[~counted] == 0).all()
    assert inputs.shape == targets.shape == weights.shape == (len(inputs), context)
    assert counted.any(1).all()


@given(st.integers(0, 1000), st.floats(0, 1))
def test_the_parts_of_a_split_are_the_whole_in_order(num_tokens, fraction):
    tokens = np.arange(num_tokens)
    training, validation = split_tokens(tokens, fraction)
    np.testing.assert_array_equal(np.concatenate([training, validation]), tokens)
    assert len(validation) == round(num_tokens * fraction)


@given(SEEDS, STEPS, st.integers(0, 40), st.integers(0, 40), BELOW, st.integers(0, 9))
def test_a_number_depends_on_seed_stream_step_and_place_alone(
    seed, step, first, number, below, stream
):
    whole = sample_positions(seed, step, first + number, below, stream=stream)
    part = sample_positions(seed, step, number, below, stream=stream, first=first)
    np.testing.assert_array_equal(part, whole[first:])
    assert whole.dtype == np.int64
    assert ((whole >= 0) & (whole < below)).all()


@given(SEEDS, STEPS)
def test_neighbouring_seeds_streams_and_steps_share_nothing(seed, step):
    below = 2**62
    drawn = [
        sample_positions(seed, step, 50, below),
        sample_positions(seed ^ 1, step, 50, below),
        sample_positions(seed, step + 1, 50, below),
        sample_positions(seed, step, 50, below, stream=1),
    ]
    assert len(np.unique(np.concatenate(drawn))) == 200


@pytest.mark.parametrize("below", [2, 7, 1000, 3 * 2**31, 5 * 10**9 - 1025])
def test_every_part_of_the_range_is_as_likely(below):
    """By chi squared over equal parts, at one in a million; beyond 2^31 and 2^32 too."""
    drawn = np.concatenate([sample_positions(3, step, 1000, below) for step in range(100)])
    parts = min(below, 50)
    counts = np.bincount(drawn * parts // below, minlength=parts)
    expected = len(drawn) / parts
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < parts + 5 * (2 * parts) ** 0.5 + 20
